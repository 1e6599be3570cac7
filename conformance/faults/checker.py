"""What `emugpu verify` says of a program."""

from __future__ import annotations

from typing import Any

from conformance.faults.programs import launchable
from emugpu.launch.check import CheckOptions, check, judge
from emugpu.launch.launching import EmulationOptions

TIMEOUT = 30.0
"""Seconds without a CTA that ends, after which a run is ended."""


def verdict(id: str, schedules: int) -> dict[str, Any]:
    """Returns the verdict's word, the rules of errors and of warnings, and the first reason."""
    what = launchable(id)
    [checked] = check([what], CheckOptions(schedules, EmulationOptions(seed=1, timeout=TIMEOUT, strict=False)))
    found = judge(what, checked)
    rules = {
        f"{severity}s": sorted({finding.rule for finding in found.findings if finding.severity == severity})
        for severity in ("error", "warning")
    }
    reason = {"reason": found.reasons[0][1].splitlines()[0]} if found.reasons else {}
    return {"verdict": found.word, **rules, **reason}
