"""Launches that may start before those in front of them have ended (programmatic dependent launch), and their races.

A launch with the attribute may start as soon as all CTAs of the launch in front of it have executed
griddepcontrol.launch_dependents or exited. In either case it may start before it can see what that launch has written.
Its griddepcontrol.wait returns when that launch has ended, and its memory operations are visible (PTX ISA,
griddepcontrol; CUDA Programming Guide, Programmatic Dependent Launch). A launch that started early and has not waited
itself may end while those in front of it still run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from emugpu.check.findings import Finding
from emugpu.check.footprint import Footprint, Key, Overlap, TouchedMemory

Launches = frozenset[int]
"""The numbers of launches in a stream."""
Describe = Callable[[str, str, str, Overlap], Finding]
"""Makes the finding about bytes that a later and an earlier operation touch, from their names and the place."""


class Pending(NamedTuple):
    """The earlier launches of a stream of which something is still to come at a moment.

    Those in ``running`` may still run. Of those in ``unseen`` all CTAs have exited, and perhaps not all that they have
    written is visible.
    """

    running: Launches = frozenset()
    unseen: Launches = frozenset()

    def behind(self, number: int) -> Pending:
        """Returns the launches with greater numbers."""
        return Pending(*(frozenset(one for one in part if one > number) for part in self))

    @property
    def all(self) -> Launches:
        return self.running | self.unseen


class StillRunning(NamedTuple):
    """The earlier launches that are pending when a launch starts and when its griddepcontrol.wait returns. The same,
    with the launch itself, for when it lets the next one start early, and for when it has ended.
    """

    at_start: Pending = Pending()
    after_wait: Pending = Pending()
    at_next_start: Pending = Pending()
    at_end: Pending = Pending()


NOTHING_RUNS = StillRunning()


def still_running(launch: int, footprint: Footprint, before: StillRunning) -> StillRunning:
    """Returns what may still run at the moments of a launch. ``before`` says it of the launch in front of it."""
    at_start = after_wait = Pending()
    if footprint.early is not None:
        at_start, after_wait = before.at_next_start, before.at_end
    at_end = after_wait if footprint.waits else at_start
    if footprint.triggers:
        let = after_wait if footprint.waits_before_it_lets else at_start
        return StillRunning(at_start, after_wait, let._replace(running=let.running | {launch}), at_end)
    return StillRunning(at_start, after_wait, at_end._replace(unseen=at_end.unseen | {launch}), at_end)


def early_races(
    mine: Footprint, number: int, other: TouchedMemory, running: StillRunning
) -> Iterator[tuple[Describe, Key, Overlap]]:
    """Yields the races of a launch with an earlier one, of this number, which touches ``other``.

    ``running`` says what may still run at the moments of the launch.
    """
    if mine.early is None or number not in running.at_start.all:
        return
    found = None
    if number in running.at_start.running:
        for found in other.overlaps(mine.early):
            yield early_access, *found
        for pair in other.overlaps(mine.all) if found is None and number in running.after_wait.running else ():
            yield uncovered_access, *pair
    else:
        touched = mine.all if number in running.after_wait.unseen else mine.early
        for found in other.writes().overlaps(touched):
            if found[1].certain:  # a warning changes no verdict
                yield unseen_access, *found
    if found is None:
        for pair in other.writes().overlaps(mine.incoherent):
            yield incoherent_access, *pair


def touches_the_same(later: str, earlier: str, where: str, found: Overlap) -> str:
    return f"{later} touches bytes that {earlier} {'writes' if found.first_writes else 'reads'} ({where})"


def is_not_known(what: str) -> str:
    return f"whether {what}: nothing orders the two, and they share 16 bytes at least"


def early_access(later: str, earlier: str, where: str, found: Overlap) -> Finding:
    """Returns the finding about what a launch touches before its griddepcontrol.wait."""
    what = touches_the_same(later, earlier, where, found)
    return Finding(
        "race-launches", "error",
        f"{what}, and may do so before its griddepcontrol.wait, while the other one runs", None,
        missing="no griddepcontrol.wait before the access, in a launch that may start before the other one ends",
        fix="griddepcontrol.wait (cudaGridDependencySynchronize) before it, or a launch without the attribute",
    )  # fmt: skip


def unseen_access(later: str, earlier: str, where: str, found: Overlap) -> Finding:
    """Returns the finding about what a launch touches behind one that lets none start early, without a
    griddepcontrol.wait that covers it.

    It is a warning: the merge sort of NVIDIA's CUB does so, and an H100 read what the other launch had written in each
    of 20 launches.
    """
    what = touches_the_same(later, earlier, where, found)
    return Finding(
        "race-launches", "warning",
        f"{what}, and may do so before that is visible: it may start as soon as the CTAs of the other one have exited",
        None, missing="no griddepcontrol.wait before the access, or none in a launch between the two",
        fix="griddepcontrol.wait (cudaGridDependencySynchronize) in each launch with the attribute, before the access",
    )  # fmt: skip


def incoherent_access(later: str, earlier: str, where: str, found: Overlap) -> Finding:
    """Returns the finding about what a launch reads by ld.global.nc, before or after its griddepcontrol.wait.

    The memory consistency model does not apply to such loads (PTX ISA 8.1).
    """
    what = touches_the_same(later, earlier, where, found)
    return Finding(
        "race-launches", "error",
        f"{what}, by ld.global.nc, which griddepcontrol.wait does not order: the memory consistency model leaves it "
        "out, and compilers may move it before the wait", None,
        missing="no load by the coherent path behind griddepcontrol.wait",
        fix="ld.global without .nc (no const __restrict__ and no __ldg), or a launch without the attribute",
    )  # fmt: skip


def uncovered_access(later: str, earlier: str, where: str, found: Overlap) -> Finding:
    """Returns the finding about what a launch touches after a griddepcontrol.wait that waits for another launch."""
    what = touches_the_same(later, earlier, where, found)
    return Finding(
        "race-launches", "error",
        f"{what}, and a launch between the two starts early and does not wait: it may end, and let the later one go "
        "on, while the earlier one runs", None,
        missing="no griddepcontrol.wait in a launch between the two, which started early",
        fix="griddepcontrol.wait (cudaGridDependencySynchronize) in the launch between the two as well",
    )  # fmt: skip
