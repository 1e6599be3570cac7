"""A real GPU of this machine, through the CUDA driver: loads PTX and runs the launches of a launch file."""
