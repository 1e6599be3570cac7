"""Runs a kernel on the emulated GPU or, in a supervised process, on a real one, and records the result."""
