"""Copies that a thread has in flight: bulk groups and groups of cp.async copies (PTX ISA 9.7.9.25).

Groups belong to the thread that commits them, but the lanes of a warp mostly commit and wait for cp.async copies
together. So each set of lanes with the same history has one queue, which is divided when some of the lanes do something
alone.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True, eq=False)
class BulkGroup:
    """One bulk group: the number of copies whose source is still being read, and of copies not yet written."""

    reading: int = 0
    writing: int = 0


@dataclass(slots=True, eq=False)
class BulkQueue:
    """The open group, and committed groups that may be pending, oldest first. ``number``: groups committed so far."""

    open: BulkGroup = field(default_factory=BulkGroup)
    committed: deque[BulkGroup] = field(default_factory=deque)
    number: int = 0
    waiters: list[Any] = field(default_factory=list)

    def commit(self) -> None:
        self.committed.append(self.open)
        self.number += 1
        self.open = BulkGroup()

    def satisfied(self, allowed: int, reads_only: bool) -> bool:
        """Returns whether at most ``allowed`` of the youngest groups are still pending."""
        committed = self.committed
        while committed and not committed[0].writing:
            committed.popleft()  # a copy that has been written has also been read
        older = len(committed) - allowed
        for index, group in enumerate(committed):
            if index >= older:
                break
            if group.reading or (group.writing and not reads_only):
                return False
        return True

    @property
    def reading(self) -> int:
        """The number of copies whose source is still being read."""
        return self.open.reading + sum(group.reading for group in self.committed)

    @property
    def reads_in_flight(self) -> int:
        """The number of committed groups whose source is still being read."""
        return sum(1 for group in self.committed if group.reading)


# ---- cp.async (PTX ISA 9.7.9.25.3) ----


@dataclass(slots=True, eq=False)
class CopyQueue:
    """The groups of the mask's lanes. A copy is its number in the warp, whose copies land in order.

    last: their last copy so far. committed: for each group that may be pending, oldest first, the last copy at its
    commit. number: groups committed so far.
    """

    mask: int
    last: int = 0
    committed: deque[int] = field(default_factory=deque)
    number: int = 0

    def divide(self, mask: int) -> CopyQueue:
        """Moves some lanes into a queue of their own with the same history, and returns that queue."""
        other = CopyQueue(self.mask & mask, self.last, self.committed.copy(), self.number)
        self.mask &= ~mask
        return other

    def commit(self) -> None:
        self.committed.append(self.last)
        self.number += 1

    def awaited(self, allowed: int, landed: int) -> int:
        """Returns the copy with which at most ``allowed`` groups are left pending, or no copy (-1); 0 if it is so."""
        committed = self.committed
        while committed and committed[0] <= landed:
            committed.popleft()
        if allowed < 0:
            return self.last
        return committed[-1 - allowed] if len(committed) > allowed else 0


@dataclass(slots=True, eq=False)
class CopyQueues:
    """The queues of a warp, and how many copies it has issued, of which the first ones have landed.

    waiters: the fragments that wait, each with the copy for which it does.
    """

    queues: list[CopyQueue] = field(default_factory=list)
    issued: int = 0
    landed: int = 0
    waiters: list[tuple[Any, int]] = field(default_factory=list)

    def land(self, wakes_early: bool) -> list[Any]:
        """Notes that the next copy has landed. Returns the waiters that look again: all if it wakes early."""
        self.landed += 1
        found = [f for f, awaited in self.waiters if wakes_early or awaited <= self.landed]
        if found:
            self.waiters = [waiter for waiter in self.waiters if waiter[0] not in found]
        return found

    def of(self, mask: int) -> list[CopyQueue]:
        """Returns the queues of these lanes and of no others."""
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
