"""Runs a probe on the emulated GPU."""

from __future__ import annotations

from conformance.probe import Outputs, Probe, outputs_of
from emugpu.launch.launching import EmulationOptions
from emugpu.launch.launching import run as run_launchable


def run(probe: Probe) -> Outputs:
    """Returns the outputs of the cases that are kept. Raises CannotRun if the emulator stops a case."""
    options = EmulationOptions(accumulation=probe.accumulation, strict=False)
    return {
        case.name: outputs_of(case, run_launchable(probe.launchable(case), options, keep=case.outputs).contents)
        for case in probe.kept_cases
    }
