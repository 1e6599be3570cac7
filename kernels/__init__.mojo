"""Matmul kernels. As a package of custom ops for MAX, this folder offers `matmul`."""
from .ops.matmul import Matmul
