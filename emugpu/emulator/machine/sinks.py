"""Several sinks of one launch, as one."""

from __future__ import annotations

from typing import Any

from emugpu.emulator.machine.events import DeferredSink, Sink, can_defer


def fan_out(sinks: tuple[Sink, ...]) -> Sink | None:
    """Returns one sink for all of them, or None if there are none."""
    return _Several(sinks) if len(sinks) > 1 else sinks[0] if sinks else None


class _Several(DeferredSink):
    def __init__(self, sinks: tuple[Sink, ...]) -> None:
        self._sinks = sinks
        self.is_deferred = all(map(can_defer, sinks))

    def __call__(self, event: Any) -> None:
        for sink in self._sinks:
            sink(event)
