"""Compares published measurements of a chip with the emulated GPU and the timing model."""
