"""Turns the trace of native code into events. The interpreter writes the trace, and the sink of the launch gets its
events before any later event.

Consecutive accesses of a fragment form one `Accesses`; each becomes an `Access` only for sinks that need it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emugpu.emulator.machine import events
from emugpu.emulator.machine.events import Access, Agent, Site
from emugpu.emulator.machine.lanes import WARP_SIZE, agreed, lanes_of
from emugpu.emulator.machine.poison import Poison
from emugpu.emulator.machine.sinks import DeferredSink
from emugpu.emulator.machine.state import Grid, Warp
from emugpu.emulator.memory.bytes import aligned_bytes
from emugpu.emulator.native.layout import TRACE_BYTES, WHOLE_CHUNK, Context, Traced, TraceEvent
from emugpu.emulator.native.library import Library

ENTRY = np.dtype(
    [("kind", "u2"), ("flags", "u2"), ("warp", "i4"), ("lanes", "u4"), ("site", "i4"), ("run", "i8"), ("value", "i8"),
     ("chunk", "i4"), ("number", "i4"), ("base", "i8")]
)  # fmt: skip
"""An entry in the interpreter's format. ``run`` is equal for consecutive accesses of one fragment. ``base`` is the base
of the only allocation in global memory that is accessed, if there is only one.
"""
assert ENTRY.itemsize == TRACE_BYTES
FIRST_SAME_VALUE = 8
"""The bit of an access's flags that says whether all lanes store one value as the first item."""
ENTRIES, WORDS, CHUNKS, MARGIN = 1 << 16, 1 << 18, 1 << 19, 1 << 10
_ROW = np.arange(WARP_SIZE, dtype=np.uint64)
_FILLED = (
    (Context.TRACED, Context.TRACE_ROOM), (Context.TRACE_WORDS_USED, Context.TRACE_WORDS_ROOM),
    (Context.TRACE_CHUNKS_USED, Context.TRACE_CHUNKS_ROOM),
)  # fmt: skip
_NOBODY = Agent(-1, -1, -1, 0)
OTHER_FENCES = ("proxy", "mbarrier_init")
"""Fences that are no memory barrier of threads have no entry of their own."""
MODES = {"ld": "read", "st": "write", "atom": "atomic"}
SPACES = {"shared": Traced.SHARED, "global": Traced.GLOBAL, "local": Traced.LOCAL}
_OF_SPACE = sum(SPACES.values())
_SPACES = {int(flag): space for space, flag in SPACES.items()}


