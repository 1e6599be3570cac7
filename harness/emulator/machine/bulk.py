"""Bulk groups of one thread (PTX ISA 9.7.9.25: groups belong to the thread that commits them)."""

from __future__ import annotations

from collections import deque
from typing import Any


class BulkGroup:
    """Copies whose source is still being read, and copies that are not yet written."""

    __slots__ = ("reading", "writing")

    def __init__(self) -> None:
        self.reading = 0
        self.writing = 0


class BulkQueue:
    """The open group, and those committed that may be pending, oldest first. ``number``: groups committed so far."""

    __slots__ = ("committed", "number", "open", "waiters")

    def __init__(self) -> None:
        self.open = BulkGroup()
        self.committed: deque[BulkGroup] = deque()
        self.number = 0
        self.waiters: list[Any] = []

    def commit(self) -> None:
        self.committed.append(self.open)
        self.number += 1
        self.open = BulkGroup()

    def satisfied(self, allowed: int, reads_only: bool) -> bool:
        """Whether at most ``allowed`` of the youngest groups are still pending."""
        committed = self.committed
        while committed and not committed[0].writing:
            committed.popleft()  # what has been written has been read
        older = len(committed) - allowed
        for index, group in enumerate(committed):
            if index >= older:
                break
            if group.reading or (group.writing and not reads_only):
                return False
        return True

    @property
    def reading(self) -> int:
        """Copies whose source is still being read."""
        return self.open.reading + sum(group.reading for group in self.committed)

    @property
    def reads_in_flight(self) -> int:
        """Committed groups whose source is still being read."""
        return sum(1 for group in self.committed if group.reading)
