from .ops.matmul import Matmul
