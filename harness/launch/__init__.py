"""Chooses the configuration of a launch, and launches by the CUDA driver, without MAX."""
