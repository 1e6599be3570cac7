"""Chooses the configuration of a launch, launches by the CUDA driver, and names the ops of MAX, which does without."""
