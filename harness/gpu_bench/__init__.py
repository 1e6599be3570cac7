"""Compares kernels with cuBLAS on a GPU, without MAX: CUDA graphs run in turns or each alone."""
