"""Loads whose value their threads do not use: what they read does not matter, so they cannot be part of a race.

Where a tensor has fewer elements than a CTA has threads, compilers let several threads load and compute the same
element, and one of them store it: ``ld; add; @%p st``. If the kernel works in place, nothing orders the store and the
loads of the others, which drop what they have read. In the same way, all warps may load the address of tensor memory,
and those with another role drop it.

A finding about a plain load waits until a thread that has the value executes an instruction that uses it
(`emugpu.emulator.translate.loaded_values`). If the cluster ends before, the finding is dropped. An instruction counts
at whatever time the thread executes it, and a finding that still waits when a run breaks off stands.

Only the lanes, and the elements of a vector, count whose bytes the store overlaps: a load by several lanes or of a
vector is as many loads, in no order (PTX ISA 8.2: vector data types).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from emugpu.check.history import Conflict
from emugpu.check.record import WEAK, Record, bytes_at
from emugpu.emulator.machine.events import Agent, Site
from emugpu.emulator.machine.lanes import FULL_MASK, lanes_of
from emugpu.emulator.native.layout import Traced, TraceEvent
from emugpu.emulator.native.trace import Batch
from emugpu.emulator.translate.loaded_values import LoadedValues

Warp = tuple[int, int, int]


class _Pair(NamedTuple):
    """A load and a store that nothing orders. ``is_one``: no other load of the warp is meant."""

    read: Record
    write: Record
    is_one: bool

    def lanes(self, elements: int) -> list[int]:
        """Returns for each element of the loaded vector the lanes whose value the store may have written.

        The load's record may get further addresses until the cluster ends.
        """
        read, write = self.read, self.write
        if not self.is_one:
            return [FULL_MASK] * elements
        if read.touched is None or write.touched is None:
            return [read.agent.lanes] * elements
        written = np.unique(np.concatenate([bytes_at(*touched) for touched in write.touched]))
        found, bits = [0] * elements, 1 << lanes_of(read.agent.lanes)[1]
        for where, nbytes in read.touched:
            size = nbytes // elements
            starts = np.broadcast_to(where, len(bits))[:, None] + size * np.arange(elements)
            overlaps = np.searchsorted(written, starts) < np.searchsorted(written, starts + size)
            for element in range(elements):
                found[element] |= int(bits[overlaps[:, element]].sum())
        return found


class _Held(NamedTuple):
    """A finding about the loads of a warp by an instruction. ``pairs`` is by the ids of the two records."""

    pairs: dict[tuple[int, int], _Pair]
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
            before = self._lanes[row, column]
            self._lanes[row, column] |= np.uint32(agent.lanes)
            if warp in self._held and self._lanes[row, column] != before:
                self._decide(warp)

    def traced(self, batch: Batch, kinds: Sequence[TraceEvent]) -> None:
        """Handles the stores in a part of the trace, of these kinds of entries."""
        stores = batch.entries[batch.entries["flags"] & Traced.STORE != 0]
        stores = stores[np.isin(stores["kind"], kinds)]
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
        warp = read.agent[:3]
        pair = _Pair(read, conflict.old if conflict.old.writes else conflict.new, conflict.reads == "one")
        if conflict.reads == "any" or self._is_used(pair):
            return False
        key = (rule, conflict.old.site, conflict.new.site, conflict.late)
        held = self._held.setdefault(warp, {}).setdefault(key, _Held({}, tell))
        held.pairs[pair.read.id, pair.write.id] = pair
        return True

    def _is_used(self, pair: _Pair) -> bool:
        row = self._row(pair.read.agent[:3])  # may make more room in the table
        executed = self._lanes[row]
        elements = self._values.reach(pair.read.site.index)
        if all(reach is None for reach in elements):
            return True
        for reach, lanes in zip(elements, pair.lanes(len(elements)), strict=True):
            if not lanes:
                continue
            if reach is None or executed[self._columns[[*reach.warp]]].any():
                return True
            if int(np.bitwise_or.reduce(executed[self._columns[[*reach.own]]])) & lanes:
                return True
        return False

    def _decide(self, warp: Warp) -> None:
        """Adds the findings about values that the warp has used."""
        held = self._held[warp]
        for key, one in [*held.items()]:
            if any(map(self._is_used, one.pairs.values())):
                del held[key]
                one.tell()

    def ended(self, cluster: int) -> None:
        """Drops the findings about values that a cluster, which has ended, has not used."""
        self._ended.add(cluster)
        for warp in [warp for warp in self._held if warp[0] == cluster]:
            self._decide(warp)
            del self._held[warp]

    def end(self) -> None:
        """Adds the findings that still wait, because the run broke off.

        Those about a cluster that has ended were found later, and wait only for the records to be complete.
        """
        for warp in self._held:
            if warp[0] in self._ended:
                self._decide(warp)
            else:
                for one in self._held[warp].values():
                    one.tell()
        self._held = {}
