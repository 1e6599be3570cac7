"""What happens natively, as events: the interpreter writes it down, and the sink of the launch is told of it whenever
Python is back.

Accesses that a fragment makes one after the other are one `Accesses`; each of them is made an `Access` only for those
who look at it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.emulator.machine import events
from harness.emulator.machine.events import Access, Agent, Site
from harness.emulator.machine.lanes import WARP_SIZE, lanes_of
from harness.emulator.machine.state import Warp
from harness.emulator.native.layout import TRACE_BYTES, WHOLE_CHUNK, Context, Event

ENTRY = np.dtype(
    [("kind", "u2"), ("flags", "u2"), ("warp", "i4"), ("lanes", "u4"), ("site", "i4"), ("run", "i8"), ("value", "i8"),
     ("chunk", "i4"), ("number", "i4"), ("base", "i8")]
)  # fmt: skip
"""An entry as the interpreter writes it. run: of accesses of one fragment with nothing in between it is the same. base:
of the one allocation in global memory that is accessed, if there is one.
"""
assert ENTRY.itemsize == TRACE_BYTES
SAME_PLACE, WIDE_VALUES, WIDE_ADDRESS, FIRST_SAME_VALUE = 1, 2, 4, 8
"""Flags of an access: one address for all lanes; registers of 64 bits; from a bit on, for each item, one value."""
ENTRIES, WORDS, CHUNKS, MARGIN = 1 << 13, 1 << 18, 1 << 18, 1 << 10
MODES = {"ld": "read", "st": "write"}


class Trace:
    """Holds what the interpreter has written down of one launch."""

    def __init__(
        self,
        sink: events.Sink,
        context: memoryview,
        sites: Sequence[Site],
        accesses: dict[int, tuple[str, str, int, int]],
    ) -> None:
        """accesses: by instruction, the verb, the state space, the bytes of an item and how many items."""
        self._sink = sink
        self._context = context
        self._sites = sites
        self.accesses = accesses
        kinds = [*dict.fromkeys((verb, space) for verb, space, _, _ in accesses.values())]
        self._kinds = np.full(len(sites) + 1, -1)
        for index, (verb, space, _, _) in accesses.items():
            self._kinds[index] = kinds.index((verb, space))
        self._warps: dict[Warp, int] = {}
        self._who: list[tuple[int, int, int]] = []
        self._agents: dict[tuple[int, int], Agent] = {}
        self._entries = np.zeros(ENTRIES + MARGIN, ENTRY)
        self._words = np.zeros(WORDS + MARGIN, np.uint64)
        self._chunks = np.zeros(CHUNKS + MARGIN, np.int32)
        for name, array, room in (
            ("TRACE", self._entries, ENTRIES),
            ("TRACE_WORDS", self._words, WORDS),
            ("TRACE_CHUNKS", self._chunks, CHUNKS),
        ):
            context[Context[name]], context[Context[f"{name}_ROOM"]] = array.ctypes.data, room

    def number_of(self, warp: Warp) -> int:
        """The number by which the interpreter knows a warp."""
        number = self._warps.get(warp)
        if number is None:
            number = self._warps[warp] = len(self._who)
            self._who.append((warp.cta.cluster.number, warp.cta.rank, warp.index))
        return number

    def agent(self, warp: int, lanes: int) -> Agent:
        agent = self._agents.get((warp, lanes))
        if agent is None:
            agent = self._agents[warp, lanes] = Agent(*self._who[warp], lanes)
        return agent

    def site(self, index: int) -> Site:
        return self._sites[index]

    def drain(self) -> None:
        """Tell the sink all that has happened since."""
        context = self._context
        count = context[Context.TRACED]
        if not count:
            return
        entries = self._entries[:count].copy()
        part = _Part(self, entries, self._words[: context[Context.TRACE_WORDS_USED]].copy())
        found = self._chunks[: context[Context.TRACE_CHUNKS_USED]].copy()
        context[Context.TRACED] = context[Context.TRACE_WORDS_USED] = context[Context.TRACE_CHUNKS_USED] = 0
        starts = self._starts(entries)
        chunk_ends = np.append(entries["chunk"][starts[1:]], len(found))
        is_whole = found >= WHOLE_CHUNK
        chunks, whole = found & (WHOLE_CHUNK - 1), found[is_whole] - WHOLE_CHUNK
        whole_ends = np.append(0, np.cumsum(is_whole))[chunk_ends]
        ends = zip([*starts[1:].tolist(), count], chunk_ends.tolist(), whole_ends.tolist(), strict=True)
        sink, first, chunk, covered = self._sink, 0, 0, 0
        for entry, (end, chunk_end, covered_end) in zip(entries[starts].tolist(), ends, strict=True):
            if entry[0] == Event.ACCESS:
                touched = chunks[chunk:chunk_end], whole[covered:covered_end]
                make = partial(map, part.access, range(first, end))
                sink(self._run(entry, *touched, end - first, make))
            else:
                sink(self._event(entry, part.words))
            first, chunk, covered = end, chunk_end, covered_end

    def _starts(self, entries: NDArray[Any]) -> NDArray[np.int64]:
        """The entries that go on with no run of accesses of one kind."""
        accesses = entries["kind"] == Event.ACCESS
        goes_on = accesses[1:] & accesses[:-1]
        for column in (self._kinds[entries["site"]], entries["run"], entries["base"]):
            goes_on &= column[1:] == column[:-1]
        return np.flatnonzero(np.append(True, ~goes_on))

    def _run(self, entry: tuple[int, ...], *about: Any) -> events.Accesses:
        _, _, warp, lanes, site, *_, base = entry
        verb, space, *_ = self.accesses[site]
        agent = self.agent(warp, lanes)
        cta = agent.cta if space == "shared" else -1
        return events.Accesses(agent, MODES[verb], space, cta, base, *about)

    def _event(self, entry: tuple[int, ...], words: NDArray[np.uint64]) -> Any:
        kind, _, warp, lanes, index, _, value, _, number, _ = entry
        agent, site = self.agent(warp, lanes), self._sites[index]
        if kind == Event.RESUMED:
            return events.Resumed(agent)
        if kind == Event.SUSPENDED:
            return events.Suspended(agent, site, "waits")
        if kind == Event.ARRIVED:
            return events.GroupArrived(agent, site, number, value, True)
        if kind == Event.LEFT:
            return events.GroupLeft(agent, site, number, value)
        if kind == Event.COMPLETED:
            return events.GroupCompleted(agent.cluster, agent.cta, number, value)
        if kind == Event.SYNCED:
            return events.WarpSynced(agent, site, value)
        if kind == Event.EXITED:
            return events.Exited(agent)
        parts = tuple(self.agent(warp, mask) for mask in words[value : value + number].tolist())
        return events.Diverged(agent, parts) if kind == Event.DIVERGED else events.Rejoined(parts, agent)


class _Part:
    """What was written down of accesses between two times that Python was back."""

    __slots__ = ("_trace", "entries", "words")

    def __init__(self, trace: Trace, entries: NDArray[Any], words: NDArray[np.uint64]) -> None:
        self._trace, self.entries, self.words = trace, entries, words

    def access(self, number: int) -> Access:
        _, flags, warp, lanes, site, _, first, *_ = self.entries[number].item()
        verb, space, nbytes, items = self._trace.accesses[site]
        agent, here = self._trace.agent(warp, lanes), lanes_of(lanes)[1]
        where: Any
        if flags & SAME_PLACE:
            where, first = int(self.words[first]), first + 1
        else:
            wide = space != "shared" and flags & WIDE_ADDRESS
            where = self.words[first : first + WARP_SIZE][here].astype(np.uint64 if wide else np.uint32)
            first += WARP_SIZE
        values: list[Any] = []
        for item in range(items if verb == "st" else 0):
            mask = (1 << 8 * nbytes) - 1
            if flags >> FIRST_SAME_VALUE + item & 1:
                values.append(int(self.words[first]) & mask)
                first += 1
                continue
            lane_values = self.words[first : first + WARP_SIZE]
            if flags & SAME_PLACE:
                values.append(int(lane_values[here[-1]]) & mask)
            else:
                kept = lane_values[here] & np.uint64(mask)
                values.append(kept.astype(np.uint64 if flags & WIDE_VALUES else np.uint32))
            first += WARP_SIZE
        stored = None if not values else values[0] if len(values) == 1 else tuple(values)
        cta = agent.cta if space == "shared" else -1
        return Access(agent, self._trace.site(site), MODES[verb], space, cta, where, nbytes, items, stored)
