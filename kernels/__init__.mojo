"""Matmul kernels. As a package of custom ops for MAX, this folder offers `matmul` and `matmul_into`."""
from .host.matmul import Matmul, MatmulInto
