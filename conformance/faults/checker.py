"""What `emugpu verify` says of a program."""

from __future__ import annotations

import os
import sys
from typing import Any

from conformance.faults.programs import launchable, of_one_launch
from emugpu.check.verdict import Verdict
from emugpu.driver import log
from emugpu.driver.gpu_model import gpu_model
from emugpu.driver.server import run_program
from emugpu.driver.state import SharedGpu
from emugpu.launch.check import CheckOptions, check, judge
from emugpu.launch.launching import EmulationOptions

TIMEOUT = 30.0
"""Seconds without a CTA that ends, after which a run is ended."""


def verdict(id: str, schedules: int) -> dict[str, Any]:
    """Returns the verdict's word, the rules of errors and of warnings, and the first reason."""
    found = _of_launch(id, schedules) if id in of_one_launch() else _of_host_program(id)
    rules = {
        f"{severity}s": sorted({finding.rule for finding in found.findings if finding.severity == severity})
        for severity in ("error", "warning")
    }
    reason = {"reason": found.reasons[0][1].splitlines()[0]} if found.reasons else {}
    return {"verdict": found.word, **rules, **reason}


def _of_launch(id: str, schedules: int) -> Verdict:
    """Returns the verdict on a launch, as `emugpu verify LAUNCH.toml` gives it."""
    what = launchable(id)
    [checked] = check([what], CheckOptions(schedules, EmulationOptions(seed=1, timeout=TIMEOUT, strict=False)))
    return judge(what, checked)


def _of_host_program(id: str) -> Verdict:
    """Returns the verdict on a process that makes several launches, as `emugpu verify -- PROGRAM` gives it."""
    words = [sys.executable, "-c", f"from conformance.faults.worker import measure; measure({id!r}, 1, {TIMEOUT})"]
    found = log.Log()
    options = EmulationOptions(timeout=TIMEOUT, strict=False, uninitialised="report")
    code = run_program(words, SharedGpu(gpu_model("h100"), options, found, check=True), os.environ)
    return log.judge(found, id, f"the program ended with code {code}" if code else "", checked=True)
