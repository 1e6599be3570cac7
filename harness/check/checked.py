"""What a check of a program has given, over all its schedules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from harness.check.findings import Report, merged


@dataclass(frozen=True)
class Checked:
    """``label``: the program and how it is launched, in one line. ``about``: the same as data. ``file``: of its PTX.
    ``failure``: why a run did not come to its end, or nothing. ``correct``: whether the result is right, None without
    one.
    """

    label: str
    about: dict[str, Any]
    file: str
    report: Report
    failure: str
    correct: bool | None
    schedules: int = 1

    @property
    def is_sound(self) -> bool:
        """Without errors, to its end, and not wrong."""
        return not self.report.errors and not self.failure and self.correct is not False

    def as_dict(self) -> dict[str, Any]:
        return {
            **self.about,
            "schedules": self.schedules,
            "failure": self.failure or None,
            "correct": self.correct,
            "findings": [finding.as_dict() for finding in self.report.findings],
        }


def together(runs: Sequence[Checked]) -> Checked:
    """Several schedules of one program."""
    verdicts = {run.correct for run in runs}
    return replace(
        runs[0],
        report=merged([run.report for run in runs]),
        failure=next((run.failure for run in runs if run.failure), ""),
        correct=False if False in verdicts else None if None in verdicts else True,
        schedules=len(runs),
    )


def chosen(checked: Checked, strict: bool, notes: bool, allow: Sequence[str]) -> Checked:
    """The same with warnings as errors and with notes, if asked for, and without the rules that are allowed."""
    findings = tuple(
        replace(finding, severity="error") if strict and finding.severity == "warning" else finding
        for finding in checked.report.findings
        if finding.rule not in allow and (notes or finding.severity != "note")
    )
    return replace(checked, report=Report(findings))
