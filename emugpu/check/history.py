"""The history of a place in memory, and the conflicts of a new access with it.

Places that are accessed together share a history, so one step checks all of them; memories store the numbers of
histories. A history never changes: an access leads to another history.

Unordered accesses are unordered under every schedule, but the schedule decides which of the two comes first in a run.
So that both orders give the same finding, the *generation* decides, which is the contents that a reader was meant to
find. The read is too early if its agent has not waited for any write of the generation, or if it follows a read of the
same component that the writer has waited for. Otherwise the write is too early. The write is also too early if its
agent knows that the read was issued.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from types import MappingProxyType
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from emugpu.check.clocks import ORDER, OVER, VISIBLE, Clock, Components, Rows, column
from emugpu.check.record import WEAK, Record
from emugpu.check.same_values import are_alike, has_one_value, repeats
from emugpu.check.signals_for_lanes import Behind
from emugpu.emulator.machine.lanes import FULL_MASK

GENERIC = ("generic", "cp.async", "st.async")
"""Kinds of accesses through the generic proxy, with non-bulk cp.async (PTX ISA 9.7.9.25.1) and st.async (9.7.9.12)."""
TENSOR = ("mma", "cp", "load", "keep")
"""Asynchronous tcgen05 operations."""
WAITED_FOR = ("generic", "copy", "st.async", "store")
"""Kinds of accesses that each lane has to wait for itself."""
UNORDERED_KEPT = 8
"""A history keeps this many unordered accesses of each kind."""
READS_KEPT = 64
"""A history keeps this many reads since the last write, the latest ones."""


@dataclass(slots=True, eq=False)
class Observer:
    """The agent of an access and its knowledge.

    ``pipe`` is a component whose actions of the same ``shape`` complete in order with the access, as tcgen05.cp and
    later MMAs do (PTX ISA 9.7.16.6: MMAs with the same accumulator and shape). ``tensor`` holds the operations on
    tensor memory that the access follows by tcgen05.fence, whatever orders execution in between (9.7.16.6.3).
    ``behind`` holds lanes of the agent that know less than ``clock``.
    """

    clock: Clock
    pipe: int = -1
    tensor: Rows | None = None
    shape: object = None
    behind: tuple[Behind, ...] = ()

    def clusters(self) -> tuple[Components, ...]:
        """Returns the components of the clusters of which the agent may know an action."""
        return (self.clock.space, *(self.clock.foreign or ()))

    def misses(self, write: Record) -> str:
        """Returns why the read of a tensor map does not see an earlier write, or ""."""
        return ""

    def follows(self, record: Record) -> bool:
        """Returns whether the recorded access happened before."""
        in_pipe = record.who == self.pipe and record.space is self.clock.space
        if in_pipe and (record.kind == "cp" or record.shape == self.shape):
            return True
        if self.clock.knows(record.space, record.who, record.time, ORDER):
            return True
        if self.tensor is None or record.space is not self.clock.space:
            return False
        return column(self.tensor, record.who) >= record.time

    def waits_for_lanes(self, earlier: Record, access: Record, lanes: int) -> Behind | None:
        """Returns those of some lanes of an access that do not know of an earlier one, which others of their warp know
        of.
        """
        if access.kind != "generic" or earlier.kind not in WAITED_FOR:
            return None
        if earlier.kind == "generic" and earlier.agent[:3] == access.agent[:3]:
            return None
        for one in self.behind:
            knows = one.clock.knows(earlier.space, earlier.who, earlier.time)
            if one.lanes & lanes and not knows and not one.have_met(access.site):
                return one
        return None

    def hears_of(
        self, earlier: Record, access: Record, lanes_of_earlier: int = FULL_MASK, lanes: int = FULL_MASK
    ) -> bool:
        """Returns whether what orders an earlier access before this one stands for these lanes of both."""
        is_passed_on = earlier.is_passed_on(self.clock, access.agent, earlier.agent.lanes & lanes_of_earlier)
        return is_passed_on and not (self.behind and self.waits_for_lanes(earlier, access, access.agent.lanes & lanes))

    def sees(self, record: Record) -> bool:
        """Returns whether the recorded access happened before and its write is visible to the generic proxy."""
        return self.clock.knows(record.space, record.who, record.time, VISIBLE)

    def is_over(self, record: Record) -> bool:
        """Returns whether the recorded access happened before, by scopes that hold both threads."""
        return self.clock.knows(record.space, record.who, record.time, OVER)

    def may_overwrite(self, record: Record, write: Record) -> bool:
        """Returns whether the scopes on the path from an access of another CTA to a write hold both threads."""
        if record.kind not in GENERIC or write.kind not in GENERIC or record.agent[:2] == write.agent[:2]:
            return True
        return record.agrees(write) or self.is_over(record)


class Reads(NamedTuple):
    """The first and the last read by one component at one instruction; ``is_one``: there is no other."""

    first: Record
    last: Record
    is_one: bool = True

    def saw(self, write: Record) -> bool:
        """Returns whether a write before the reads that are kept happened before all of them."""
        if write.who == self.first.who and write.space is self.first.space:
            return True
        return self.first.knew(write)


Alike = Mapping[Components, Mapping[int, Record]]
NO_WRITES: Alike = MappingProxyType({})


class AccessHistory(NamedTuple):
    """The accesses to a place.

    ``writes`` holds the last write and the writes unordered with it, ``reads`` the reads since then and the unordered
    ones, and ``old`` the writes and reads of the previous generation. ``found`` holds the strong reads that have found
    the value of the last write, the first of each component; an atomic has found its own. ``alike`` holds
    the first write of each component among the unordered ones that ``writes`` has no room for, if all write the same,
    by the components' cluster and number.
    """

    writes: tuple[Record, ...] = ()
    reads: tuple[Reads, ...] = ()
    old: tuple[tuple[Record, ...], tuple[Reads, ...]] | None = None
    found: tuple[Record, ...] = ()
    alike: Alike = NO_WRITES

    def is_found(self, number: int, observer: Observer) -> bool:
        """Returns whether an observer follows a strong read that has found the write of this number in ``writes``.

        The write then happened before the observer, with or without a release: it precedes the read in observation
        order (PTX ISA 8.9.4), and so in causality order whatever follows the read (8.9.5). Atomics continue what they
        have found.
        """
        write = self.writes[number]
        for later in reversed(self.writes[:number]):
            if not (later.is_atomic and write.agrees(later)):
                return False
            if observer.is_over(later):
                return True
        return any(write.agrees(read) and observer.is_over(read) for read in self.found)

    def with_finder(self, read: Record) -> AccessHistory:
        """Returns the history after a strong read."""
        if read.scope == WEAK or not self.writes or self.writes[0].scope == WEAK or len(self.found) == READS_KEPT:
            return self
        if any(one.who == read.who and one.space is read.space for one in self.found):
            return self
        return self._replace(found=(*self.found, read))


UNTOUCHED = AccessHistory()


def note_replaced(write: Record, earlier: Iterable[Record], unordered: Iterable[Record], clock: Clock) -> None:
    """Notes the writes that a store replaces, and those that it is in no order with."""
    for one in earlier:
        stamp = (one.space, one.who, one.time)
        write.replaced |= one.replaced if repeats(one, write) else {stamp}
    stamps = {stamp for one in unordered if one.replaced for stamp in one.replaced}
    write.is_doubtful |= not all(clock.knows(*stamp, ORDER) for stamp in stamps)


def is_sure(write: Record, others: Iterable[Record], saw: Callable[[Record], bool]) -> bool:
    """Returns whether a reader finds the value of a write in any case: it has seen one of the others, which are in no
    order with the write, and that one has the same value. The reader finds it or a later one (PTX ISA 8.10, causality).

    ``saw`` says whether the reader has seen a write. Writes of the same value one after the other do not count: their
    values may be the same by chance. Strong writes do not count either: they may be in no order with a strong write of
    another value, and that is no race.
    """
    if write.scope != WEAK or write.is_doubtful or not has_one_value(write):
        return False
    seen = (one for one in others if one is not write and not one.is_doubtful and saw(one))
    return any(are_alike(one, write) and has_one_value(one) for one in seen)


def different(numbers: NDArray[np.int32]) -> list[int]:
    """Returns the distinct numbers, ascending."""
    ordered = np.sort(numbers)
    return [int(ordered[0]), *ordered[1:][ordered[1:] != ordered[:-1]].tolist()]


def _of_clusters(alike: Alike, clusters: Iterable[Components]) -> Iterator[Iterable[Record]]:
    """Yields the writes by components of some clusters."""
    return (alike[space].values() for space in clusters if space in alike)


def _without_ordered(alike: Alike, observer: Observer) -> Alike:
    """Returns the writes that an observer does not follow."""
    if not alike:
        return alike
    left = dict(alike)
    for space in observer.clusters():
        writes = left.pop(space, {})
        kept = {who: one for who, one in writes.items() if not observer.follows(one)}
        if kept:
            left[space] = kept
    return left


def _with_writes(alike: Alike, writes: Sequence[Record]) -> Alike:
    """Adds writes, the latest first, of components that have none yet."""
    found = dict(alike)
    for one in reversed(writes):
        found[one.space] = {one.who: one, **found.get(one.space, {})}
    return found


class Conflict(NamedTuple):
    """Two unordered accesses.

    ``late``: the write comes too early after the read; otherwise the read comes too early. ``reads``: the read stands
    for itself, for all reads of its warp by its instruction, or for any reads. ``is_alike``: the reader finds the value
    that the write stores in any case.
    """

    old: Record
    new: Record
    late: bool
    reads: Literal["one", "of warp", "any"] = "any"
    is_alike: bool = False


class Histories:
    """Numbers the histories; 0 is the history of an untouched place.

    Accesses of the kinds in ``asked`` get further checks if a later access is ordered with them.
    """

    def __init__(self, asked: tuple[str, ...]) -> None:
        self.all: list[AccessHistory] = [UNTOUCHED]
        self._asked = asked
        self._next: dict[tuple[int, int], int] = {}
        self.conflicts: list[Conflict] = []
        """The unordered accesses that the last step found."""
        self.ordered: list[tuple[Record, Record]] = []
        """The ordered pairs of the last step whose first access is of a kind in ``asked``.

        A pair of generic accesses is in it only if a scope between them is too narrow, the read may not see the write,
        or the read is a load by ld.global.nc.
        """

    @property
    def has_found(self) -> bool:
        return bool(self.conflicts or self.ordered)

    def clear(self) -> None:
        self.conflicts.clear()
        self.ordered.clear()

    def known(self, number: int, access: Record) -> int | None:
        """Returns the number of the history after an access that was stepped before, or None."""
        return self._next.get((number, access.id))

    def step(self, number: int, access: Record, observer: Observer) -> int:
        """Returns the number of the history after an access.

        If the access is new, the caller must handle `conflicts` and `ordered`.
        """
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

    def _read(self, history: AccessHistory, read: Record, observer: Observer) -> AccessHistory:
        is_generic = read.kind in GENERIC
        for number, write in enumerate(history.writes):
            passed = observer.hears_of(write, read)
            if passed and is_generic and observer.sees(write) and not read.site.is_incoherent:
                continue
            if passed and observer.follows(write):
                is_read = is_generic and history.is_found(number, observer)
                if (write.kind in self._asked and not is_read) or read.site.is_incoherent:
                    self.ordered.append((write, read))
            elif read.site.is_incoherent and history.is_found(number, observer):
                self.ordered.append((write, read))
            elif not write.is_morally_strong_with(read) and not history.is_found(number, observer):
                old_writes, old_reads = history.old or ((), ())
                is_late = _is_late(read, write, old_writes, old_reads)
                seen = chain(history.writes, *_of_clusters(history.alike, observer.clusters()))
                is_alike = is_sure(write, seen, observer.sees)
                self.conflicts.append(Conflict(write, read, is_late, "one", is_alike))
        history = history.with_finder(read)
        for n, entry in enumerate(history.reads):
            if entry.last.who == read.who and entry.last.site is read.site and entry.last.space is read.space:
                if entry.last is read:
                    return history
                reads = (*history.reads[:n], Reads(entry.first, read, False), *history.reads[n + 1 :])
                return history._replace(reads=reads)
        return history._replace(reads=(*history.reads[1 - READS_KEPT :], Reads(read, read)))

    def _write(self, history: AccessHistory, write: Record, observer: Observer) -> AccessHistory:
        kept_writes, kept_reads = [], []
        asked = () if write.kind in GENERIC else self._asked
        for number, earlier in enumerate(history.writes):
            if earlier is write:
                if number == 0 or not write.is_atomic:
                    return history
                continue  # a thread that polls by an atomic continues what others have written since
            passed = observer.hears_of(earlier, write)
            if (passed and observer.follows(earlier)) or (earlier.kind, write.kind) == ("free", "alloc"):
                # An allocation itself waits until its columns are free.
                is_free = observer.may_overwrite(earlier, write) or history.is_found(number, observer)
                if earlier.kind in asked or not is_free:
                    self.ordered.append((earlier, write))
            else:
                is_found = history.is_found(number, observer)
                if is_found and not (write.is_atomic and earlier.agrees(write)):
                    continue
                kept_writes.append(earlier)
                if not is_found and not earlier.is_morally_strong_with(write):
                    self.conflicts.append(Conflict(earlier, write, False))
        alike = _without_ordered(history.alike, observer)
        if write.stored is not None:
            unordered = chain(kept_writes, *_of_clusters(alike, alike))
            note_replaced(write, (one for one in history.writes if one not in kept_writes), unordered, observer.clock)
        keeps_all = len(history.reads) < READS_KEPT
        for entry in history.reads:
            read = entry.last
            if observer.hears_of(read, write) and observer.follows(read):
                if read.kind in asked or read.site.is_incoherent or not observer.may_overwrite(read, write):
                    self.ordered.append((read, write))
                continue
            kept_reads.append(entry)
            if not read.is_morally_strong_with(write):
                is_late = _is_late(read, write, history.writes, history.reads)
                reads: Literal["one", "of warp"] = "one" if entry.is_one else "of warp"
                others = chain(kept_writes, *_of_clusters(alike, [read.space]))
                is_alike = is_sure(write, others, entry.saw)
                self.conflicts.append(Conflict(read, write, is_late, reads if keeps_all else "any", is_alike))
        writes = (write, *kept_writes[:UNORDERED_KEPT])
        new = AccessHistory(writes, tuple(kept_reads[:UNORDERED_KEPT]), (history.writes, history.reads))
        dropped = kept_writes[UNORDERED_KEPT:]
        if (dropped or alike) and kept_writes and all(are_alike(write, one) for one in kept_writes):
            new = new._replace(alike=_with_writes(alike, dropped))
        return new

    def keep_only(self, numbers: Iterable[int]) -> NDArray[np.int32]:
        """Deletes all other histories. Returns the new number of each one, and -1 for deleted ones and for -1."""
        kept = sorted({0, *numbers} - {-1})
        self.all = [self.all[n] for n in kept]
        self._next.clear()
        new: NDArray[np.int32] = np.full(kept[-1] + 2, -1, np.int32)
        new[kept] = np.arange(len(kept))
        return new


def _is_late(read: Record, write: Record, writes: tuple[Record, ...], reads: tuple[Reads, ...]) -> bool:
    """Returns whether the unordered write ends the generation of these writes and reads, and the read belongs to it.

    A read that was issued before the write belongs to it, however late it takes place.
    """
    if write.knew_issue(read):
        return True
    if not any(read.knew(w) for w in writes if w is not write):
        return False
    return not any(
        entry.first.who == read.who and entry.first.time < read.time and write.knew(entry.first) for entry in reads
    )
