"""Asynchronous operations in flight know what their issuer knew, and count in a component.

An operation acts with what its thread knew at issue. Operations that complete in order share a component, a *pipe*:
the MMAs of a thread, the wgmmas of a warpgroup, the tcgen05 loads of a warp.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from emugpu.check.clocks import ORDER, Clock, Rows
from emugpu.check.history import Observer, Record
from emugpu.check.model import Model, drop_cluster
from emugpu.check.threads import TrackedCta
from emugpu.emulator.machine.events import (
    Agent,
    Finished,
    GlobalBox,
    GlobalItems,
    Operation,
    Region,
    SharedBytes,
    SharedChunks,
)

NEVER = 1 << 30
"""Time of an operation whose end nobody has seen."""


@dataclass
class InFlight:
    """An operation that has been issued. ``clock``: what its issuer knew. ``who``, ``time``: its component, and which
    of that component's actions it is. ``issue``: as of `Record`. ``landed``: CTAs in which its bytes have arrived.
    """

    operation: Operation
    clock: Clock
    tensor: Rows
    issue: tuple[int, int] | None = None
    who: int = -1
    time: int = NEVER
    landed: set[int] = field(default_factory=set)
    signals: int = 0
    read: bool = False

    def observer(self) -> Observer:
        return Observer(self.clock, self.who, self.tensor, self.shape)

    @property
    def shape(self) -> object:
        """Tells MMAs apart: by accumulator, and by bits 17 to 28 of the instruction descriptor, which hold M and N. The
        bits above say which of a column's scale factors are A's, which changes from K step to K step.
        """
        if self.operation.kind != "mma":
            return self.operation.kind
        mma = self.operation.detail["mma"]
        return mma.d_address, mma.idesc >> 17 & 0xFFF

    @cached_property
    def _order(self) -> Rows:
        order: Rows = self.clock.rows[ORDER].copy()
        return order

    def record(self, kind: str, writes: bool, who: int | None = None, time: int = 0) -> Record:
        """Makes an access of the operation: in its own component, or in another one at a time."""
        operation = self.operation
        if who is None:
            who, time = self.who, self.time
        record = Record(self.clock.space, who, time, kind, writes, operation.agent, operation.site, self._order)
        record.shape, record.issue = self.shape, self.issue
        return record


@dataclass
class Pipe:
    """Numbers operations that complete in order: their component, and how many there were."""

    component: int
    count: int = 0


class OperationsInFlight:
    """Holds what is in flight, by the operation's id, and the pipes of a launch."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.all: dict[int, InFlight] = {}
        self._pipes: dict[tuple[int, int, int, str], Pipe] = {}

    def cta(self, agent: Agent, rank: int) -> TrackedCta:
        return self.model.threads.cta(agent.cluster, rank)

    def pipe(self, kind: str, agent: Agent, number: int) -> Pipe:
        """Returns a pipe, a new one at first. ``number``: of the thread, warp or warpgroup in its CTA."""
        key = (agent.cluster, agent.cta, number, kind)
        found = self._pipes.get(key)
        if found is None:
            found = self._pipes[key] = Pipe(self.model.threads.clusters[agent.cluster].components.new(agent.cta))
        return found

    def enter(self, in_flight: InFlight, pipe: Pipe) -> None:
        """Takes the next operation of a pipe."""
        pipe.count += 1
        self.follow(in_flight, pipe)

    def follow(self, in_flight: InFlight, pipe: Pipe) -> None:
        """Takes what signals that the operations of a pipe so far are over."""
        in_flight.who, in_flight.time = pipe.component, pipe.count

    def end(self, in_flight: InFlight) -> None:
        del self.all[in_flight.operation.id]

    def signal(self, in_flight: InFlight) -> None:
        """One of its signals has come; after the last one the operation is over."""
        in_flight.signals += 1
        if in_flight.signals == len(in_flight.operation.detail["signals"]):
            self.end(in_flight)

    def reach(self, in_flight: InFlight, ranks: Iterable[int], what: str) -> None:
        """Reports CTAs of the cluster that it reaches and that are not known to run."""
        operation = in_flight.operation
        agent = operation.agent
        for rank in ranks:
            self.model.reach(in_flight.clock, agent.cluster, rank, operation.site, agent, what)

    def forget(self, cluster: int) -> None:
        drop_cluster(cluster, self._pipes)

    # ---- memory that operations of several kinds read and write ----

    def read_source(self, in_flight: InFlight, source: Region, record: Record) -> None:
        """Reads a source of a copy, in shared or global memory. Reads of the latter are kept for long: without
        clocks.
        """
        cluster, observer = in_flight.operation.agent.cluster, in_flight.observer()
        if isinstance(source, SharedChunks):
            self.model.shared[cluster, source.cta].access_chunks(source.chunks, record, observer)
        elif isinstance(source, SharedBytes):
            self.model.shared[cluster, source.cta].access(source.offset, source.nbytes, record, observer)
        else:
            record.order = None
            self.access_global(source, record, observer)

    def access_global(self, region: Any, record: Record, observer: Observer) -> None:
        """Reads or writes boxes or ranges of global memory."""
        if isinstance(region, GlobalBox):
            allocation = self.model.allocation(region.tensor_map.first_inside(region.coordinates))
            if allocation is not None:
                allocation.access(region, record, observer)
        else:
            assert isinstance(region, GlobalItems)
            for address, nbytes in zip(region.addresses.tolist(), region.nbytes.tolist(), strict=True):
                if nbytes:
                    self.model.access_global(np.array([address], np.int64), nbytes, record, observer)


class OperationChecker(ABC):
    """Takes operations of some ``kinds`` (of `events.Operation`) from their issue to their end."""

    kinds: tuple[str, ...] = ()

    def __init__(self, operations: OperationsInFlight) -> None:
        self._operations = operations
        self._model = operations.model

    @abstractmethod
    def issue(self, in_flight: InFlight, agent: Agent) -> None:
        """A thread has executed the instruction."""

    def start(self, in_flight: InFlight) -> None:
        """The operation begins."""
        if not in_flight.read:
            in_flight.read = True
            self._read(in_flight)

    def _read(self, in_flight: InFlight) -> None:  # noqa: B027  # not all read
        """Its operands are read."""

    def finish(self, in_flight: InFlight, event: Finished) -> None:
        """Its results are there."""
        self._operations.end(in_flight)

    def flush(self, in_flight: InFlight) -> None:  # noqa: B027  # most have no more to say
        """The run has ended while it was in flight."""

    def forget(self, cluster: int) -> None:  # noqa: B027  # most keep nothing of a cluster
        """A cluster has ended."""
