"""What a timed run tells those who want to know where its time goes."""

from __future__ import annotations

from typing import Any, Protocol


class Trace(Protocol):
    """Is told what happens, with cycles; in no particular order where several SMs are at work.

    ``attach``: the machine that it is about to watch. ``event``: what the emulator tells its sinks.
    """

    def attach(self, machine: Any) -> None: ...
    def event(self, event: Any) -> None: ...
    def cluster_started(self, cluster: Any, at: float) -> None: ...
    def ran(self, fragment: Any, block: int, start: float, end: float) -> None: ...
    def waited(self, fragment: Any, site: Any, since: float, until: float) -> None: ...
    def submitted(self, operation: Any, at: float, done: float) -> None: ...
    def completed(self, operation: Any, at: float) -> None: ...


class NoTrace:
    """Does not want to know."""

    def attach(self, machine: Any) -> None:
        pass

    def event(self, event: Any) -> None:
        pass

    def cluster_started(self, cluster: Any, at: float) -> None:
        pass

    def ran(self, fragment: Any, block: int, start: float, end: float) -> None:
        pass

    def waited(self, fragment: Any, site: Any, since: float, until: float) -> None:
        pass

    def submitted(self, operation: Any, at: float, done: float) -> None:
        pass

    def completed(self, operation: Any, at: float) -> None:
        pass
