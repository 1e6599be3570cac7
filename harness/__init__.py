"""The lab: it builds, runs, validates and measures the matmul kernels in ``kernels/``."""

__version__ = "0.2.0"
