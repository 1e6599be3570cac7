"""Build, run, validate and measure the Blackwell matmul kernels in ``kernels/``."""
