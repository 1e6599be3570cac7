"""The lab: build, run, validate and measure the matmul kernels in ``kernels/``."""

__version__ = "0.2.0"