class Trace:
    """Holds the interpreter's trace of one launch."""

    def __init__(
        self,
        grid: Grid,
        context: memoryview,
        sites: Sequence[Site],
        accesses: dict[int, tuple[str, str, int, int]],
        library: Library,
    ) -> None:
        """Attaches the trace to a launch.

        The sink of ``grid`` gets all events in order; Python's own events pass through here, too. ``accesses`` holds,
        by instruction, the verb, the state space, the bytes of an item and the number of items.
        """
        assert isinstance(grid.sink, DeferredSink)
        self._sink, grid.sink = grid.sink, self._pass_on
        self._blocks = [(block.base, block.base + block.data.size) for block in grid.memory.direct()]
        self._context = context
        context[Context.TRACES_LOCAL] = self._sink.takes_local
        self._sites = sites
        self.library = library
        self.accesses = accesses
        kind_of = {index: (*about[:2], sites[index].is_incoherent) for index, about in accesses.items()}
        kinds = [*dict.fromkeys(kind_of.values())]
        self.kinds = np.full(len(sites) + 1, -1)
        self.items = np.zeros(len(sites) + 1, np.int64)
        self.sizes = np.zeros(len(sites) + 1, np.int32)
        """The instructions with the same verb and state space, all or none of them incoherent; the items that a lane
        accesses, and their bytes, by instruction.
        """
        for index, (_, _, nbytes, items) in accesses.items():
            kind = kinds.index(kind_of[index])
            self.kinds[index], self.items[index], self.sizes[index] = kind, items, nbytes * items
        self._warps: dict[tuple[int, int, int], int] = {}
        self.who: list[tuple[int, int, int]] = []
        self._agents: dict[tuple[int, int], Agent] = {}
        self._others: list[Any] = []
        self._entries = aligned_bytes((ENTRIES + MARGIN) * ENTRY.itemsize).view(ENTRY)
        self._words = aligned_bytes((WORDS + MARGIN) * 8).view(np.uint64)
        self._chunks = aligned_bytes((CHUNKS + MARGIN) * 4).view(np.int32)
        for name, array, room in (
            ("TRACE", self._entries, ENTRIES),
            ("TRACE_WORDS", self._words, WORDS),
            ("TRACE_CHUNKS", self._chunks, CHUNKS),
        ):
            context[Context[name]], context[Context[f"{name}_ROOM"]] = array.ctypes.data, room

    def number_of(self, warp: Warp) -> int:
        """Returns the interpreter's number of a warp."""
        return self._number((warp.cta.cluster.number, warp.cta.rank, warp.index))

    def _number(self, who: tuple[int, int, int]) -> int:
        number = self._warps.get(who)
        if number is None:
            number = self._warps[who] = len(self.who)
            self.who.append(who)
        return number

    def agent(self, warp: int, lanes: int) -> Agent:
        agent = self._agents.get((warp, lanes))
        if agent is None:
            agent = self._agents[warp, lanes] = Agent(*self.who[warp], lanes)
        return agent

    def site(self, index: int) -> Site:
        return self._sites[index]

    def _pass_on(self, event: Any) -> None:
        """Takes an event that Python made. It may become an entry of the trace, because emptying the trace for each
        such event takes longer.
        """
        if isinstance(event, Access) and event.space == "local" and not self._sink.takes_local:
            return
        batches = self._sink.batches
        if batches is not None and batches.includes(event):
            self.drain_if_full()
            if self._note(event):
                return
        if batches is None and self._context[Context.TRACED]:
            self.drain_if_full()
            self._append(TraceEvent.OTHER, 0, _NOBODY, -1, len(self._others), 0)
            self._others.append(event)
            return
        self.drain()
        self._sink(event)

    def _note(self, event: Any) -> bool:
        """Writes an event as the interpreter would. Returns False if there is no such entry."""
        if isinstance(event, Access):
            return self._note_access(event)
        about = _entry_of(event)
        if about is not None:
            kind, agent, *values = about
            self._append(kind, 0, agent, *values)
        return about is not None

    def _append(
        self, kind: TraceEvent, flags: int, agent: Agent, site: int, value: int, number: int, base: int = 0
    ) -> None:
        context = self._context
        count, used = context[Context.TRACED], context[Context.TRACE_CHUNKS_USED]
        about = (kind, flags, self._number(agent[:3]), agent.lanes, site, 0, value, used, number, base)
        self._entries[count] = about
        context[Context.TRACED] = count + 1

    def _note_access(self, event: Access) -> bool:
        agent, site, mode, space, cta, where, nbytes, items, values = event
        verb, named, *about = self.accesses.get(site.index, ("", "", 0, 0))
        is_own = space in ("global", "param", "const") or (space == "shared" and cta == agent.cta)
        if MODES.get(verb) != mode or about != [nbytes, items] or not is_own or isinstance(where, Poison):
            return False
        if named != space and (named != "generic" or space not in SPACES):
            return False
        here = lanes_of(agent.lanes)[1]
        flags = SPACES.get(space, 0)
        flags |= Traced.WIDE if isinstance(where, np.ndarray) and where.dtype.itemsize > 4 else 0
        flags |= (Traced.SAME if isinstance(where, int) else 0) | (0 if mode == "read" else Traced.STORE)
        rows = [where]
        if mode == "atomic":
            rows.append(np.full(len(here), values, np.uint64))
        elif mode == "write":
            stored = values if isinstance(values, tuple) else (values,)
            rows += stored
            for item, value in enumerate(stored):
                if not isinstance(value, np.ndarray):
                    flags |= 1 << FIRST_SAME_VALUE + item
                elif value.dtype.itemsize > 4:
                    flags |= Traced.VALUES
        first = self._context[Context.TRACE_WORDS_USED]
        for row in rows:
            self._add_words(row, here)
        places = np.atleast_1d(np.asarray(where)).astype(np.int64)
        ends = int(places.min()), int(places.max()) + nbytes * items
        base = next((b for b, end in self._blocks if b <= ends[0] and ends[1] <= end), 0) if space == "global" else 0
        kind = TraceEvent.ACCESS if site.semantics == "weak" else TraceEvent.STRONG
        self._append(kind, flags, agent, site.index, first, items, base)
        if space == "shared" or base:
            touched = np.unique((places - base)[:, None] + np.arange(nbytes * items))
            chunks, counts = np.unique(touched >> 4, return_counts=True)
            used = self._context[Context.TRACE_CHUNKS_USED]
            self._chunks[used : used + len(chunks)] = chunks + WHOLE_CHUNK * (counts == 16)
            self._context[Context.TRACE_CHUNKS_USED] = used + len(chunks)
        return True

    def _add_words(self, row: Any, here: NDArray[np.int64]) -> None:
        """Adds one value for all lanes, or one for each lane in ``here``."""
        used = self._context[Context.TRACE_WORDS_USED]
        if isinstance(row, np.ndarray):
            words = np.zeros(WARP_SIZE, np.uint64)
            words[here] = row
        else:
            words = np.array([row & (1 << 64) - 1], np.uint64)
        self._words[used : used + len(words)] = words
        self._context[Context.TRACE_WORDS_USED] = used + len(words)

    def drain_if_full(self) -> None:
        """Empties the trace if it is nearly full."""
        context = self._context
        if any(2 * context[used] > context[room] for used, room in _FILLED):
            self.drain()

    def drain(self) -> None:
        """Sends the sink everything that happened since the last call."""
        context = self._context
        count = context[Context.TRACED]
        if not count:
            return
        used, touched = context[Context.TRACE_WORDS_USED], context[Context.TRACE_CHUNKS_USED]
        context[Context.TRACED] = context[Context.TRACE_WORDS_USED] = context[Context.TRACE_CHUNKS_USED] = 0
        entries = self._entries[:count].view(np.uint8).copy().view(ENTRY)  # NumPy copies structures field by field
        batch = Batch(self, entries, self._words[:used].copy(), self._chunks[:touched].copy())
        if self._sink.batches is not None:
            self._sink.batches.take(batch)
            return
        for event in batch.events(np.arange(count)):
            self._sink(event)
        self._others.clear()

    def run(self, entry: tuple[int, ...], all_lanes: int, *about: Any) -> events.Accesses:
        _, flags, warp, lanes, site, *_, base = entry
        verb, space = self.verb_and_space(site, flags)
        agent = self.agent(warp, lanes)
        cta = agent.cta if space == "shared" else -1
        return events.Accesses(agent, MODES[verb], space, cta, all_lanes, base, *about)

    def verb_and_space(self, site: int, flags: int) -> tuple[str, str]:
        """Returns what an access does, and the state space in which it does it."""
        verb, named, *_ = self.accesses[site]
        return verb, _SPACES.get(flags & _OF_SPACE, named)

    def event(self, entry: tuple[int, ...], words: NDArray[np.uint64]) -> Any:
        kind, _, warp, lanes, index, _, value, _, number, _ = entry
        if kind == TraceEvent.OTHER:
            return self._others[value]
        agent, site = self.agent(warp, lanes), self._sites[index]
        if kind == TraceEvent.RESUMED:
            return events.Resumed(agent)
        if kind == TraceEvent.SUSPENDED:
            return events.Suspended(agent, site, "waits")
        if kind == TraceEvent.ARRIVED:
            return events.GroupArrived(agent, site, number, value, True)
        if kind == TraceEvent.LEFT:
            return events.GroupLeft(agent, site, number, value)
        if kind == TraceEvent.COMPLETED:
            return events.GroupCompleted(agent.cluster, agent.cta, number, value)
        if kind == TraceEvent.SYNCED:
            return events.WarpSynced(agent, site, value)
        if kind == TraceEvent.EXITED:
            return events.Exited(agent)
        if kind == TraceEvent.FENCED:
            return events.Fenced(agent, site)
        parts = tuple(self.agent(warp, mask) for mask in words[value : value + number].tolist())
        return events.Diverged(agent, parts) if kind == TraceEvent.DIVERGED else events.Rejoined(parts, agent)


