"""What a warp has done to global memory since its lanes met, from the native engine's trace, for signal-for-lanes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emugpu.check.threads import UNMET_KEPT
from emugpu.emulator.machine.lanes import FULL_MASK
from emugpu.emulator.native.access_filter import Numbers
from emugpu.emulator.native.layout import TraceEvent
from emugpu.emulator.native.trace import Batch

Interval = tuple[int, int, int]
"""A warp's time, a part of the trace, and how often lanes of the warp had met in it (`bar.warp.sync`)."""


def meetings(entries: NDArray[Any]) -> Numbers:
    """Returns how often lanes of an entry's warp have met before it in this part of the trace."""
    is_meeting = entries["kind"] == TraceEvent.SYNCED
    found = np.zeros(len(entries), np.int64)
    for warp in np.unique(entries["warp"][is_meeting]).tolist():
        mine = entries["warp"] == warp
        found[mine] = np.cumsum(is_meeting[mine])
    return found


def note(
    unmet: dict[int, dict[Interval, int]],
    index_of: Callable[[int], int],
    number: int,
    batch: Batch,
    at: Numbers,
    accesses: NDArray[np.bool_],
) -> None:
    """Notes accesses of one CTA in part ``number`` of the trace, and drops those whose lanes have all met since.

    A meeting counts for the lanes in its member mask, and a barrier for all. ``unmet``: by the index of the warp, when
    it has accessed global memory, and the lanes. ``index_of`` returns the index of a warp of the trace. ``at``: the
    CTA's entries, and which of them are ``accesses``.
    """
    entries, met = batch.entries[at], meetings(batch.entries)[at]
    for warp in np.unique(entries["warp"]).tolist():
        mine = np.flatnonzero(entries["warp"] == warp)
        kinds, lanes = entries["kind"][mine], entries["lanes"][mine]
        meets = np.flatnonzero((kinds == TraceEvent.SYNCED) | (kinds == TraceEvent.LEFT))
        members = np.where(kinds == TraceEvent.LEFT, FULL_MASK, entries["value"][mine])[meets]
        of_warp, is_unmet = unmet.setdefault(index_of(warp), {}), accesses[mine]
        for those in np.unique(members).tolist():
            last = int(meets[members == those][-1])
            is_unmet[:last] &= lanes[:last] & ~np.uint32(those) != 0
            for interval in [interval for interval, of in of_warp.items() if not of & ~those]:
                del of_warp[interval]
        times = entries["number"][mine[is_unmet]].tolist()
        for time, count, of in zip(times, met[mine[is_unmet]].tolist(), lanes[is_unmet].tolist(), strict=True):
            of_warp[time, number, count] = of_warp.get((time, number, count), 0) | of
        for interval in [*of_warp][:-UNMET_KEPT]:
            del of_warp[interval]
