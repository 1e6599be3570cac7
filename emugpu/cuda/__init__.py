"""A GPU of this machine, through the CUDA driver: loads PTX and launches what a launch file describes."""
