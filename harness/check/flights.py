"""Asynchronous operations under way: what each knew at its issue, and the component in which it counts.

An operation acts with what its thread knew at issue. Operations that complete in order share a component, a *pipe*:
the MMAs of a thread, the wgmmas of a warpgroup, the tcgen05 loads of a warp.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from harness.check.accesses import Observer, Record
from harness.check.clocks import ORDER, Clock, Rows
from harness.check.model import Model, drop_cluster
from harness.check.threads import Cta
from harness.emulator.machine.events import Agent, GlobalBox, GlobalItems, Operation, Region, SharedBytes, SharedChunks

NEVER = 1 << 30
"""Time of an operation whose end nobody has seen."""


@dataclass
class Flight:
    """An operation that has been issued. ``clock``: what its issuer knew. ``who``, ``time``: its component, and which
    of that component's actions it is. ``landed``: CTAs in which its bytes have arrived.
    """

    operation: Operation
    clock: Clock
    tensor: Rows
    who: int = -1
    time: int = NEVER
    landed: set[int] = field(default_factory=set)
    signals: int = 0
    read: bool = False

    def observer(self) -> Observer:
        return Observer(self.clock, self.who, self.tensor, self.shape)

    @property
    def shape(self) -> object:
        """Of an MMA: accumulator, and the part of the instruction descriptor with M and N."""
        if self.operation.kind != "mma":
            return self.operation.kind
        mma = self.operation.detail["mma"]
        return mma.d_address, mma.idesc >> 17

    @cached_property
    def _order(self) -> Rows:
        return self.clock.rows[ORDER].copy()

    def record(self, kind: str, writes: bool, who: int | None = None, time: int = 0) -> Record:
        """An access of the operation: in its own component, or in another one at a time."""
        operation = self.operation
        if who is None:
            who, time = self.who, self.time
        record = Record(self.clock.space, who, time, kind, writes, operation.agent, operation.site, self._order)
        record.shape = self.shape
        return record


@dataclass
class Pipe:
    """Operations that complete in order: their component, and how many there were."""

    component: int
    count: int = 0


class Flights:
    """What is under way, by the operation's id, and the pipes of a launch."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.all: dict[int, Flight] = {}
        self._pipes: dict[tuple[int, int, int, str], Pipe] = {}

    def cta(self, agent: Agent, rank: int) -> Cta:
        return self.model.threads.cta(agent.cluster, rank)

    def pipe(self, kind: str, agent: Agent, number: int) -> Pipe:
        """``number``: of the thread, warp or warpgroup in its CTA."""
        key = (agent.cluster, agent.cta, number, kind)
        found = self._pipes.get(key)
        if found is None:
            found = self._pipes[key] = Pipe(self.model.threads.clusters[agent.cluster].components.new(agent.cta))
        return found

    def enter(self, flight: Flight, pipe: Pipe) -> None:
        """The next operation of a pipe."""
        pipe.count += 1
        flight.who, flight.time = pipe.component, pipe.count

    def follow(self, flight: Flight, pipe: Pipe) -> None:
        """What signals that the operations of a pipe so far are over."""
        flight.who, flight.time = pipe.component, pipe.count

    def end(self, flight: Flight) -> None:
        del self.all[flight.operation.id]

    def signal(self, flight: Flight) -> None:
        """One of its signals has come; after the last one the operation is over."""
        flight.signals += 1
        if flight.signals == len(flight.operation.detail["signals"]):
            self.end(flight)

    def reach(self, flight: Flight, ranks: Iterable[int], what: str) -> None:
        """It reaches CTAs of the cluster, which must be known to run."""
        operation = flight.operation
        agent = operation.agent
        for rank in ranks:
            self.model.reach(flight.clock, agent.cluster, rank, operation.site, agent, what)

    def forget(self, cluster: int) -> None:
        drop_cluster(cluster, self._pipes)

    # ---- memory that operations of several kinds read and write ----

    def read_source(self, flight: Flight, source: Region, record: Record) -> None:
        """A source of a copy, in shared or in global memory. Reads of the latter are kept for long: without clocks."""
        cluster, observer = flight.operation.agent.cluster, flight.observer()
        if isinstance(source, SharedChunks):
            self.model.shared[cluster, source.cta].access_chunks(source.chunks, record, observer)
        elif isinstance(source, SharedBytes):
            self.model.shared[cluster, source.cta].access(source.offset, source.nbytes, record, observer)
        else:
            record.order = None
            self.access_global(source, record, observer)

    def access_global(self, region: Any, record: Record, observer: Observer) -> None:
        """Boxes or ranges of global memory are read or written."""
        if isinstance(region, GlobalBox):
            allocation = self.model.allocation(region.tensor_map.address)
            if allocation is not None:
                allocation.access(region, record, observer)
        else:
            assert isinstance(region, GlobalItems)
            for address, nbytes in zip(region.addresses.tolist(), region.nbytes.tolist(), strict=True):
                if nbytes:
                    self.model.access_global(np.array([address], np.int64), nbytes, record, observer)
