"""Vector clocks: the actions that an agent knows to have happened, in several senses.

A *component* is an agent that acts in program order: a part of a warp, the MMAs of one thread, the bulk groups of one
thread, the wgmmas of a warpgroup, the tcgen05 loads of a warp, the phases of an mbarrier. A *clock* holds, for each
component of a cluster, the time of the latest action that its owner knows of. It has one *row* for each sense of
"knows", because a synchronisation may order execution and yet not make writes visible to another proxy or another CTA.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

INITIALISED = 0
"""The initialisations of mbarriers that fence.mbarrier_init has published; relaxed arrivals carry this row, too."""
EXECUTION = 1
"""The action has been executed; relaxed arrivals and relaxed waits carry this row, too."""
BEFORE = 2
"""tcgen05 operations before a tcgen05.fence::before_thread_sync or before a commit; any synchronisation that orders
execution carries them over, also a relaxed one whose scope holds both threads (PTX ISA 9.7.16.6.3)."""
ORDER = 3
"""The action happened before, by release and acquire; their scope may have been too narrow."""
LOCAL = 4
"""Generic accesses to the shared memory of one's own CTA that a proxy fence has made visible to the async proxy."""
REMOTE = 5
"""The same for accesses to the shared memory of another CTA."""
GLOBAL = 6
"""The same for accesses to global memory."""
OVER = 7
"""The action happened before, and no scope on the path was too narrow. The completion of an asynchronous operation
shows that what its thread did before is over, too."""
VISIBLE = 8
"""The action happened before, and its writes are visible: scope and semantics were wide enough on the whole path."""
ROWS = 9
OWN = np.array([EXECUTION, ORDER, OVER, VISIBLE])
"""Rows in which an agent always knows its own actions."""

ONLY_INITIALISED = slice(INITIALISED, INITIALISED + 1)
"""The row of the initialisations of mbarriers."""
ONLY_EXECUTION = slice(EXECUTION, EXECUTION + 1)
"""The row of the order of execution."""
ONLY_BEFORE = slice(BEFORE, BEFORE + 1)
"""The row of the tcgen05 operations that others may follow."""
FOUND = slice(EXECUTION, BEFORE + 1)
"""Rows that even a relaxed read of a flag carries over, if its scope holds both threads."""
UNFENCED = slice(0, BEFORE)
"""Rows that even a relaxed arrival whose scope is too narrow carries over."""
RELAXED = slice(0, BEFORE + 1)
"""Rows that even a relaxed arrival carries over."""
NARROW = slice(0, OVER)
"""Rows that a synchronisation carries over if its scope is too narrow: it does not include both CTAs."""
COMPLETED = slice(0, VISIBLE)
"""Rows that the completion of an asynchronous operation carries over."""
WIDE = slice(OVER, ROWS)
"""Rows that need a scope that includes both CTAs."""
ALL = slice(0, ROWS)

Rows = NDArray[np.int32]


class Components:
    """Numbers the components of a cluster. Clocks that are made from now on have room for ``capacity`` of them."""

    __slots__ = ("_count", "_owners", "capacity", "number")

    def __init__(self, number: int, capacity: int) -> None:
        self.number = number
        self.capacity = capacity
        self._count = 0
        self._owners = np.full(capacity, -1)

    def new(self, cta: int) -> int:
        """Returns the number of a new component of a CTA."""
        if self._count == self.capacity:
            self._owners = np.concatenate([self._owners, np.full(self.capacity, -1)])
            self.capacity *= 2
        self._owners[self._count] = cta
        self._count += 1
        return self._count - 1

    def of(self, cta: int, width: int) -> NDArray[np.bool_]:
        """Returns which of the first ``width`` components belong to a CTA."""
        found: NDArray[np.bool_] = self._owners[:width] == cta
        return found


