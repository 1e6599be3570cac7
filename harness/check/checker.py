"""The checker: a sink of the event stream that finds what no run has to show.

It builds the happens-before relation of a run and compares every access with those that came before. What it reports
is unordered whatever order the run has chosen. It observes only: nothing in the machine knows it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from harness.check.findings import Report
from harness.check.launch import Launch
from harness.emulator.machine.events import GridStarted


class Checker:
    """Give it to ``Device.launch(sinks=[...])``, one for each launch; then ask for its `report`.

    ``regions``: names of parts of dynamic shared memory (by default those of the launch). ``roles``: of warps, each
    with a ``name`` and ``warps``.
    """

    def __init__(self, regions: Sequence[Any] = (), roles: Sequence[Any] = ()) -> None:
        self._regions = tuple(regions)
        self._roles = tuple(roles)
        self._launch: Launch | None = None
        self._take: dict[type, Callable[[Any], None]] = {GridStarted: self._started}

    def __call__(self, event: Any) -> None:
        take = self._take.get(type(event))
        if take is not None:
            take(event)

    def _started(self, event: GridStarted) -> None:
        self._launch = Launch(event, self._regions, self._roles)
        self._take = self._launch.take

    def report(self) -> Report:
        """What has been found. A run that has not come to its end is looked at as far as it went."""
        return Report(()) if self._launch is None else self._launch.report()

    def failed(self, error: Exception) -> None:
        """The run has ended with this error: what it says about synchronisation is a finding, too."""
        if self._launch is not None:
            self._launch.failed(error)
