"""Finds warps that go round a loop without end although they wait at barriers, so that none of them only polls.

A round of such a loop leaves everything as it was: the place and the live registers of each fragment, the barriers, and
what the round has written. The machine first compares registers at a few moments, which is cheap. If they are alike, it
runs fragment by fragment and looks for two equal rounds in a row. Nothing but these fragments can run, so a third round
would be equal, too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emugpu.emulator.errors import Livelock
from emugpu.emulator.machine import events, reports
from emugpu.emulator.machine.poison import Poison
from emugpu.emulator.machine.sinks import Sink
from emugpu.emulator.machine.state import Fragment
from emugpu.emulator.memory.global_memory import GlobalMemory

FEWEST_LOOKS = 4
"""After so many looks at which registers were alike the fragments are watched; then after twice as many, and so on."""
TURNS = 64
"""The most turns for each fragment while they are watched."""

_HARMLESS = (
    events.Access, events.Polled, events.Waited, events.WarpSynced, events.Diverged, events.Rejoined, events.Fenced,
    events.Suspended, events.Resumed, events.GroupArrived, events.GroupCompleted, events.GroupLeft,
)  # fmt: skip
"""Events of a round that leave no more behind than what it writes."""


class Spinning:
    """What is known of the fragments that run while no event comes from outside."""

    def __init__(self, machine: Any) -> None:
        self._machine = machine
        self._samples: dict[Any, list[Any]] = {}
        self._clock_reads = 0
        self.looks = 0

    def forget(self) -> None:
        self._samples.clear()
        self.looks = 0

    def look(self, fragments: Iterable[Fragment]) -> int:
        """Returns the number of looks in a row, this one included, at which each fragment had the same live registers
        whenever it was at the same block.
        """
        machine = self._machine
        alike = machine.grid.clock_reads == self._clock_reads
        self._clock_reads = machine.grid.clock_reads
        for f in fragments:
            now, key = self._registers(f), (f.agent, f.block)
            alike = alike and same(self._samples.get(key, now), now, f)
            self._samples[key] = now
        self.looks = self.looks + 1 if alike else 0
        return self.looks

    def _registers(self, f: Fragment) -> list[Any]:
        return f.values(self._machine.code.live_in[f.block]) if f.block >= 0 else []

    def watch(self) -> None:
        """Gives the ready fragments their turns, and raises Livelock if they come back to where they were twice."""
        machine, ready = self._machine, self._machine.wakeups.ready
        if self.looks < FEWEST_LOOKS or self.looks & (self.looks - 1):
            return
        record = _Record(machine.grid.sink)
        clock_reads = machine.grid.clock_reads
        head, state, written = None, None, None
        registers: list[tuple[Fragment, list[Any]]] = []
        since, most = 0, 1
        machine.watched, machine.grid.sink = True, record
        try:
            for _ in range(TURNS * len(self._machine.clusters.fragments)):
                if not ready or machine.standby.preempted or not record.is_harmless:
                    return
                now = ready[0].agent, ready[0].block, len(ready)
                if now == head and self._state(ready) == state and self._are_same(registers):
                    if record.written == written and machine.grid.clock_reads == clock_reads:
                        raise Livelock(self._report(record))
                    written, record.written = record.written, {}
                    since = 0
                if since == most or state is None:
                    head, state, written = now, self._state(ready), None
                    registers = [(f, self._registers(f)) for f in self._machine.clusters.fragments]
                    since, most = 0, 2 * most
                    record.written, record.polls = {}, {}
                since += 1
                machine.turn(ready.popleft())
        finally:
            machine.watched, machine.grid.sink = False, record.sink

    def _state(self, ready: deque[Fragment]) -> Any:
        """Returns where all fragments are, and how many threads have arrived at each barrier."""
        places = [(f.agent, f.block, f.waiting is None) for f in self._machine.clusters.fragments]
        ctas = [cta for c in self._machine.clusters.living for cta in c.ctas]
        arrived = [[(b.number, b.arrived) for b in cta.named.in_use()] for cta in ctas]
        return sorted(places), arrived, [f.agent for f in ready]

    def _are_same(self, before: list[tuple[Fragment, list[Any]]]) -> bool:
        """Returns whether all live registers are as before. The fragments may be other objects now."""
        then = {f.agent: registers for f, registers in before}
        return all(same(then[f.agent], self._registers(f), f) for f in self._machine.clusters.fragments)

    def _report(self, record: _Record) -> str:
        machine = self._machine
        polls = [
            (f, f"goes round a loop with barriers; its CTA {watch.describe(f)}")
            for f in self._machine.clusters.fragments
            if (watch := record.polls.get((f.cta.cluster.number, f.cta.rank))) is not None
        ]
        polls += [(poller.fragment, poller.what) for poller in machine.standby.pollers]
        return reports.livelock(machine.code, polls, machine.clusters)


class _Record:
    """A sink that records what rounds of a loop read and write, and passes events on to the launch's own sink."""

    def __init__(self, sink: Sink | None) -> None:
        self.sink = sink
        self.is_harmless = True
        self.written: dict[Any, Any] = {}
        """The last contents that were written to each place."""
        self.polls: dict[tuple[int, int], Watch] = {}
        """For each CTA, what it has read in global memory."""

    def __call__(self, event: Any) -> None:
        if self.sink is not None:
            self.sink(event)
        if isinstance(event, events.Access):
            agent = event.agent
            if event.mode != "read":
                where = event.where.tobytes() if isinstance(event.where, np.ndarray) else event.where
                self.written[event.space, agent, where] = _plain(event.values)
            watch = self.polls.setdefault((agent.cluster, agent.cta), Watch(None))
            if event.space == "global" and event.mode != "write":
                watch(event)
        elif not isinstance(event, _HARMLESS):
            self.is_harmless = False