class Clock:
    """The actions that an agent knows of.

    ``rows`` holds times by row and component. ``foreign`` holds the same for other clusters, by their components.
    """

    __slots__ = ("foreign", "rows", "space")

    def __init__(self, space: Components, rows: Rows | None = None) -> None:
        self.space = space
        self.rows: Rows = np.zeros((ROWS, space.capacity), np.int32) if rows is None else rows
        self.foreign: dict[Components, Rows] | None = None

    def copy(self) -> Clock:
        made = Clock(self.space, self.rows.copy())
        if self.foreign:
            made.foreign = dict(self.foreign)
        return made

    def knows(self, space: Components, who: int, time: int, row: int = ORDER) -> bool:
        """Returns whether the clock knows an action of a component in the sense of a row."""
        return self.latest(space, who, row) >= time

    def latest(self, space: Components, who: int, row: int) -> int:
        """Returns the time of the latest action of a component that the clock knows in the sense of a row, else 0."""
        if space is self.space:
            rows = self.rows
        elif self.foreign and space in self.foreign:
            rows = self.foreign[space]
        else:
            return 0
        return int(rows[row, who]) if who < rows.shape[1] else 0

    def executed(self) -> Clock:
        """Returns a clock that knows the actions that happened before, but only as executed."""
        made = Clock(self.space, _executed(self.rows))
        if self.foreign:
            made.foreign = {space: _executed(rows) for space, rows in self.foreign.items()}
        return made

    def set(self, who: int, time: int, rows: slice = ALL) -> None:
        if who >= self.rows.shape[1]:
            self.rows = widened(self.rows, self.space.capacity)
        column = self.rows[rows, who]
        np.maximum(column, time, out=column)

    def join(self, other: Clock, rows: slice = ALL) -> None:
        """Adds the knowledge of another clock, which may belong to another cluster."""
        others = other.foreign or {}
        if other.space is self.space:
            self.rows = _joined(self.rows, other.rows, rows)
        else:
            others = {**others, other.space: other.rows.copy()}
        if others:
            held = self.foreign = dict(self.foreign or {})
            for space, known in others.items():
                if space is self.space:
                    self.rows = _joined(self.rows, known, rows)
                else:
                    held[space] = _with_news(held.get(space), known, rows)

    def learn(self, other: Clock, components: Sequence[int]) -> None:
        """Adds what another clock of the cluster knows of some components."""
        rows, width = other.rows, other.rows.shape[1]
        if self.rows.shape[1] < width:
            self.rows = widened(self.rows, width)
        of = [who for who in components if who < width]
        self.rows[:, of] = np.maximum(self.rows[:, of], rows[:, of])

    def lacks(self, other: Clock) -> bool:
        """Returns whether another clock of the cluster knows of more that happened before."""
        held, nothing = self.foreign or {}, np.zeros((ROWS, 0), np.int32)
        pairs = [(self.rows, other.rows)]
        pairs += [(held.get(space, nothing), rows) for space, rows in (other.foreign or {}).items()]
        return any(_exceeds(theirs[ORDER], mine[ORDER]) for mine, theirs in pairs)


def _executed(rows: Rows) -> Rows:
    made = np.zeros_like(rows)
    made[EXECUTION] = rows[ORDER]
    return made


def _joined(mine: Rows, other: Rows, rows: slice) -> Rows:
    width = other.shape[1]
    if mine.shape[1] < width:
        mine = widened(mine, width)
    part = mine[rows, :width]
    np.maximum(part, other[rows], out=part)
    return mine


def _with_news(held: Rows | None, known: Rows, rows: slice) -> Rows:
    """Returns what a clock knows of another cluster after it has learned more. Clocks share these rows, so they never
    change.
    """
    if held is known or (held is None and rows == ALL):
        return known
    mine = np.zeros_like(known) if held is None else held
    width = min(known.shape[1], mine.shape[1])
    if (known[rows, :width] <= mine[rows, :width]).all() and not known[rows, width:].any():
        return mine
    return _joined(mine.copy(), known, rows)


def widened(rows: Rows, width: int) -> Rows:
    wide = np.zeros((ROWS, width), np.int32)
    wide[:, : rows.shape[1]] = rows
    return wide


def _exceeds(one: Rows, other: Rows) -> bool:
    """Returns whether a row has a larger time of a component than another row, which may have another length."""
    width = min(len(one), len(other))
    return bool((one[:width] > other[:width]).any() or one[width:].any())


def larger(one: Rows, other: Rows) -> Rows:
    """Returns a new row with the larger time of each component; the two rows may differ in length."""
    long, short = (one, other) if len(one) >= len(other) else (other, one)
    made = long.copy()
    np.maximum(made[: len(short)], short, out=made[: len(short)])
    return made


def including(row: Rows, who: int, time: int) -> Rows:
    """Returns a new row that knows an action of a component, too."""
    known = np.zeros(who + 1, np.int32)
    known[who] = time
    return larger(row, known)


def publish(clock: Clock, tensor: Rows) -> None:
    """Makes the next synchronisation pass on these tcgen05 operations."""
    if len(tensor) > clock.rows.shape[1]:
        clock.rows = widened(clock.rows, len(tensor))
    part = clock.rows[BEFORE, : len(tensor)]
    np.maximum(part, tensor, out=part)


def set_generic(clock: Clock, who: int, time: int) -> None:
    """Marks writes of the generic proxy as over and visible, but not as visible to the async proxy."""
    for row in OWN.tolist():
        clock.set(who, time, slice(row, row + 1))


def column(row: Rows, who: int) -> int:
    return int(row[who]) if who < len(row) else 0
