from .matmul import Matmul
