"""The record of an access: who made it, by which instruction, and what a finding needs of it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emugpu.check.clocks import Clock, Components, Rows, column
from emugpu.check.signals_for_lanes import LaneRelease, are_passed_on
from emugpu.emulator.machine.events import Agent, Site
from emugpu.emulator.machine.lanes import lanes_of

SCOPES = {"cta": 0, "cluster": 1, "gpu": 2, "sys": 3}
ACQUIRES = ("acquire", "acq_rel", "sc")
RELEASES = ("release", "acq_rel", "sc")
WEAK = -1
STRONG = ("relaxed", "acquire", "release", "acq_rel", "volatile", "sc")
ATOMICS = ("atom", "red")
TOUCHED_KEPT = 16
"""A record keeps the addresses of this many accesses."""


@dataclass(slots=True, eq=False)
class Record:
    """An access by a component at a time, with the data that a finding needs.

    ``kind`` is "generic" or the kind of an asynchronous operation: "copy" (TMA load), "store" (bulk store), "mma",
    "wgmma", "response" (of launch control), "load" and "keep" (tcgen05.ld and .st), "cp" (tcgen05.cp), "cp.async",
    "alloc", "free", "st.async" (or red.async), "map" (a tensor copy reads its tensor map).

    ``order`` is the agent's knowledge of its own cluster, if it was kept. ``scope`` is the scope of an atomic, relaxed,
    volatile, acquire or release access, else WEAK. ``shape`` is the accumulator and size of an MMA. ``stored`` is equal
    for stores of the same values at the same addresses. ``touched`` holds the addresses, and the number of bytes at
    each, of the accesses of threads that the record stands for, or is None if there are many or others. ``values`` is
    that of a thread's store, as `Access` has it, and ``contents`` what `same_values` makes of it. ``released`` holds
    releases of some lanes of the agent, if those of the access need them. ``issue`` is the component and time of the
    thread that issued an asynchronous operation, as agents that follow the issue know them. ``replaced`` holds the
    components and times of the last writes of other values that a store has replaced. ``is_doubtful``: a store is in no
    order with a write that an unordered one has replaced.
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
    stored: tuple[object, ...] | None = None
    shape: object = None
    issue: tuple[int, int] | None = None
    released: list[LaneRelease] | None = None
    touched: list[tuple[int | NDArray[np.integer], int]] | None = None
    values: Any = None
    contents: tuple[NDArray[np.int64], NDArray[np.float64]] | None = None
    replaced: frozenset[tuple[Components, int, int]] = frozenset()
    is_doubtful: bool = False
    id: int = field(default_factory=count(1).__next__, init=False)

    def add_touched(self, where: int | NDArray[np.integer], nbytes: int) -> None:
        """Adds an access of the same agent by the same instruction at the same moment."""
        if self.touched is not None and len(self.touched) < TOUCHED_KEPT:
            self.touched.append((where, nbytes))
        else:
            self.touched = None

    def knew(self, other: Record) -> bool:
        """Returns whether the other access happened before this one, as far as this agent knew."""
        if self.order is None or other.space is not self.space:
            return False
        return column(self.order, other.who) >= other.time

    def knew_issue(self, other: Record) -> bool:
        """Returns whether the issue of the other operation happened before this access, as far as this agent knew."""
        if self.order is None or other.issue is None or other.space is not self.space:
            return False
        who, time = other.issue
        return column(self.order, who) >= time

    def is_passed_on(self, clock: Clock, agent: Agent, lanes: int) -> bool:
        """Returns whether releases that a clock knows stand for these lanes of the access.

        The lanes of one warp are taken to follow one another.
        """
        if not self.released or self.agent[:3] == agent[:3]:
            return True
        return are_passed_on(lanes, self.site, self.released, self.space, clock)

    def lanes_at(self, other: Record) -> int:
        """Returns the lanes that access bytes of another record, or all of them if that is not known."""
        if self.touched is None or other.touched is None:
            return self.agent.lanes
        bytes_of_other = np.concatenate([bytes_at(*touched) for touched in other.touched])
        found, bits = 0, 1 << lanes_of(self.agent.lanes)[1]
        for where, nbytes in self.touched:
            is_theirs: NDArray[np.bool_] = np.isin(bytes_at(where, nbytes), bytes_of_other).reshape(-1, nbytes)
            is_theirs = np.logical_or.reduce(is_theirs, axis=1)
            if len(is_theirs) not in (1, len(bits)):
                return self.agent.lanes
            found |= int(bits[np.broadcast_to(is_theirs, len(bits))].sum())
        return found

    def agrees(self, other: Record) -> bool:
        """Returns whether both are strong, each in a scope that includes the other agent."""
        needed = needed_scope(self.agent, other.agent)
        return self.scope >= needed and other.scope >= needed

    def is_morally_strong_with(self, other: Record) -> bool:
        """Returns whether both agree, and so do not race, because they overlap completely (PTX ISA 8.7).

        Atomics of different sizes are performed one after the other, too (PTX ISA 8.7.2).
        """
        if not self.agrees(other) or self.kind != "generic" or other.kind != "generic":
            return self.agrees(other)
        return (self.is_atomic and other.is_atomic) or element_size(self.site) == element_size(other.site)

    @property
    def is_atomic(self) -> bool:
        """Whether a thread reads the earlier value and writes the new one in one step."""
        return self.kind == "generic" and self.site.opcode in ATOMICS


def bytes_at(where: int | NDArray[np.integer], nbytes: int) -> NDArray[np.int64]:
    """Returns the places of all bytes, so many from each of the places on."""
    return (np.atleast_1d(np.asarray(where, np.int64))[:, None] + np.arange(nbytes)).ravel()


@lru_cache(maxsize=4096)
def element_size(site: Site) -> int:
    """Returns the bytes of an element of an access. Each element of a vector, and of a packed type, is an operation of
    its own (PTX ISA 8.2.4, 8.2.5).
    """
    types = [found for word in site.modifiers if (found := re.fullmatch(r"(?:b|u|s|f|bf)(\d+)(?:x2)?", word))]
    return int(types[-1][1]) // 8 if types else 0


def scope_of(site: Site) -> int:
    """Returns the scope of a strong access, or WEAK; a volatile access has the scope of the whole system."""
    if (site.semantics not in STRONG and site.opcode not in ATOMICS) or site.opcode == "tensormap":
        return WEAK
    return SCOPES["sys"] if site.semantics == "volatile" else SCOPES.get(site.scope, SCOPES["sys"])


def needed_scope(one: Agent, other: Agent) -> int:
    """Returns the narrowest scope that includes both agents."""
    if one.cluster != other.cluster:
        return SCOPES["gpu"]
    return SCOPES["cluster"] if one.cta != other.cta else SCOPES["cta"]
