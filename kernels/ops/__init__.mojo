from .matmul import Matmul, MatmulInto
