"""Runs a probe on a GPU, in a process of its own, through the CUDA driver."""

from __future__ import annotations

import tempfile
from pathlib import Path

from metrology.probes import bare, bundle
from metrology.probes.bare import TARGETS, TIME_LIMIT, GpuError, describe
from metrology.probes.bundle import Answered
from metrology.probes.probe import Probe

__all__ = ["TARGETS", "TIME_LIMIT", "GpuError", "describe", "run_in_child"]


def run_in_child(probe: Probe, seconds: float = TIME_LIMIT) -> Answered:
    """The probe's outputs. A case that hangs the GPU, or faults, only takes a child with it.

    Raises GpuError with what the child said, or on a time-out, if no case has outputs.
    """
    with tempfile.TemporaryDirectory() as name:
        folder, out = Path(name) / probe.name, Path(name) / "out.npz"
        bundle.write_probe(folder, probe)
        return bundle.answered(out, probe, bare.run_in_child(folder, out, seconds))
