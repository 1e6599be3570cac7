"""Metrology of GPUs: probes, micro-benchmarks, calibration and validation of the timing model. Not in the wheel."""
