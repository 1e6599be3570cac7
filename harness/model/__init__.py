"""Predicts the time of a kernel with an emulated machine that has a clock. Nothing here is measured."""
