"""Who waits for what, and who may run."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any, Generic, Protocol, TypeVar

SUSPENDED = object()
"""What a blocking operation returns when its warp has to wait."""


class Waiting:
    """Why somebody is suspended: the barrier-like object, a sentence, and the instruction's site."""

    __slots__ = ("on", "site", "what")

    def __init__(self, on: Any, what: str, site: Any):
        self.on = on
        self.what = what
        self.site = site


class Waiter(Protocol):
    """Whoever can be suspended."""

    waiting: Waiting | None


W = TypeVar("W", bound=Waiter)


class Wakeups(Generic[W]):
    """``ready`` holds who can run, longest waiting first. ``changes`` counts what a polling loop might see."""

    def __init__(self) -> None:
        self.ready: deque[W] = deque()
        self.changes = 0

    def suspend(self, waiter: W, on: Any, what: str, site: Any) -> object:
        """Record why the waiter cannot go on; whoever lets it go on keeps it in a list of its own."""
        waiter.waiting = Waiting(on, what, site)
        return SUSPENDED

    def resume(self, waiter: W) -> None:
        """It may run again. A waiter that others have woken already stays as it is."""
        if waiter.waiting is not None:
            waiter.waiting = None
            self.ready.append(waiter)

    def resume_all(self, waiters: Iterable[W]) -> None:
        for waiter in waiters:
            self.resume(waiter)

    def start(self, waiter: W) -> None:
        """It runs for the first time, or goes on at another place."""
        waiter.waiting = None
        self.ready.append(waiter)
