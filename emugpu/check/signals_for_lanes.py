"""Lanes that signal for other lanes of their warp: an arrival by one lane passes on only what that lane has done.

The lanes of a warp may progress at different paces. So an arrival, or another release, of some lanes comes after the
accesses of the others only if all of them have met before it: at bar.warp.sync, or at another instruction for which
lanes wait for one another (PTX ISA 9.7.13.2). The clocks of the checker treat the lanes of a warp as one; this file
adds which lanes a release stands for.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from emugpu.check.clocks import ORDER, Clock, Components
from emugpu.emulator.machine.events import Site
from emugpu.emulator.machine.lanes import FULL_MASK

MET = ("bar", "barrier", "elect", "shfl", "vote", "redux")
"""Instructions for which lanes wait and that have an event, so that the run shows whether they are executed."""


def silent_meetings(sites: Iterable[Site]) -> tuple[int, ...]:
    """Returns the instructions, by index, at which lanes meet without an event, such as mma.sync.

    Of these the checker knows only where they stand: one between an access and a release counts as executed.
    """
    return tuple(site.index for site in sites if "sync" in site.modifiers and site.opcode not in MET)


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
        first, last = access.index, self.site.index
        after = bisect_right(self.silent, first)
        before = bisect_right(self.silent, last)
        meets = after < before if first < last else after < len(self.silent) or before > 0
        return FULL_MASK if meets else self.lanes


def are_passed_on(lanes: int, access: Site, releases: Iterable[LaneRelease], space: Components, clock: Clock) -> bool:
    """Returns whether the accesses of all ``lanes`` by an instruction happened before, as far as a clock knows."""
    for release in releases:
        if clock.knows(space, release.who, release.time, ORDER):
            lanes &= ~release.covers(access)
    return not lanes
