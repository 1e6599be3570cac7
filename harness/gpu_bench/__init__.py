"""Kernels beside cuBLAS on a GPU, without MAX: from CUDA graphs, in turns or each alone."""
