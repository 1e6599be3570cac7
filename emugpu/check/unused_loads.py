"""Loads whose value their threads do not use: what they read does not matter, so they cannot be part of a race.

Where a tensor has fewer elements than a CTA has threads, compilers let several threads load and compute the same
element, and one of them store it: ``ld; add; @%p st``. If the kernel works in place, nothing orders the store and the
loads of the others, which drop what they have read. In the same way, all warps may load the address of tensor memory,
and those with another role drop it.

A finding about a plain load waits until a thread that has the value executes an instruction that uses it
(`emugpu.emulator.translate.loaded_values`). If the cluster ends before, the finding is dropped. An instruction counts
at whatever time the thread executes it, and a finding that still waits when a run breaks off stands.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from emugpu.check.history import WEAK, Conflict
from emugpu.emulator.machine.events import Agent, Site
from emugpu.emulator.native.layout import Traced, TraceEvent
from emugpu.emulator.native.trace import Batch
from emugpu.emulator.translate.loaded_values import LoadedValues, Reach

Warp = tuple[int, int, int]


class _Held(NamedTuple):
    """A finding about a load by some lanes of a warp."""

    lanes: int
    reach: Reach
    tell: Callable[[], None]


class UnusedLoads:
    """Holds back the findings of one launch about loads whose value nobody has used so far."""

    def __init__(self, values: LoadedValues, instructions: int) -> None:
        self._values = values
        uses = sorted(values.uses)
        self._columns = np.full(instructions, -1)
        """By instruction: the column of a use in the table."""
        self._columns[uses] = np.arange(len(uses))
        self._lanes: NDArray[np.uint32] = np.zeros((0, len(uses)), np.uint32)
        """By warp and use: the lanes that have executed it."""
        self._rows: dict[Warp, int] = {}
        self._traced: NDArray[np.int64] = np.zeros(0, np.int64)
        """By the number of a warp in the trace: its row."""
        self._held: dict[Warp, dict[tuple[object, ...], _Held]] = {}
        self._ended: set[int] = set()
        """The clusters that have ended."""

    # ---- uses ----

    def executed(self, agent: Agent, site: Site) -> None:
        """Handles an instruction that an agent has executed."""
        column = self._columns[site.index]
        if column >= 0:
            warp = agent[:3]
            row = self._row(warp)
            self._lanes[row, column] |= np.uint32(agent.lanes)
            if warp in self._held:
                self._decide(warp)

    def traced(self, batch: Batch) -> None:
        """Handles the stores in a part of the trace."""
        entries = batch.entries
        stores = entries[(entries["kind"] == TraceEvent.ACCESS) & (entries["flags"] & Traced.STORE != 0)]
        columns = self._columns[stores["site"]]
        stores, columns = stores[columns >= 0], columns[columns >= 0]
        new = [self._row(who) for who in batch.trace.who[len(self._traced) :]]
        self._traced = np.append(self._traced, np.array(new, np.int64))
        places = self._traced[stores["warp"]] * self._lanes.shape[1] + columns
        np.bitwise_or.at(self._lanes.reshape(-1), places, stores["lanes"])

    def _row(self, warp: Warp) -> int:
        row = self._rows.setdefault(warp, len(self._rows))
        if row == len(self._lanes):
            more = np.zeros((max(64, row), self._lanes.shape[1]), np.uint32)
            self._lanes = np.concatenate([self._lanes, more])
        return row

    # ---- findings ----

    def holds(self, conflict: Conflict, rule: str, tell: Callable[[], None]) -> bool:
        """Returns whether the finding about a conflict has to wait, perhaps for ever; ``tell`` adds it."""
        read = conflict.new if conflict.old.writes else conflict.old
        if read.writes or read.kind != "generic" or read.site.opcode != "ld" or read.scope != WEAK:
            return False
        reach = self._values.reach(read.site.index)
        warp = read.agent[:3]
        if reach is None or not conflict.readers or self._is_used(warp, conflict.readers, reach):
            return False
        if warp[0] not in self._ended:
            key = (rule, conflict.old.site, conflict.new.site, conflict.late, conflict.readers)
            self._held.setdefault(warp, {}).setdefault(key, _Held(conflict.readers, reach, tell))
        return True

    def _is_used(self, warp: Warp, lanes: int, reach: Reach) -> bool:
        row = self._row(warp)
        executed = self._lanes[row]
        own = np.bitwise_or.reduce(executed[self._columns[[*reach.own]]])
        return bool(int(own) & lanes) or bool(executed[self._columns[[*reach.warp]]].any())

    def _decide(self, warp: Warp) -> None:
        """Adds the findings about values that the warp has used."""
        held = self._held[warp]
        for key, one in [*held.items()]:
            if self._is_used(warp, one.lanes, one.reach):
                del held[key]
                one.tell()

    def ended(self, cluster: int) -> None:
        """Drops the findings about values that a cluster, which has ended, has not used."""
        self._ended.add(cluster)
        for warp in [warp for warp in self._held if warp[0] == cluster]:
            self._decide(warp)
            del self._held[warp]

    def end(self) -> None:
        """Adds the findings that still wait, because the run broke off."""
        held, self._held = self._held, {}
        for of_warp in held.values():
            for one in of_warp.values():
                one.tell()
