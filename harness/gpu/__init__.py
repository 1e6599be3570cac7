"""Kernels on a real GPU, through MAX: compiled to an artifact, run and timed in a child process under a watchdog."""