class Batch:
    """A part of the trace: entries, and the words and chunks of accesses."""

    __slots__ = ("chunks", "entries", "trace", "words")

    def __init__(
        self, trace: Trace, entries: NDArray[Any], words: NDArray[np.uint64], chunks: NDArray[np.int32]
    ) -> None:
        self.trace, self.entries, self.words, self.chunks = trace, entries, words, chunks

    def events(self, which: NDArray[np.int64]) -> Iterator[Any]:
        """Makes events of some entries, in order. Weak accesses that belong together become one event."""
        entries = self.entries[which]
        accesses = entries["kind"] == TraceEvent.ACCESS
        goes_on = accesses[1:] & accesses[:-1] & (entries["run"][1:] != 0)  # 0: Python made the event
        spaces = entries["flags"] & _OF_SPACE
        for column in (self.trace.kinds[entries["site"]], spaces, entries["run"], entries["base"]):
            goes_on &= column[1:] == column[:-1]
        starts = np.append(0, np.flatnonzero(~goes_on) + 1)
        found, counts = self.chunks_of(which)
        is_whole = found >= WHOLE_CHUNK
        chunks, whole = found & (WHOLE_CHUNK - 1), found[is_whole] - WHOLE_CHUNK
        ends = np.append(starts[1:], len(which))
        chunk_ends = np.cumsum(counts)[ends - 1]
        whole_ends = np.append(0, np.cumsum(is_whole))[chunk_ends]
        lanes = np.bitwise_or.reduceat(entries["lanes"], starts)
        first = chunk = covered = 0
        about = (entries[starts], lanes, ends, chunk_ends, whole_ends)
        rows = zip(*(column.tolist() for column in about), strict=True)
        for entry, all_lanes, end, chunk_end, covered_end in rows:
            if entry[0] == TraceEvent.ACCESS:
                make = partial(map, self.access, which[first:end].tolist())
                yield self.trace.run(
                    entry, all_lanes, chunks[chunk:chunk_end], whole[covered:covered_end], end - first, make
                )
            elif entry[0] == TraceEvent.STRONG:
                yield from self.accesses(int(which[first]))
            else:
                yield self.trace.event(entry, self.words)
            first, chunk, covered = end, chunk_end, covered_end

    def chunks_of(self, which: NDArray[np.int64]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Returns the chunks of some entries, and their number per entry."""
        firsts = np.append(self.entries["chunk"], len(self.chunks))
        counts = firsts[which + 1] - firsts[which]
        return self.chunks[_ranges(firsts[which], counts)], counts

    def part(self, first: int, end: int) -> Batch:
        """Returns a batch of consecutive entries."""
        chunks = self.chunks if end == len(self.entries) else self.chunks[: self.entries["chunk"][end]]
        return Batch(self.trace, self.entries[first:end], self.words, chunks)

    def select(self, which: NDArray[np.int64]) -> Batch:
        """Returns a batch of some entries, which are all accesses."""
        entries = self.entries[which]
        flags = entries["flags"]
        single = flags & (Traced.SAME | Traced.ROW) != 0
        values = WARP_SIZE * self.trace.items[entries["site"]] - 31 * np.bitwise_count(flags >> FIRST_SAME_VALUE)
        counts = np.where(single, 1, 32) + np.where(flags & Traced.STORE, values, 0)
        words = self.words[_ranges(entries["value"], counts)]
        entries["value"] = np.cumsum(counts) - counts
        chunks, counts = self.chunks_of(which)
        entries["chunk"] = np.cumsum(counts) - counts
        return Batch(self.trace, entries, words, chunks)

    def accesses(self, number: int) -> Iterator[Access]:
        """Makes the event of a load or store, or those of the lanes of an atomic."""
        _, flags, warp, lanes, site, _, first, *_ = self.entries[number].item()
        verb, space = self.trace.verb_and_space(site, flags)
        if verb != "atom":
            yield self.access(number)
            return
        _, _, nbytes, items = self.trace.accesses[site]
        here = lanes_of(lanes)[1]
        where = self._words_of_lanes(number)[here].tolist()
        words = self.words[first + (1 if flags & (Traced.SAME | Traced.ROW) else WARP_SIZE) :]
        for lane, place, held in zip(here.tolist(), where, words[:WARP_SIZE][here].tolist(), strict=True):
            agent = self.trace.agent(warp, 1 << lane)
            cta = agent.cta if space == "shared" else -1
            yield Access(agent, self.trace.site(site), MODES[verb], space, cta, place, nbytes, items, held)

    def _words_of_lanes(self, number: int) -> NDArray[np.uint64]:
        """Returns the addresses of an access by lane."""
        _, flags, _, _, site, _, first, *_ = self.entries[number].item()
        if flags & Traced.SAME:
            return np.full(WARP_SIZE, self.words[first])
        found: NDArray[np.uint64] = self.words[first : first + WARP_SIZE]
        return found[0] + _ROW * np.uint64(self.trace.sizes[site]) if flags & Traced.ROW else found

    def access(self, number: int) -> Access:
        _, flags, warp, lanes, site, _, first, *_ = self.entries[number].item()
        verb, space = self.trace.verb_and_space(site, flags)
        _, _, nbytes, items = self.trace.accesses[site]
        agent, here = self.trace.agent(warp, lanes), lanes_of(lanes)[1]
        where: Any
        if space == "local":
            where = self._words_of_lanes(number)[here].astype(np.int64)
            first += 1 if flags & (Traced.SAME | Traced.ROW) else WARP_SIZE
        elif flags & Traced.SAME:
            where, first = int(self.words[first]), first + 1
        else:
            wide = space != "shared" and flags & Traced.WIDE
            where = self._words_of_lanes(number)[here].astype(np.uint64 if wide else np.uint32)
            first += 1 if flags & Traced.ROW else WARP_SIZE
        values: list[Any] = []
        for item in range(items if verb == "st" else 0):
            mask = (1 << 8 * nbytes) - 1
            if flags >> FIRST_SAME_VALUE + item & 1:
                values.append(int(self.words[first]) & mask)
                first += 1
                continue
            kept = self.words[first : first + WARP_SIZE][here] & np.uint64(mask)
            kept = kept.astype(np.uint64 if flags & Traced.VALUES else np.uint32)
            values.append(agreed(kept) if flags & Traced.SAME and space != "local" else kept)
            first += WARP_SIZE
        stored = None if not values else values[0] if len(values) == 1 else tuple(values)
        cta = agent.cta if space == "shared" else -1
        return Access(agent, self.trace.site(site), MODES[verb], space, cta, where, nbytes, items, stored)


def _entry_of(event: Any) -> tuple[TraceEvent, Agent, int, int, int] | None:
    """Returns kind, agent, instruction, value and number of an event's entry, if the entry can hold the whole event."""
    match event:
        case events.Resumed():
            return TraceEvent.RESUMED, event.agent, -1, 0, 0
        case events.Suspended(mbarrier=None, what="waits"):
            return TraceEvent.SUSPENDED, event.agent, event.site.index, 0, 0
        case events.Exited():
            return TraceEvent.EXITED, event.agent, -1, 0, 0
        case events.WarpSynced():
            return TraceEvent.SYNCED, event.agent, event.site.index, event.members, 0
        case events.Fenced(site=Site(opcode="fence" | "membar")) if event.site.modifiers[0] not in OTHER_FENCES:
            return TraceEvent.FENCED, event.agent, event.site.index, 0, 0
        case events.GroupArrived(waits=True) if event.barrier >= 0:
            return TraceEvent.ARRIVED, event.agent, event.site.index, event.generation, event.barrier
        case events.GroupLeft() if event.barrier >= 0:
            return TraceEvent.LEFT, event.agent, event.site.index, event.generation, event.barrier
        case events.GroupCompleted() if event.barrier >= 0:
            return TraceEvent.COMPLETED, Agent(event.cluster, event.cta, 0, 0), -1, event.generation, event.barrier
    return None


def _ranges(firsts: NDArray[Any], counts: NDArray[Any]) -> NDArray[np.int64]:
    """Returns the numbers of several ranges: ``counts`` numbers from each of ``firsts``."""
    ends = np.cumsum(counts)
    return np.repeat(firsts - (ends - counts), counts) + np.arange(ends[-1] if len(ends) else 0)