def _plain(values: Any) -> Any:
    """Returns contents of memory as values that can be compared."""
    if isinstance(values, tuple):
        return tuple(map(_plain, values))
    return values.tobytes() if isinstance(values, np.ndarray) else values


class Watch:
    """A sink that records what is read and passes events on to the launch's own sink."""

    def __init__(self, sink: Sink | None) -> None:
        self.sink = sink
        self.polled: dict[str, events.Site] = {}
        self.unnamed = 0
        """Reads in a window that ran natively, which this sink did not see."""
        self.accesses: list[events.Access] = []
        self.accesses_only = True
        """Whether the loop does nothing but access memory, and compute."""

    def begin(self) -> None:
        """The loop may begin here: what came before does not belong to it."""
        self.polled.clear()
        self.accesses.clear()
        self.accesses_only = True

    def found(self, memory: GlobalMemory) -> list[tuple[NDArray[np.uint8], bytes]] | None:
        """Returns the places that the loop reads, and what it found there; None if more than global memory decides."""
        if not self.accesses_only or any(access.space != "global" for access in self.accesses):
            return None
        places = []
        for access in self.accesses:
            size = access.nbytes * access.items
            for address in np.unique(access.where).tolist():
                block, offset = memory.find(address, size)
                places.append(block.data[offset : offset + size])
        return [(place, place.tobytes()) for place in places]

    def __call__(self, event: Any) -> None:
        if self.sink is not None:
            self.sink(event)
        if isinstance(event, events.Access):
            self.accesses.append(event)
            where = event.where if isinstance(event.where, int) else int(event.where[0])
            place = f"global 0x{where:x}" if event.space == "global" else f"{event.space} memory at 0x{where:x}"
            self.polled[place] = event.site
            return
        self.accesses_only = self.accesses_only and isinstance(event, events.Fenced)
        if isinstance(event, events.Polled):
            place = f"for parity {event.phase & 1} of the mbarrier at shared 0x{event.offset:x} of CTA rank {event.cta}"
            self.polled[place] = event.site

    def describe(self, fragment: Fragment) -> str:
        """Describes what the loop polls, with the names of allocations."""
        memory = fragment.grid.memory
        polls = []
        for place, site in self.polled.items():
            name = memory.name_of(int(place.rpartition("0x")[2], 16)) if place.startswith("global") else ""
            polls.append(f"polls {place}{f' ({name})' if name else ''}, PTX line {site.line}: {site.text}")
        site = fragment.grid.code.sites[fragment.grid.code.first[fragment.block]]
        return "; ".join(polls) or f"loops without end, PTX line {site.line}: {site.text}"


def same(before: list[Any], now: list[Any], fragment: Fragment) -> bool:
    """Returns whether registers are as before in a fragment's lanes. The values of other lanes do not matter."""
    return all(_agree(a, b, fragment.lane_index) for a, b in zip(before, now, strict=True))


def _agree(a: Any, b: Any, lanes: NDArray[np.int64]) -> bool:
    if isinstance(a, Poison) or isinstance(b, Poison):
        return a is b or (
            type(a) is type(b) and _agree(a.value, b.value, lanes) and _agree(a.undefined, b.undefined, lanes)
        )
    if a is b:
        return True
    agree = a == b
    return bool(agree[lanes].all() if isinstance(agree, np.ndarray) else agree)
