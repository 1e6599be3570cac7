"""Build, run, validate and measure the Blackwell matmul kernels in ``kernels/``."""

__version__ = "0.1.0"
