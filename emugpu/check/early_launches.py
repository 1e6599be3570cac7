"""Launches that may start before those in front of them have ended (programmatic dependent launch), and their races.

A launch with the attribute may start as soon as all CTAs of the launch in front of it have executed
griddepcontrol.launch_dependents or exited. Its griddepcontrol.wait returns when that launch has ended, and its memory
operations are visible (PTX ISA, griddepcontrol; CUDA Programming Guide, Programmatic Dependent Launch). A launch that
started early and has not waited itself may end while those in front of it still run.
"""

from __future__ import annotations

from typing import NamedTuple

from emugpu.check.findings import Finding
from emugpu.check.footprint import Footprint, Overlap

Launches = frozenset[int]
"""The numbers of launches in a stream."""


class StillRunning(NamedTuple):
    """The earlier launches of a stream that may still run when a launch starts and when its griddepcontrol.wait
    returns. The same, with the launch itself, for when it lets the next one start early, and for when it has ended.
    """

    at_start: Launches = frozenset()
    after_wait: Launches = frozenset()
    at_next_start: Launches = frozenset()
    at_end: Launches = frozenset()


NOTHING_RUNS = StillRunning()


def still_running(launch: int, footprint: Footprint, before: StillRunning) -> StillRunning:
    """Returns what may still run at the moments of a launch. ``before`` says it of the launch in front of it."""
    at_start: Launches = frozenset()
    after_wait: Launches = frozenset()
    if footprint.early is not None:
        at_start, after_wait = before.at_next_start, before.at_end
    at_next_start = at_end = after_wait if footprint.waits else at_start
    if footprint.triggers:
        at_next_start = (after_wait if footprint.waits_before_it_lets else at_start) | {launch}
    return StillRunning(at_start, after_wait, at_next_start, at_end)


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
