"""What an observer of a run is told; the hook for race checkers, timelines and timing models.

Every memory, synchronisation and asynchronous operation is reported when it is issued by a thread. Asynchronous ones
are reported again when they start (their operands are read) and when they complete (their results and signals land).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True)
class Access:
    """Bytes (or tensor-memory columns) an operation touches.

    ``space``: "global", "shared" or "tmem". ``cta``: cluster rank for shared and tmem, -1 for global. ``start`` and
    ``size``: bytes, or columns for tmem. ``mode``: "read", "write" or "signal" (an mbarrier).
    """

    space: str
    cta: int
    start: int
    size: int
    mode: str


@dataclass(frozen=True)
class Operation:
    """One operation of one warp fragment."""

    id: int
    """Unique in a launch; the same operation keeps it from issue to completion."""
    kind: str
    """Instruction family and verb: "tma.load", "tma.store", "mma", "commit", "mbarrier.arrive", "shared.write", ..."""
    line: int
    """PTX line."""
    cluster: tuple[int, int, int]
    cta: int
    """Rank in the cluster."""
    warp: int
    lanes: int
    """Mask of the lanes that execute it."""
    accesses: tuple[Access, ...] = field(default=())


class Observer(Protocol):
    """Implement any of these and pass the object to ``Device.launch(observers=[...])``."""

    def issued(self, operation: Operation) -> None:
        """A thread has executed the instruction."""

    def started(self, operation: Operation) -> None:
        """An asynchronous operation reads its operands now."""

    def completed(self, operation: Operation) -> None:
        """The operation's results and signals are visible now. Synchronous operations complete at issue."""
