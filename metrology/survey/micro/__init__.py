"""Micro-benchmarks: how long one thing takes on a GPU, in cycles of the SM's clock.

Each is a kernel in PTX with its launches, as a probe is (`metrology.probes`), but it answers with times. The driver
compiles it, so nothing but the driver is needed; on the emulator the same text runs to show that it is right.
"""
