"""What receives the events of a run: any callable that takes an event, or several of them as one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Protocol

Sink = Callable[[Any], None]
"""A consumer of events; its return value is ignored. It gets each event at once, unless it is a `DeferredSink`."""


class Batches(Protocol):
    """Takes parts of the trace of native code, and makes events only of the entries that it needs."""

    def take(self, batch: Any) -> None:
        """Takes an `emugpu.emulator.native.trace.Batch`."""

    def includes(self, event: Any) -> bool:
        """Returns whether an event that Python made may also come as an entry of the trace, if it can be one."""


class DeferredSink(ABC):
    """A sink that may get events some time after they happened, because it does not read the state of the machine. So
    the native engine can run a launch with this sink. It takes `events.Accesses` instead of each `events.Access`.
    """

    is_deferred = True
    """If False, it gets each event when it happens, as any other sink."""
    takes_local = True
    """If False, it gets no accesses to local memory of native code."""
    batches: Batches | None = None
    """Takes parts of the trace instead of the events of native code; None if nothing does."""

    @abstractmethod
    def __call__(self, event: Any) -> None:
        """Takes an event."""


def can_defer(sink: Sink | None) -> bool:
    """Returns whether the native engine can run a launch with this sink, or without one."""
    return sink is None or (isinstance(sink, DeferredSink) and sink.is_deferred)


def fan_out(sinks: tuple[Sink, ...]) -> Sink | None:
    """Returns one sink for all of them, or None if there are none."""
    return _Several(sinks) if len(sinks) > 1 else sinks[0] if sinks else None


class _Several(DeferredSink):
    def __init__(self, sinks: tuple[Sink, ...]) -> None:
        self._sinks = sinks
        self.is_deferred = all(map(can_defer, sinks))
        self.takes_local = any(not isinstance(sink, DeferredSink) or sink.takes_local for sink in sinks)

    def __call__(self, event: Any) -> None:
        for sink in self._sinks:
            sink(event)
