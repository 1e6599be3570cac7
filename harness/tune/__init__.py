"""Finds the best configuration of a kernel for a problem: candidates, a model or exact counts, a race on GPUs."""
