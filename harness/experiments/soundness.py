"""Checks the synchronisation of a case with the checker on the emulated GPU, for its record."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from emugpu.check.checker import Checked
from emugpu.launch.check import CheckOptions, check
from emugpu.launch.launching import EmulationOptions
from harness.compile.artifacts import Artifact, make_launchable
from harness.run.case import Request

SCHEDULES = 2
"""The order of issue and a random one. The findings of the checker hardly depend on the schedule."""
KEPT = 3
"""Number of findings in a record, the most severe ones; the others are counted."""


def check_soundness(request: Request, artifact: Artifact) -> dict[str, Any]:
    """Runs the checker, even if the case itself is measured elsewhere. Returns the field ``soundness``
    (results/README.md).
    """
    what = make_launchable(artifact, request.shape, request.inputs, request.seed)
    (found,) = check([what], CheckOptions(SCHEDULES, EmulationOptions(seed=request.seed)))
    return as_field(found)


def as_field(found: Checked) -> dict[str, Any]:
    """Returns the findings of a check, for a record."""
    errors, warnings = found.report.errors, found.report.warnings
    return {
        "schedules": found.schedules,
        "errors": len(errors),
        "warnings": len(warnings),
        "findings": [finding.as_dict() for finding in (*errors, *warnings)[:KEPT]],
        "failure": found.failure or None,
        "correct": found.correct,
    }


def is_checked(record: Mapping[str, Any]) -> bool:
    return bool(record.get("soundness"))


def what_is_unsound(record: Mapping[str, Any]) -> str:
    """Returns the errors of a record, or the reason why the check failed, in a few words. The text is empty if the case
    is sound or not checked.
    """
    found = record.get("soundness") or {}
    errors = found.get("errors", 0)
    if errors:
        first = found["findings"][0]
        count = "1 error" if errors == 1 else f"{errors} errors"
        return f"{count} of synchronisation: {first['rule']}: {first['message']}"
    if found.get("failure"):
        return f"the check did not come to its end: {found['failure']}"
    if found.get("correct") is False:
        return "the output is wrong under a schedule of the check"
    return ""
