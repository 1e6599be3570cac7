"""Runs a probe on a GPU of compute capability 9.0, in a process of its own, through the CUDA driver."""

from __future__ import annotations

import tempfile
from pathlib import Path

from harness.probes import bare, bundle
from harness.probes.bare import TIME_LIMIT, GpuError, describe
from harness.probes.probe import Outputs, Probe

__all__ = ["TIME_LIMIT", "GpuError", "describe", "run_in_child"]


def run_in_child(probe: Probe, seconds: float = TIME_LIMIT) -> Outputs:
    """The probe's outputs. A probe that hangs the GPU only takes the child with it.

    Raises GpuError with what the child said, or on a time-out.
    """
    with tempfile.TemporaryDirectory() as name:
        folder, out = Path(name) / probe.name, Path(name) / "out.npz"
        bundle.write_probe(folder, probe)
        bare.run_in_child(folder, out, seconds)
        return bundle.read(out, probe)
