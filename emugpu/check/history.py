"""The history of a place in memory, and which new accesses do not fit it.

Places that are accessed together share a history, so that a history is looked at once for all of them: memories hold
numbers of histories. A history is never changed; an access leads to another one.

What is unordered is so under every schedule; which of the two accesses comes first in a run is chance. So that both
orders are called the same, the *generation* decides: the contents that a reader was meant to find. A reader that has
not waited for any write of a generation, or that comes after one that has read it and was waited for, is too early;
else it is the write that comes too early. So it is where the writer knows that the read was issued.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from emugpu.check.clocks import ORDER, VISIBLE, Clock, Components, Rows, column
from emugpu.emulator.machine.events import Agent, Site

GENERIC = ("generic", "cp.async", "st.async")
"""Kinds of the generic proxy; cp.async without bulk is one (PTX ISA 9.7.9.25.1), st.async another (9.7.9.12)."""
TENSOR = ("mma", "cp", "load", "keep")
"""Asynchronous tcgen05 operations."""
SCOPES = {"cta": 0, "cluster": 1, "gpu": 2, "sys": 3}
ACQUIRES = ("acquire", "acq_rel", "sc")
RELEASES = ("release", "acq_rel", "sc")
WEAK = -1
UNORDERED_KEPT = 8
"""Unordered accesses of each kind that a history keeps."""
READS_KEPT = 64
"""Readers since the last write that a history keeps: the youngest."""


@dataclass(slots=True, eq=False)
class Record:
    """An access: component and time, and what is needed to tell about it.

    ``kind``: "generic", or what an asynchronous operation does: "copy" (TMA load), "store" (bulk store), "mma",
    "wgmma", "answer" (launch control), "load", "keep" (tcgen05.ld, .st), "cp" (tcgen05.cp), "cp.async", "alloc",
    "free", "st.async" (or red.async), "map" (a tensor copy reads its tensor map).

    ``order``: what its agent knew of its own cluster, if that was kept. ``scope``: of an atomic, relaxed,
    volatile, acquire or release access, else WEAK. ``shape``: of an MMA: its accumulator and size. ``stored``: of a
    store, a number for its addresses and values. ``issue``: of an asynchronous operation, the component and time of the
    thread that has issued it, as whoever comes after the issue knows them.
    """

    space: Components
    who: int
    time: int
    kind: str
    writes: bool
    agent: Agent
    site: Site
    order: Rows | None = None
    scope: int = WEAK
    stored: int | None = None
    shape: object = None
    issue: tuple[int, int] | None = None
    id: int = field(default_factory=count(1).__next__, init=False)

    def knew(self, other: Record) -> bool:
        """Whether its agent had the other access behind it."""
        if self.order is None or other.space is not self.space:
            return False
        return column(self.order, other.who) >= other.time

    def knew_issue(self, other: Record) -> bool:
        """Whether its agent had the issue of the other operation behind it."""
        if self.order is None or other.issue is None or other.space is not self.space:
            return False
        who, time = other.issue
        return column(self.order, who) >= time

    def agrees(self, other: Record) -> bool:
        """Whether both are strong, each in a scope that holds the other one, so that they do not race."""
        needed = needed_scope(self.agent, other.agent)
        return self.scope >= needed and other.scope >= needed


def needed_scope(one: Agent, other: Agent) -> int:
    """The narrowest scope that holds both."""
    if one.cluster != other.cluster:
        return SCOPES["gpu"]
    return SCOPES["cluster"] if one.cta != other.cta else SCOPES["cta"]


@dataclass(slots=True, eq=False)
class Observer:
    """Says who makes an access, and what it knows.

    ``pipe``: a component whose actions of the same ``shape`` complete in order with it, as do tcgen05.cp and MMAs
    behind it (PTX ISA 9.7.16.6: MMAs with the same accumulator and shape).
    """

    clock: Clock
    pipe: int = -1
    tensor: Rows | None = None
    shape: object = None

    def misses(self, write: Record) -> str:
        """Says what keeps the read of a tensor map from seeing a write that happened before."""
        return ""

    def follows(self, record: Record) -> bool:
        """Whether the access happened before."""
        in_pipe = record.who == self.pipe and record.space is self.clock.space
        if in_pipe and (record.kind == "cp" or record.shape == self.shape):
            return True
        return self.clock.knows(record.space, record.who, record.time, ORDER)

    def sees(self, record: Record) -> bool:
        """Whether it happened before, and what it has written is visible to the generic proxy."""
        return self.clock.knows(record.space, record.who, record.time, VISIBLE)


class Reads(NamedTuple):
    """Holds reads by one component at one instruction: the first and the last."""

    first: Record
    last: Record


class History(NamedTuple):
    """Says who has accessed a place.

    ``writes``: the last, and those unordered with it. ``reads``: since then, and unordered. ``old``: writes and
    reads of the generation before.
    """

    writes: tuple[Record, ...] = ()
    reads: tuple[Reads, ...] = ()
    old: tuple[tuple[Record, ...], tuple[Reads, ...]] | None = None


UNTOUCHED = History()


def different(numbers: NDArray[np.int32]) -> list[int]:
    """Returns the numbers that occur, ascending."""
    ordered = np.sort(numbers)
    return [int(ordered[0]), *ordered[1:][ordered[1:] != ordered[:-1]].tolist()]


class Conflict(NamedTuple):
    """Holds two unordered accesses.

    ``late``: the write comes too soon after the read rather than the read before it.
    """

    old: Record
    new: Record
    late: bool


class Histories:
    """Keeps histories by number; 0 is that of an untouched place."""

    def __init__(self, asked: tuple[str, ...]) -> None:
        self.all: list[History] = [UNTOUCHED]
        self._asked = asked
        self._next: dict[tuple[int, int], int] = {}
        self.conflicts: list[Conflict] = []
        """Of the last step, unordered accesses."""
        self.ordered: list[tuple[Record, Record]] = []
        """Of the last step, pairs that are ordered, of which the first is of a kind that more is ``asked`` of.

        Of the generic proxy's own accesses nothing is asked but that a read sees what was written.
        """

    @property
    def has_found(self) -> bool:
        return bool(self.conflicts or self.ordered)

    def clear(self) -> None:
        self.conflicts.clear()
        self.ordered.clear()

    def known(self, number: int, access: Record) -> int | None:
        """The history after an access that was seen before."""
        return self._next.get((number, access.id))

    def step(self, number: int, access: Record, observer: Observer) -> int:
        """Returns the history after an access. Conflicts are to be looked at if it was not seen before."""
        found = self.known(number, access)
        if found is not None:
            return found
        key = (number, access.id)
        history = self.all[number]
        new = self._write(history, access, observer) if access.writes else self._read(history, access, observer)
        if new is history:
            self._next[key] = number
            return number
        self.all.append(new)
        self._next[key] = len(self.all) - 1
        return len(self.all) - 1

    def _read(self, history: History, read: Record, observer: Observer) -> History:
        is_generic = read.kind in GENERIC
        for write in history.writes:
            if is_generic and observer.sees(write):
                continue
            if observer.follows(write):
                if write.kind in self._asked:
                    self.ordered.append((write, read))
            elif not write.agrees(read):
                old_writes, old_reads = history.old or ((), ())
                self.conflicts.append(Conflict(write, read, _is_late(read, write, old_writes, old_reads)))
        for n, entry in enumerate(history.reads):
            if entry.last.who == read.who and entry.last.site is read.site and entry.last.space is read.space:
                if entry.last is read:
                    return history
                reads = (*history.reads[:n], Reads(entry.first, read), *history.reads[n + 1 :])
                return History(history.writes, reads, history.old)
        return History(history.writes, (*history.reads[1 - READS_KEPT :], Reads(read, read)), history.old)

    def _write(self, history: History, write: Record, observer: Observer) -> History:
        kept_writes, kept_reads = [], []
        asked = () if write.kind in GENERIC else self._asked
        for earlier in history.writes:
            if earlier is write:
                return history
            if observer.follows(earlier) or (earlier.kind, write.kind) == ("free", "alloc"):
                # An allocation waits by itself until its columns have been freed.
                if earlier.kind in asked:
                    self.ordered.append((earlier, write))
            else:
                kept_writes.append(earlier)
                if not earlier.agrees(write):
                    self.conflicts.append(Conflict(earlier, write, False))
        for entry in history.reads:
            read = entry.last
            if observer.follows(read):
                if read.kind in asked:
                    self.ordered.append((read, write))
                continue
            kept_reads.append(entry)
            if not read.agrees(write):
                self.conflicts.append(Conflict(read, write, _is_late(read, write, history.writes, history.reads)))
        writes = (write, *kept_writes[:UNORDERED_KEPT])
        return History(writes, tuple(kept_reads[:UNORDERED_KEPT]), (history.writes, history.reads))

    def keep_only(self, numbers: Iterable[int]) -> NDArray[np.int32]:
        """Forget all other histories; returns the new number of each, and -1 for those that are gone, and for -1."""
        kept = sorted({0, *numbers} - {-1})
        self.all = [self.all[n] for n in kept]
        self._next.clear()
        new: NDArray[np.int32] = np.full(kept[-1] + 2, -1, np.int32)
        new[kept] = np.arange(len(kept))
        return new


def _is_late(read: Record, write: Record, writes: tuple[Record, ...], reads: tuple[Reads, ...]) -> bool:
    """Whether the read belongs to the generation of these writes and reads, which the unordered write ends. One that
    was issued before the write does, however late it is made.
    """
    if write.knew_issue(read):
        return True
    if not any(read.knew(w) for w in writes if w is not write):
        return False
    return not any(
        entry.first.who == read.who and entry.first.time < read.time and write.knew(entry.first) for entry in reads
    )
