"""Predicts how long a kernel takes: the emulated machine with a clock. Nothing here is measured."""
