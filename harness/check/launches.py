"""Several launches of a program, each checked by itself."""

from __future__ import annotations

from typing import Any

from harness.check.checker import Checker
from harness.check.findings import Report, merged
from harness.emulator.machine.events import GridStarted


class Launches:
    """A sink for all launches of a program. Between launches everything is ordered."""

    def __init__(self) -> None:
        self._checkers: list[Checker] = []

    def __call__(self, event: Any) -> None:
        if isinstance(event, GridStarted):
            self._checkers.append(Checker())
        self._checkers[-1](event)

    def failed(self, error: Exception) -> None:
        """The last launch has ended with this error."""
        if self._checkers:
            self._checkers[-1].failed(error)

    def report(self) -> Report:
        return merged([checker.report() for checker in self._checkers])
