"""The global memory that a launch or a copy touches, by chunks of 16 bytes, to compare it with others.

A chunk is *whole* for a kind of access if one access of that kind covers all its bytes. Two operations certainly touch
the same byte if one of them covers the whole chunk. If neither does, they may touch different bytes of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from emugpu.check.clocks import VISIBLE, Clock
from emugpu.check.threads import Thread
from emugpu.emulator.machine.events import Agent, Site
from emugpu.emulator.memory.bytes import CHUNK

Numbers = NDArray[np.int64]
Key = tuple[int, int]
"""The address of an allocation, and how many allocations had that address before."""
READ, WRITE, STRONG_READ, STRONG_WRITE = 1, 2, 4, 8
"""Kinds of accesses. Strong ones are atomics, volatile, relaxed, acquire and release accesses."""
WHOLE = 16
"""A kind times this says that chunks are whole for it."""
CONFLICTS = {
    (one, other)
    for one in (READ, WRITE, STRONG_READ, STRONG_WRITE)
    for other in (READ, WRITE, STRONG_READ, STRONG_WRITE)
    if {one, other} & {WRITE, STRONG_WRITE} and {one, other} & {READ, WRITE}
}


def kind_of(writes: bool, strong: bool) -> int:
    return (STRONG_WRITE if strong else WRITE) if writes else (STRONG_READ if strong else READ)


class Overlap(NamedTuple):
    """Bytes that two operations touch, at least one of which writes. ``certain``: they share a byte for certain."""

    place: int
    nbytes: int
    certain: bool
    first_writes: bool


class TouchedMemory:
    """The chunks of allocations that an operation touches, as ranges with the kinds of the accesses.

    The accesses to one allocation are added either chunk by chunk, by `add`, or as ranges, by `add_range`.
    """

    def __init__(self) -> None:
        self._kinds: dict[Key, NDArray[np.uint8]] = {}
        self._between: dict[Key, tuple[int, int]] = {}
        """The first and the last chunk that accesses touch, of allocations whose chunks have been added one by one."""
        self._given: dict[Key, tuple[int, list[tuple[int, int, int]]]] = {}
        """The number of chunks, and the first chunk, the end and the kind of each range that has been added."""
        self._ranges: dict[Key, tuple[Numbers, NDArray[np.uint8]]] = {}

    def add(self, key: Key, nbytes: int, chunks: Numbers, whole: Numbers, kind: int) -> None:
        """Adds accesses of a kind to chunks of an allocation of ``nbytes``; they cover those in ``whole``."""
        kinds = self._kinds.get(key)
        if kinds is None:
            kinds = self._kinds[key] = np.zeros(-(-nbytes // CHUNK), np.uint8)
            self._between[key] = len(kinds), -1
        kinds[chunks] |= kind
        kinds[whole] |= kind | kind * WHOLE
        first, last = self._between[key]
        for some in (chunks, whole):
            if len(some):
                first, last = min(first, int(some.min())), max(last, int(some.max()))
        self._between[key] = first, last

    def add_range(self, key: Key, nbytes: int, start: int, end: int, kind: int) -> None:
        """Adds an access of a kind to the bytes start .. end - 1 of an allocation of ``nbytes``."""
        ranges = self._given.setdefault(key, (-(-nbytes // CHUNK), []))[1]
        ranges.append((start // CHUNK, -(-end // CHUNK), kind))
        if -(-start // CHUNK) < end // CHUNK:
            ranges.append((-(-start // CHUNK), end // CHUNK, kind * WHOLE))

    def close(self) -> TouchedMemory:
        """Keeps the ranges alone, which take less room."""
        assert not self._kinds.keys() & self._given.keys(), "an allocation has accesses of both kinds"
        for key, kinds in self._kinds.items():
            first, last = self._between[key]
            if last < 0:
                continue
            part = kinds[first : last + 1]
            starts = first + np.append(0, np.flatnonzero(np.diff(part)) + 1)
            bounds = np.concatenate([[0], starts, [last + 1, len(kinds)]])
            self._ranges[key] = (bounds, np.concatenate([[0], kinds[starts], [0]]).astype(np.uint8))
        for key, (count, ranges) in self._given.items():
            bounds = np.unique([0, count, *(bound for one in ranges for bound in one[:2])])
            held = np.zeros(len(bounds) - 1, np.uint8)
            for first, end, kind in ranges:
                held[slice(*np.searchsorted(bounds, (first, end)))] |= kind
            self._ranges[key] = (bounds, held)
        self._kinds.clear()
        self._given.clear()
        return self

    def written(self) -> list[Key]:
        """Returns the allocations to which the operation writes."""
        return [key for key, (_, kinds) in self._ranges.items() if (kinds & (WRITE | STRONG_WRITE)).any()]

    def writes(self) -> TouchedMemory:
        """Returns what the operation writes."""
        found, kinds_of_writes = TouchedMemory(), np.uint8((WRITE | STRONG_WRITE) * (1 | WHOLE))
        found._ranges = {key: (bounds, kinds & kinds_of_writes) for key, (bounds, kinds) in self._ranges.items()}
        return found

    def overlaps(self, other: TouchedMemory) -> Iterator[tuple[Key, Overlap]]:
        """Yields for each allocation the first overlap, a certain one if there is one."""
        for key in self._ranges.keys() & other._ranges.keys():
            found = _overlap(self._ranges[key], other._ranges[key])
            if found is not None:
                yield key, found


def _overlap(
    one: tuple[Numbers, NDArray[np.uint8]], other: tuple[Numbers, NDArray[np.uint8]]
) -> Overlap | None:  # fmt: skip
    edges = np.union1d(one[0], other[0])
    starts = edges[:-1]
    mine, theirs = (kinds[np.searchsorted(bounds, starts, "right") - 1] for bounds, kinds in (one, other))
    meets, certain = np.zeros((2, len(starts)), np.bool_)
    for a, b in CONFLICTS:
        both = (mine & a != 0) & (theirs & b != 0)
        meets |= both
        certain |= both & ((mine & a * WHOLE != 0) | (theirs & b * WHOLE != 0))
    if not meets.any():
        return None
    at = int((certain if certain.any() else meets).argmax())
    size = int(edges[at + 1] - edges[at]) * CHUNK
    return Overlap(int(edges[at]) * CHUNK, size, bool(certain[at]), bool(mine[at] & (WRITE | STRONG_WRITE)))


class Footprint:
    """What one launch touches: ``all`` of it, and, of a launch that may start before the one in front of it has ended,
    what its threads touch ``early``: before a griddepcontrol.wait, of their own or of a thread that they have
    synchronised with since. When a wait returns, the earlier grids have ended and the whole grid sees what they did
    (PTX ISA, griddepcontrol).

    ``incoherent`` is what such a launch reads by ld.global.nc. ``key`` returns the key of the allocation at an address.
    ``triggers`` holds the CTAs that have let the next launch start, ``early_triggers`` those of them that did so before
    a wait.
    """

    def __init__(self, key: Callable[[int], Key], starts_early: bool) -> None:
        self.all, self.early = TouchedMemory(), TouchedMemory() if starts_early else None
        self.incoherent = TouchedMemory()
        self.key = key
        self.triggers: set[tuple[int, int]] = set()
        self.early_triggers: set[tuple[int, int]] = set()
        self._waits: dict[int, int] = {}
        """By cluster, a component that acts when a griddepcontrol.wait returns."""
        self._waited: set[tuple[int, int]] = set()
        """The CTAs that have waited."""

    def depends(self, agent: Agent, thread: Thread, site: Site, silent: Sequence[int]) -> None:
        """Handles griddepcontrol. A wait is over for the lanes that execute it, and for those that meet them later.

        ``silent`` holds the `silent_meetings` of the kernel.
        """
        if "wait" not in site.modifiers:
            self.triggers.add(agent[:2])
            behind = [one.clock for one in thread.behind if one.lanes & agent.lanes and not one.have_met(site)]
            if not all(map(self._has_waited, (thread.peek(), *behind))):
                self.early_triggers.add(agent[:2])
            return
        if agent.cluster not in self._waits:
            self._waits[agent.cluster] = thread.clock.space.new(agent.cta)
        thread.hear(agent.lanes, partial(Clock.set, who=self._waits[agent.cluster], time=1), site, silent)
        thread.heard = site
        self._waited.add(agent[:2])

    @property
    def waits(self) -> bool:
        """Whether a thread has executed griddepcontrol.wait, so that the launch ends only after it."""
        return bool(self._waited)

    @property
    def waits_before_it_lets(self) -> bool:
        """Whether a CTA lets the next launch start, or exits, only after a griddepcontrol.wait."""
        return self.early is not None and not self._waited <= self.early_triggers

    def _has_waited(self, clock: Clock) -> bool:
        """Returns whether the clock knows of a wait, by synchronisations whose scope was wide enough."""
        return any(
            space.number in self._waits and clock.knows(space, self._waits[space.number], 1, VISIBLE)
            for space in (clock.space, *(clock.foreign or ()))
        )

    def add(self, base: int, nbytes: int, chunks: Numbers, whole: Numbers, kind: int, clock: Clock | None) -> None:
        """Adds accesses by an agent with this knowledge. ``clock`` is None if no thread of its CTA has waited."""
        key = self.key(base)
        self.all.add(key, nbytes, chunks, whole, kind)
        if self.early is not None and (clock is None or not self._has_waited(clock)):
            self.early.add(key, nbytes, chunks, whole, kind)

    def add_incoherent(self, base: int, nbytes: int, chunks: Numbers, whole: Numbers) -> None:
        """Adds loads by ld.global.nc, which no griddepcontrol.wait orders."""
        self.incoherent.add(self.key(base), nbytes, chunks, whole, READ)

    def close(self) -> None:
        """Handles the end of the launch."""
        for touched in (self.all, self.early, self.incoherent):
            if touched is not None:
                touched.close()
