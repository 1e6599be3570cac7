"""Lanes that signal or wait for other lanes of their warp: each lane passes on, and learns, only for itself.

The lanes of a warp may progress at different paces. So an arrival, or another release, of some lanes comes after the
accesses of the others only if all of them have met before it: at bar.warp.sync, or at another instruction for which
lanes wait for one another (PTX ISA 9.7.13.2). In the same way, a wait by some lanes comes before the accesses of the
others only if they meet after it. The clocks of the checker treat the lanes of a warp that execute together as one;
this file adds which lanes a release stands for, and which lanes are behind what the clock knows.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from emugpu.check.clocks import ORDER, Clock, Components
from emugpu.emulator.machine.events import Site
from emugpu.emulator.machine.lanes import FULL_MASK

_REGISTER = re.compile(r"[%$\w]+")

MET = ("bar", "barrier", "elect", "shfl", "vote", "redux")
"""Instructions for which lanes wait and that have an event, so that the run shows whether they are executed."""


def silent_meetings(sites: Iterable[Site]) -> tuple[int, ...]:
    """Returns the instructions, by index, at which lanes meet without an event, such as mma.sync.

    Of these the checker knows only where they stand: one between an access and a release counts as executed.
    """
    return tuple(site.index for site in sites if "sync" in site.modifiers and site.opcode not in MET)


def dropped_loads(sites: Iterable[Site]) -> frozenset[int]:
    """Returns the loads, by index, whose values only selp uses.

    Compilers turn ``lane == 0 ? x[3] : 0`` into a load by all lanes and a selp, which drops what other lanes have read.
    """
    loaded: dict[int, set[str]] = {}
    selected: set[str] = set()
    kept: set[str] = set()
    for site in sites:
        operands = site.text.partition(" ")[2]
        if site.opcode == "ld" and not site.text.startswith("@"):
            targets, _, operands = operands.partition("[")
            loaded[site.index] = set(_REGISTER.findall(targets))
        uses = selected if site.opcode == "selp" else kept
        uses.update(_REGISTER.findall(operands))
    return frozenset(index for index, registers in loaded.items() if registers <= selected and not registers & kept)


def meets_between(first: Site, last: Site, silent: Sequence[int]) -> bool:
    """Returns whether an instruction of `silent_meetings` stands between two that are executed in this order."""
    after, before = bisect_right(silent, first.index), bisect_right(silent, last.index)
    return after < before if first.index < last.index else after < len(silent) or before > 0


class LaneRelease(NamedTuple):
    """A release by some ``lanes`` of a warp, as component ``who`` at ``time``, or a meeting of all lanes.

    ``site`` is the instruction; None for a meeting. ``silent`` holds the `silent_meetings` of the kernel.
    """

    lanes: int
    who: int
    time: int
    site: Site | None = None
    silent: Sequence[int] = ()

    def covers(self, access: Site) -> int:
        """Returns the lanes whose accesses by an instruction the release passes on."""
        if self.site is None or not self.silent:
            return self.lanes
        return FULL_MASK if meets_between(access, self.site, self.silent) else self.lanes


def are_passed_on(lanes: int, access: Site, releases: Iterable[LaneRelease], space: Components, clock: Clock) -> bool:
    """Returns whether the accesses of all ``lanes`` by an instruction happened before, as far as a clock knows."""
    for release in releases:
        if clock.knows(space, release.who, release.time, ORDER):
            lanes &= ~release.covers(access)
    return not lanes


class Behind(NamedTuple):
    """Lanes of a thread that know less than its clock: others of its lanes have learned more, and they have not met.

    ``clock`` is what they know. ``heard`` is the instruction by which the others learned more. ``silent`` holds the
    `silent_meetings` of the kernel.
    """

    lanes: int
    clock: Clock
    heard: Site
    silent: Sequence[int]

    def have_met(self, access: Site) -> bool:
        """Returns whether an access comes after a meeting of all lanes, or is one itself."""
        return "sync" in access.modifiers or meets_between(self.heard, access, self.silent)


class Found(NamedTuple):
    """What some ``lanes`` of a warp have found by a relaxed read or wait; they acquire it with their next fence.

    ``clock`` is the knowledge, which a fence of at least the scope ``needed`` passes on in ``rows``. ``site`` is the
    instruction that has found it.
    """

    clock: Clock
    rows: slice
    needed: int
    lanes: int
    site: Site


def joined(pending: Iterable[Found]) -> list[Found]:
    """Joins what the same lanes have found by the same instruction."""
    found: dict[tuple[int, int, int, int], Found] = {}
    for one in pending:
        key = one.site.index, one.lanes, one.needed, one.rows.stop
        if key in found:
            clock = found[key].clock.copy()
            clock.join(one.clock)
            one = one._replace(clock=clock)
        found[key] = one
    return list(found.values())


class Part(NamedTuple):
    """A part of a warp that joins others. ``heard`` is the last instruction by which it learned something, if any."""

    lanes: int
    clock: Clock
    behind: tuple[Behind, ...]
    heard: Site | None


def latecomers(known: Clock, parts: Sequence[Part], own: Sequence[int], silent: Sequence[int]) -> tuple[Behind, ...]:
    """Returns the lanes that are behind after parts of a warp have joined.

    ``known`` is what the parts know together. The components ``own`` of the warp do not count, because its lanes are
    taken to follow one another.
    """
    heard = next((part.heard for part in parts if part.heard is not None), None)
    found = []
    for part in parts:
        lanes = part.lanes
        for one in part.behind:
            one = one._replace(lanes=one.lanes & part.lanes)
            if heard is None or not meets_between(one.heard, heard, silent):
                found.append(one._replace(heard=heard or one.heard))
                lanes &= ~one.lanes
        if heard is not None:
            found.append(Behind(lanes, part.clock, heard, silent))
    behind = []
    for one in found:
        mine = one.clock.copy()
        mine.learn(known, own)
        if one.lanes and mine.lacks(known):
            behind.append(one._replace(clock=mine))
    return tuple(behind)
