"""Runs a kernel on the emulated GPU or, through MAX in a supervised process, on a real one, and records the result."""
