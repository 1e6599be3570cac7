"""Groups of a thread's cp.async copies (PTX ISA 9.7.9.25.3).

Groups belong to threads, but the lanes of a warp mostly commit and wait together. So there is one queue for each set of
lanes with the same history; it is divided when some of them do something alone.
"""

from __future__ import annotations

from collections import deque
from typing import Any


class Copy:
    """One cp.async instruction of some lanes, under way until ``done``."""

    __slots__ = ("done",)

    def __init__(self) -> None:
        self.done = False


class CopyQueue:
    """Of the lanes of a mask: copies in no group yet, and committed groups that may be pending, oldest first."""

    __slots__ = ("committed", "mask", "number", "open")

    def __init__(self, mask: int) -> None:
        self.mask = mask
        self.open: list[Copy] = []
        self.committed: deque[list[Copy]] = deque()
        self.number = 0
        """Groups committed so far."""

    def divide(self, mask: int) -> CopyQueue:
        """Give some lanes a queue of their own, with the same history."""
        other = CopyQueue(self.mask & mask)
        other.open = list(self.open)
        other.committed = deque(list(group) for group in self.committed)
        other.number = self.number
        self.mask &= ~mask
        return other

    def commit(self) -> None:
        self.committed.append(self.open)
        self.number += 1
        self.open = []

    def satisfied(self, allowed: int) -> bool:
        """Whether at most ``allowed`` of the youngest groups are still pending."""
        committed = self.committed
        while committed and all(copy.done for copy in committed[0]):
            committed.popleft()
        older = len(committed) - allowed
        return all(copy.done for group in list(committed)[: max(older, 0)] for copy in group)

    @property
    def all_done(self) -> bool:
        return all(copy.done for group in (*self.committed, self.open) for copy in group)


class CopyQueues:
    """Those of a warp. ``waiters``: fragments that wait for copies."""

    __slots__ = ("queues", "waiters")

    def __init__(self) -> None:
        self.queues: list[CopyQueue] = []
        self.waiters: list[Any] = []

    def of(self, mask: int) -> list[CopyQueue]:
        """The queues of these lanes, and of no others."""
        found = []
        for queue in list(self.queues):
            if not queue.mask & mask:
                continue
            if queue.mask & ~mask:
                queue = queue.divide(mask)
                self.queues.append(queue)
            found.append(queue)
            mask &= ~queue.mask
        if mask:
            self.queues.append(CopyQueue(mask))
            found.append(self.queues[-1])
        return found
