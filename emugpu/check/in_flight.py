"""Asynchronous operations in flight: each has its issuer's clock, and counts in a component.

An operation knows what its thread knew at issue. Operations that complete in order share a component, a *pipe*: the
MMAs of a thread, the wgmmas of a warpgroup, the tcgen05 loads of a warp.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from emugpu.check.clocks import ORDER, Clock, Rows
from emugpu.check.history import Observer
from emugpu.check.model import Model, drop_cluster
from emugpu.check.record import Record
from emugpu.check.shadow import rows_of
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
from emugpu.emulator.memory.tensor_map_bytes import NBYTES as MAP_BYTES

NEVER = 1 << 30
"""The time of an operation whose end no agent has seen."""


@dataclass
class InFlight:
    """An operation that has been issued.

    ``clock`` is the issuer's knowledge. ``who`` is the operation's component and ``time`` its number among that
    component's actions. ``issue`` is that of `Record`. ``landed`` holds the CTAs in which its bytes have arrived.
    ``tensor_map`` is the address of its tensor map in global memory, or -1.
    """

    operation: Operation
    clock: Clock
    tensor: Rows
    issue: tuple[int, int] | None = None
    tensor_map: int = -1
    who: int = -1
    time: int = NEVER
    landed: set[int] = field(default_factory=set)
    signals: int = 0
    read: bool = False

    def observer(self) -> Observer:
        """Returns the observer of an access to shared or global memory, which no tcgen05.fence orders."""
        return Observer(self.clock, self.who, shape=self.shape)

    @property
    def shape(self) -> object:
        """Returns a key for MMAs that complete in order: the accumulator, and bits 17 to 28 of the instruction
        descriptor.

        Those bits hold M and N. The bits above them select which of a column's scale factors belong to A, and change
        from K step to K step.
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
        """Returns the record of the operation's access, in its own component or in component ``who`` at ``time``."""
        operation = self.operation
        if who is None:
            who, time = self.who, self.time
        record = Record(self.clock.space, who, time, kind, writes, operation.agent, operation.site, self._order)
        record.shape, record.issue = self.shape, self.issue
        return record


@dataclass
class Pipe:
    """Operations that complete in order: their component, and how many there were."""

    component: int
    count: int = 0


class OperationsInFlight:
    """The operations in flight by their ids, and the pipes of a launch."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.all: dict[int, InFlight] = {}
        self._pipes: dict[tuple[int, int, int, str], Pipe] = {}

    def cta(self, agent: Agent, rank: int) -> TrackedCta:
        return self.model.threads.cta(agent.cluster, rank)

    def pipe(self, kind: str, agent: Agent, number: int) -> Pipe:
        """Returns a pipe, and makes it on first use. ``number`` is that of the thread, warp or warpgroup in its CTA."""
        key = (agent.cluster, agent.cta, number, kind)
        found = self._pipes.get(key)
        if found is None:
            found = self._pipes[key] = Pipe(self.model.threads.clusters[agent.cluster].components.new(agent.cta))
        return found

    def enter(self, in_flight: InFlight, pipe: Pipe) -> None:
        """Makes an operation the next one of a pipe."""
        pipe.count += 1
        self.follow(in_flight, pipe)

    def follow(self, in_flight: InFlight, pipe: Pipe) -> None:
        """Handles a signal that the operations of a pipe so far are over."""
        in_flight.who, in_flight.time = pipe.component, pipe.count

    def end(self, in_flight: InFlight) -> None:
        del self.all[in_flight.operation.id]

    def signal(self, in_flight: InFlight) -> None:
        """Handles one of an operation's signals; with the last one the operation is over."""
        in_flight.signals += 1
        if in_flight.signals == len(in_flight.operation.detail["signals"]):
            self.end(in_flight)

    def reach(self, in_flight: InFlight, ranks: Iterable[int], what: str) -> None:
        """Reports CTAs of the cluster that the operation reaches and that are not known to run."""
        operation = in_flight.operation
        agent = operation.agent
        for rank in ranks:
            self.model.reach(in_flight.clock, agent.cluster, rank, operation.site, agent, what)

    def forget(self, cluster: int) -> None:
        drop_cluster(cluster, self._pipes)

    # ---- memory that operations of several kinds read and write ----

    def read_source(self, in_flight: InFlight, source: Region, record: Record) -> None:
        """Reads a source of a copy, in shared or global memory.

        Records of reads of global memory have no clocks, because they are kept for long.
        """
        cluster, observer = in_flight.operation.agent.cluster, in_flight.observer()
        if isinstance(source, SharedChunks):
            self.model.shared[cluster, source.cta].access_chunks(source.chunks, record, observer)
        elif isinstance(source, SharedBytes):
            self.model.shared[cluster, source.cta].access(source.offset, source.nbytes, record, observer)
        else:
            record.order = None
            self.access_global(source, record, observer)

    def read_map(self, in_flight: InFlight, who: int, time: int) -> None:
        """Reads the tensor map of a copy.

        The read takes place at any time before component ``who`` reaches ``time``, when the copy is known to be over.
        """
        if in_flight.tensor_map >= 0:
            record = in_flight.record("map", False, who, time)
            place = np.array([in_flight.tensor_map], np.int64)
            self.model.access_global(place, MAP_BYTES, record, in_flight.observer())

    def access_global(self, region: Any, record: Record, observer: Observer) -> None:
        """Reads or writes boxes or ranges of global memory."""
        if isinstance(region, GlobalBox):
            allocation = self.model.allocation(region.tensor_map.first_inside(region.coordinates))
            if allocation is not None:
                if self.model.footprint is not None:
                    self.model.note_places(
                        allocation, *rows_of(region.tensor_map, region.coordinates), record, observer
                    )
                allocation.access(region, record, observer)
        else:
            assert isinstance(region, GlobalItems)
            for address, nbytes in zip(region.addresses.tolist(), region.nbytes.tolist(), strict=True):
                if nbytes:
                    self.model.access_global(np.array([address], np.int64), nbytes, record, observer)


class OperationChecker(ABC):
    """Handles operations of some ``kinds`` (of `events.Operation`) from their issue to their end."""

    kinds: tuple[str, ...] = ()

    def __init__(self, operations: OperationsInFlight) -> None:
        self._operations = operations
        self._model = operations.model

    @abstractmethod
    def issue(self, in_flight: InFlight, agent: Agent) -> None:
        """Handles the execution of the instruction by a thread."""

    def start(self, in_flight: InFlight) -> None:
        """Handles the start of the operation."""
        if not in_flight.read:
            in_flight.read = True
            self._read(in_flight)

    def _read(self, in_flight: InFlight) -> None:  # noqa: B027  # not all read
        """Records the reads of the operands."""

    def finish(self, in_flight: InFlight, event: Finished) -> None:
        """Handles the end of the operation."""
        self._operations.end(in_flight)

    def flush(self, in_flight: InFlight) -> None:  # noqa: B027  # most have no more to say
        """Handles an operation that is still in flight at the end of the run."""

    def forget(self, cluster: int) -> None:  # noqa: B027  # most keep nothing of a cluster
        """Drops the state of a cluster that has ended."""
