"""The access filter finds traced accesses that are certainly in order, so that a reader can skip them.

A reader of the trace names CTAs, and passes the parts of the trace one after the other (`AccessFilter.filter`). As long
as the warps of such a CTA only load, store, fence, diverge, reconverge, and meet at one barrier of all, the filter
knows which accesses to shared memory are in order: those with the barrier in between, those of one lane, and those of
lanes of a warp that have met in between. Strong accesses need no order among themselves. The filter stops at a CTA when
anything else happens, or when an access may be out of order; the reader judges the rest.
`interpreter/access_filter.mojo` does the work.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from emugpu.emulator.memory.bytes import CHUNK
from emugpu.emulator.native.layout import NOT_YET, FilterCall, FilteredChunk, FilteredCta, FilteredWarp, TraceEvent
from emugpu.emulator.native.trace import Batch

WORD = 4
"""Bytes of shared memory for which the filter stores the last lane."""
NO_CTA = 0
"""The row of the table of CTAs for warps of all CTAs that are not filtered."""
_WARP_OF_ARRIVAL = (1 << 32) - 1
Numbers = NDArray[np.int64]


class Filtered(NamedTuple):
    """Entries of a part of the trace, by number.

    ``others`` are entries of CTAs that are not filtered. The other lists belong to filtered CTAs: accesses to global
    memory; exits of warps; ``completed``, the ends of generations of the barrier; ``arrivals`` at the barrier, as pairs
    of a warp's number and its time. (A warp's time increases by one when it arrives, at a fence, and when its lanes
    diverge.)
    """

    others: Numbers
    accesses: Numbers
    exits: Numbers
    completed: Numbers
    arrivals: list[tuple[int, int]]


class CtaFilter:
    """The state of the filter for a CTA. ``warps`` are the numbers of its warps in the trace, in the order of their
    first entries.
    """

    def __init__(self, row: int, shared_bytes: int) -> None:
        self.row = row
        self.shadow: NDArray[np.int32] = np.zeros((shared_bytes // CHUNK, len(FilteredChunk)), np.int32)
        self.marks: NDArray[np.int32] = np.zeros((2, shared_bytes // WORD), np.int32)
        self.warps: list[int] = []

    def oldest_needed(self) -> int | None:
        """Returns for how many generations of the barrier everything ever accessed was written twice over, or None if
        nothing was accessed.
        """
        touched = self.shadow[:, FilteredChunk.WRITE : FilteredChunk.STRONG + 1].any(axis=1)
        return int(self.shadow[touched, FilteredChunk.WHOLE_BEFORE].min()) - 1 if touched.any() else None


class AccessFilter:
    """Filters the trace of one launch."""

    def __init__(self, passes_strong: bool) -> None:
        """``passes_strong``: no strong access orders other accesses."""
        self._passes_strong = passes_strong
        self._ctas: Numbers = np.zeros((1, len(FilteredCta)), np.int64)
        self._free: list[int] = []
        self._warps: Numbers = np.zeros((0, len(FilteredWarp)), np.int64)

    def add_cta(self, warps: int, shared_bytes: int) -> CtaFilter:
        """Filters a CTA that starts. Accesses beyond ``shared_bytes`` stop the filter."""
        if not self._free:
            rows = len(self._ctas)
            self._ctas = np.concatenate([self._ctas, np.zeros_like(self._ctas)])
            self._free += range(rows, 2 * rows)
        cta = CtaFilter(self._free.pop(), shared_bytes)
        row = self._ctas[cta.row]
        row[:] = 0
        row[[FilteredCta.STOPPED_AT, FilteredCta.WARPS]] = NOT_YET, warps
        row[[FilteredCta.SHADOW, FilteredCta.CHUNKS]] = cta.shadow.ctypes.data, len(cta.shadow)
        row[[FilteredCta.MARKS, FilteredCta.INTERVALS]] = cta.marks.ctypes.data, warps + 1
        return cta

    def resume_cta(self, warps: dict[int, int], shared_bytes: int, generation: int) -> CtaFilter:
        """Filters a CTA whose warps all wait at the barrier when this generation of it is complete. Strong accesses and
        fences stop the filter. ``warps`` are their numbers in the trace, each with its time then.
        """
        cta = self.add_cta(len(warps), shared_bytes)
        cta.warps = [*warps]
        self._ctas[cta.row, FilteredCta.RESUMED] = True
        for number, time in warps.items():
            index = self._warps[number, FilteredWarp.INDEX]
            row = self._warps[number]
            row[:] = 0
            row[[FilteredWarp.CTA, FilteredWarp.INDEX]] = cta.row, index
            row[[FilteredWarp.TIME, FilteredWarp.INTERVAL]] = time, index + 1
            row[[FilteredWarp.ARRIVED, FilteredWarp.LEFT]] = generation + 1, generation
        return cta

    def remove_cta(self, cta: CtaFilter) -> None:
        self._warps[cta.warps, FilteredWarp.CTA] = NO_CTA
        self._free.append(cta.row)
        cta.shadow, cta.marks = cta.shadow[:0].copy(), cta.marks[:0].copy()

    def add_warps(self, warps: list[tuple[CtaFilter | None, int]]) -> None:
        """Adds warps that are traced for the first time: the CTA of each, if it is filtered, and the index in
        the CTA.
        """
        rows = np.zeros((len(warps), len(FilteredWarp)), np.int64)
        for number, ((cta, index), row) in enumerate(zip(warps, rows, strict=True), len(self._warps)):
            row[[FilteredWarp.CTA, FilteredWarp.INDEX]] = NO_CTA if cta is None else cta.row, index
            row[[FilteredWarp.TIME, FilteredWarp.INTERVAL]] = 1, index + 1
            if cta is not None:
                cta.warps.append(number)
        self._warps = np.concatenate([self._warps, rows])

    def filter(self, batch: Batch) -> Filtered:
        """Filters a part of the trace. Writes the time into each access of a filtered CTA, as its number."""
        count = len(batch.entries)
        lists = np.empty((FilterCall.LISTS, count), np.int64)
        table = np.zeros(len(FilterCall), np.int64)
        table[FilterCall.COUNT], table[FilterCall.CHUNK_COUNT] = count, len(batch.chunks)
        for field, array in (
            (FilterCall.LISTS, lists), (FilterCall.ENTRIES, batch.entries), (FilterCall.CHUNKS, batch.chunks),
            (FilterCall.WORDS, batch.words), (FilterCall.SIZES, batch.trace.sizes), (FilterCall.WARPS, self._warps),
            (FilterCall.CTAS, self._ctas),
        ):  # fmt: skip
            table[field] = array.ctypes.data
        table[FilterCall.PASSES_STRONG] = self._passes_strong
        self._warps[:, FilteredWarp.SPLIT_AT] = -1
        batch.trace.library.filter_accesses(table.ctypes.data)
        others, accesses, exits, completed, arrivals = (
            found[:length] for found, length in zip(lists, table.tolist(), strict=False)
        )
        pairs = [(arrival & _WARP_OF_ARRIVAL, arrival >> 32) for arrival in arrivals.tolist()]
        return Filtered(others, accesses, exits, completed, pairs)

    def stopped_at(self, cta: CtaFilter) -> int | None:
        """Returns the entry of the last part of the trace at which the filter stopped for a CTA."""
        found = int(self._ctas[cta.row, FilteredCta.STOPPED_AT])
        return None if found == NOT_YET else found

    def index_of(self, warp: int) -> int:
        """Returns a warp's index in its CTA."""
        return int(self._warps[warp, FilteredWarp.INDEX])

    def split_warps(self) -> dict[int, int | None]:
        """Returns the diverged warps of filtered CTAs, with the entry of the last part of the trace since which they
        are diverged, or None if they diverged in an earlier part.
        """
        are_split = (self._warps[:, FilteredWarp.APART] != 0) & (self._warps[:, FilteredWarp.CTA] != NO_CTA)
        entries = self._warps[are_split, FilteredWarp.SPLIT_AT].tolist()
        return {
            warp: at if at >= 0 else None for warp, at in zip(np.flatnonzero(are_split).tolist(), entries, strict=True)
        }

    def are_apart(self, batch: Batch) -> NDArray[np.bool_]:
        """Returns for each entry of the next part of the trace that belongs to a filtered CTA whether the lanes of its
        warp have diverged.
        """
        kinds, numbers = batch.entries["kind"], batch.entries["number"] - 1
        order = np.argsort(batch.entries["warp"], kind="stable")
        more = np.select([kinds == TraceEvent.DIVERGED, kinds == TraceEvent.REJOINED], [numbers, -numbers], 0)[order]
        warps, first, which = np.unique(batch.entries["warp"][order], return_index=True, return_inverse=True)
        parts = np.cumsum(more)
        parts -= (parts - more)[first][which]
        found = np.zeros(len(order), np.bool_)
        found[order] = parts + self._warps[warps, FilteredWarp.APART][which] > 0
        return found

    def is_split(self, cta: CtaFilter) -> bool:
        """Returns whether the lanes of some warp of a CTA have diverged."""
        return bool(self._warps[cta.warps, FilteredWarp.APART].any())

    def arrived(self, cta: CtaFilter) -> list[int]:
        """Returns how often each traced warp of a CTA has arrived at the barrier."""
        found: list[int] = self._warps[cta.warps, FilteredWarp.ARRIVED].tolist()
        return found

    def left(self, cta: CtaFilter) -> list[int]:
        """Returns how often each traced warp of a CTA has left the barrier."""
        found: list[int] = self._warps[cta.warps, FilteredWarp.LEFT].tolist()
        return found

    def times(self, cta: CtaFilter) -> dict[int, int]:
        """Returns the time of each traced warp of a CTA by its index."""
        indices, times = self._warps[cta.warps][:, [FilteredWarp.INDEX, FilteredWarp.TIME]].T.tolist()
        return dict(zip(indices, times, strict=True))
