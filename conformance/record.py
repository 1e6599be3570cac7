"""Runs probes, compares their results with the emulator, and writes them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from conformance import emulator, gpu, recording
from conformance.catalogue import ALL, BLACKWELL, PROBES
from conformance.comparison import compare
from conformance.gpu import Answered
from conformance.probe import Probe
from conformance.ptx import TARGETS
from emugpu.errors import ReportedError

SHOWN_DIFFERENCES = 5
GROUPS = {"hopper": PROBES, "blackwell": BLACKWELL, "all": ALL}


def record(
    probes: Iterable[Probe],
    device: str,
    path: Path | None,
    timeout: float = gpu.TIME_LIMIT,
) -> bool:
    """Runs the probes, reports the comparison, and writes the results to ``path``. Returns whether everything
    succeeded.

    Raises CannotRun if there is no GPU.
    """
    machine, ask = _machine(device, timeout)
    real = machine["gpu"] != "emulator"
    if real:
        print(f"{machine['gpu']}, driver {machine['driver']}, {machine['date']}")
        probes = list(_for_machine(probes, machine))
    else:
        probes = [probe for probe in probes if probe.modelled]
    entries, differing, failed = {}, 0, 0
    for probe in probes:
        start = time.perf_counter()
        try:
            answered = ask(probe)
        except ReportedError as error:
            failed += 1
            entries[probe.name] = recording.failure(probe, str(error))
            print(f"{probe.name:34} failed: {error}")
        else:
            seconds = time.perf_counter() - start
            entries[probe.name] = recording.entry(probe, answered.outputs, seconds, answered.failed)
            lines = compare(probe, answered.outputs) if real else []
            differing += bool(lines) and probe.exact
            failed += bool(answered.failed)
            print(f"{probe.name:34} {seconds:6.2f} s  {_verdict(probe, lines) if real else ''}")
            for line in lines[:SHOWN_DIFFERENCES]:
                print(f"    {line}")
            for case, message in answered.failed.items():
                print(f"    {case}: failed: {message}")
        if path is not None:
            recording.write(path, machine, entries)
    print(f"{len(entries)} probes, {failed} failed, {differing} differ from the emulator")
    return not failed and not differing


def _for_machine(probes: Iterable[Probe], machine: dict[str, Any]) -> Iterable[Probe]:
    """Yields the probes that this GPU supports, in their form for it."""
    target = TARGETS[machine["compute_capability"]]
    asked = list(probes)
    for probe in asked:
        if target in probe.targets:
            yield probe.on(target)
    others = [probe for probe in asked if target not in probe.targets]
    if others:
        needed = ", ".join(dict.fromkeys(probe.target for probe in others))
        print(f"{len(others)} probes are skipped: they ask what {target} has not, but {needed} has")


def _verdict(probe: Probe, lines: list[str]) -> str:
    if not probe.modelled:
        return "recorded; the emulator has no answer"
    return f"{'differs from' if lines else 'as'} the emulator{'' if probe.exact else ' (approximate)'}"


def _machine(device: str, timeout: float) -> tuple[dict[str, Any], Callable[[Probe], Answered]]:
    """Returns the description of the machine, and the function that runs a probe on it."""
    if device == "gpu":
        return dict(gpu.describe()), lambda probe: gpu.run_in_child(probe, timeout)
    return {"gpu": "emulator"}, lambda probe: Answered(emulator.run(probe), {})
