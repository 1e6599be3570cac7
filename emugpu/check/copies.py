"""Asynchronous copies: copies whose bytes an mbarrier counts, cp.async in groups, and bulk stores."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from emugpu.check.barriers import check_use
from emugpu.check.clocks import ORDER, Clock, set_generic
from emugpu.check.history import Observer
from emugpu.check.in_flight import NEVER, InFlight, OperationChecker, OperationsInFlight
from emugpu.check.model import drop_cluster
from emugpu.check.pending import Chunks
from emugpu.check.record import SCOPES, Record
from emugpu.check.shadow import inside, is_inside
from emugpu.check.threads import Thread
from emugpu.emulator.machine.events import (
    Agent,
    Awaited,
    BytesLanded,
    Committed,
    Finished,
    GlobalBox,
    GlobalItems,
    Operation,
    Region,
    SharedBytes,
    SharedChunks,
    SharedItems,
    Site,
)
from emugpu.emulator.memory.bytes import CHUNK

COPY = "a TMA copy"
RESPONSE = "a launch-control response"
_KINDS = {"st.async": "st.async", "launch-control": "response"}
"""The kinds of accesses by operations that are not plain copies."""


def _called(operation: Operation) -> str:
    if operation.kind == "st.async":
        return operation.site.verb
    return RESPONSE if operation.kind == "launch-control" else COPY


def _chunks_of(region: SharedChunks | SharedBytes) -> Chunks:
    if isinstance(region, SharedChunks):
        return region.chunks
    return np.arange(region.offset // CHUNK, -(-(region.offset + region.nbytes) // CHUNK))


class CountedCopies(OperationChecker):
    """Checks copies whose bytes an mbarrier counts: TMA loads, bulk copies, st.async, launch-control responses.

    Their writes belong to the phase that counts their bytes: an agent that knows that the phase is over knows that the
    bytes have arrived. They write through the async proxy, except st.async and red.async, which write through the
    generic proxy (PTX ISA 9.7.9.12, 9.7.13.7).
    """

    kinds = ("tma.load", "tma.gather", "bulk.load", "st.async", "launch-control")

    def __init__(self, operations: OperationsInFlight) -> None:
        super().__init__(operations)
        self._landing: tuple[InFlight, tuple[Region, ...]] | None = None

    def issue(self, in_flight: InFlight, agent: Agent) -> None:
        operation = in_flight.operation
        ranks = [region.cta for region in operation.writes]  # type: ignore[union-attr]
        ranks += [rank for rank, _ in operation.detail["signals"]]
        self._operations.reach(in_flight, ranks, _called(operation))

    def start(self, in_flight: InFlight) -> None:
        """Does nothing: the source is checked when the bytes land, because only then is their phase known."""

    def finish(self, in_flight: InFlight, event: Finished) -> None:
        self._landing = (in_flight, event.regions)

    def landed(self, event: BytesLanded) -> None:
        """Handles bytes that complete in a phase: the copy whose ``Finished`` came before has written its regions."""
        model = self._model
        barrier = model.barriers[event.agent.cluster, event.cta, event.offset]
        barrier.bytes -= event.nbytes
        if self._landing is None or event.operation is None:
            barrier.arrive(model.threads.of(event.agent), "relaxed", 0)
            return
        in_flight, regions = self._landing
        self._landing = None
        check_use(model, barrier, in_flight.clock, event.site, event.agent, "the copy signals")
        barrier.signal(event.operation.id, event.phase)
        who, time = barrier.component, event.phase + 1
        if event.operation.kind == "st.async":
            who = barrier.store(in_flight.clock, event.agent.cta, time)
        else:
            barrier.follow(in_flight.clock)
        self._land(in_flight, regions, who, time)
        in_flight.landed |= {region.cta for region in regions}  # type: ignore[union-attr]
        if len(in_flight.landed) == len(in_flight.operation.writes):
            self._operations.end(in_flight)

    def flush(self, in_flight: InFlight) -> None:
        rest = [r for r in in_flight.operation.writes if r.cta not in in_flight.landed]  # type: ignore[union-attr]
        self._land(in_flight, rest, -1, NEVER)

    def _land(self, in_flight: InFlight, regions: Iterable[Region], who: int, time: int) -> None:
        """Checks the accesses of a copy: its reads of the source, and its writes to the regions.

        ``who`` and ``time`` are the clock component and the time at which an mbarrier counts the bytes. ``who`` is -1
        if they have not landed.
        """
        operation, model = in_flight.operation, self._model
        kind = _KINDS.get(operation.kind, "copy")
        agent = operation.agent
        observer = Observer(in_flight.clock)
        record = in_flight.record(kind, True, who, time)
        if operation.detail.get("reduction") is not None:
            record.scope = SCOPES["sys"]
        if not in_flight.read:
            in_flight.read = True
            self._operations.read_map(in_flight, who, time)
            written = set(map(id, operation.writes))
            for source in operation.reads:
                if id(source) not in written:
                    self._operations.read_source(in_flight, source, in_flight.record(kind, False, who, time))
        for region in regions:
            assert isinstance(region, SharedChunks | SharedBytes)
            memory = model.shared[agent.cluster, region.cta]
            model.end_responses(agent.cluster, region.cta, _chunks_of(region))
            if kind == "response":
                assert isinstance(region, SharedBytes)
                model.responses.setdefault((agent.cluster, region.cta), {})[region.offset // CHUNK] = {}
            if isinstance(region, SharedChunks):
                memory.access_chunks(region.chunks, record, observer)
            else:
                memory.access(region.offset, region.nbytes, record, observer)
            if who >= 0:
                model.touch(
                    self._operations.cta(agent, region.cta), who, time, operation.site, agent, _called(operation)
                )


class CpAsyncCopies(OperationChecker):
    """Checks cp.async: a thread's own copies through the generic proxy, in groups or signalled at an mbarrier."""

    kinds = ("cp.async",)

    def __init__(self, operations: OperationsInFlight) -> None:
        super().__init__(operations)
        self._committed: dict[tuple[int, int, int, int, int], int] = {}
        """The number of copies that a warp had issued when a lane committed a group."""

    def issue(self, in_flight: InFlight, agent: Agent) -> None:
        self._operations.enter(in_flight, self._operations.pipe("cp.async", agent, agent.warp))

    def finish(self, in_flight: InFlight, event: Finished) -> None:
        self.flush(in_flight)
        super().finish(in_flight, event)

    def flush(self, in_flight: InFlight) -> None:
        operation, observer, model = in_flight.operation, in_flight.observer(), self._model
        (source,), (target,) = operation.reads, operation.writes
        assert isinstance(source, GlobalItems) and isinstance(target, SharedItems)
        copied = source.nbytes > 0
        if copied.any():
            read = in_flight.record("cp.async", False)
            read.order = None
            places = source.addresses[copied].astype(np.int64)
            model.access_global(places, int(source.nbytes.max()), read, observer)
        memory = model.shared[operation.agent.cluster, target.cta]
        model.end_responses(operation.agent.cluster, target.cta, target.offsets // CHUNK)
        memory.access(target.offsets, target.nbytes, in_flight.record("cp.async", True), observer)

    def committed(self, event: Committed) -> None:
        agent = event.agent
        count = self._operations.pipe("cp.async", agent, agent.warp).count
        for lane, group in event.groups:
            self._committed[agent.cluster, agent.cta, agent.warp, lane, group] = count

    def awaited(self, event: Awaited) -> None:
        """Handles cp.async.wait_group, and wait_all, which also covers copies that are in no group yet."""
        agent = event.agent
        pipe = self._operations.pipe("cp.async", agent, agent.warp)
        if event.site.modifiers[1] == "wait_all":
            over = pipe.count
        else:
            keys = ((agent.cluster, agent.cta, agent.warp, lane, group) for lane, group in event.groups)
            over = min((self._committed.get(key, 0) for key in keys), default=0)
        # These are ordinary writes of the generic proxy: the wait implies no proxy fence.
        set_generic(self._model.threads.of(agent).own_clock(), pipe.component, over)

    def forget(self, cluster: int) -> None:
        drop_cluster(cluster, self._committed)


def _stored(operation: Operation) -> tuple[object, ...]:
    """Returns the places of a bulk store, and a number for its values, equal for equal ones."""
    places = (r.addresses.tobytes() if isinstance(r, GlobalItems) else r for r in operation.writes)
    return (*places, hash(operation.detail["values"].tobytes()))


@dataclass
class Bulk:
    """The bulk groups of a thread: the components of their reads and writes, and the last group with a store."""

    reads: int
    writes: int
    youngest: int = 0
    last: tuple[Site, Agent] | None = None


class BulkStores(OperationChecker):
    """Checks TMA stores, reductions and copies out of shared memory, in the bulk groups of their thread."""

    kinds = ("tma.store", "bulk.store")

    def __init__(self, operations: OperationsInFlight) -> None:
        super().__init__(operations)
        self._bulk: dict[tuple[int, int, int, int], Bulk] = {}
        """By cluster, CTA, warp and lane."""

    def _bulk_of(self, agent: Agent, lane: int) -> Bulk:
        key = (agent.cluster, agent.cta, agent.warp, lane)
        found = self._bulk.get(key)
        if found is None:
            components = self._model.threads.clusters[agent.cluster].components
            found = self._bulk[key] = Bulk(components.new(agent.cta), components.new(agent.cta))
        return found

    def issue(self, in_flight: InFlight, agent: Agent) -> None:
        lane, number = in_flight.operation.detail["group"]
        bulk = self._bulk_of(agent, lane)
        bulk.youngest, bulk.last = number + 1, (in_flight.operation.site, agent)
        in_flight.who, in_flight.time = bulk.reads, number + 1

    def _read(self, in_flight: InFlight) -> None:
        """Reads the source. If a box crosses the edge of its tensor, only the chunks inside count."""
        operation = in_flight.operation
        self._operations.read_map(in_flight, in_flight.who, in_flight.time)
        source, target = operation.reads[0], operation.writes[0]
        record = in_flight.record("store", False)
        if isinstance(source, SharedChunks) and isinstance(target, GlobalBox) and len(operation.writes) == 1:
            chunks = source.chunks
            if not is_inside(target.tensor_map, target.coordinates):
                chunks = chunks[inside(target.tensor_map, target.coordinates)]
            if len(chunks):
                memory = self._model.shared[operation.agent.cluster, source.cta]
                memory.access_chunks(chunks, record, in_flight.observer())
        else:
            self._operations.read_source(in_flight, source, record)

    def finish(self, in_flight: InFlight, event: Finished) -> None:
        operation = in_flight.operation
        lane, number = operation.detail["group"]
        bulk = self._bulk_of(operation.agent, lane)
        record = Record(in_flight.clock.space, bulk.writes, number + 1, "store", True, operation.agent, operation.site)
        if operation.detail.get("reduction") is not None:
            record.scope = SCOPES["gpu"]
        elif "values" in operation.detail:
            record.stored = _stored(operation)
        for target in operation.writes:
            self._operations.access_global(target, record, in_flight.observer())
        super().finish(in_flight, event)

    def flush(self, in_flight: InFlight) -> None:
        self.start(in_flight)

    def awaited(self, event: Awaited) -> None:
        """Handles cp.async.bulk.wait_group: only the lanes that committed groups learn that they are over."""
        threads, agent = self._model.threads, event.agent
        over = [(self._bulk_of(agent, lane), group) for lane, group in event.groups if group >= 0]
        if not over:
            return

        def learn(clock: Clock) -> None:
            for bulk, group in over:
                clock.set(bulk.reads, group + 1)
                if not event.reads_only:
                    clock.set(bulk.writes, group + 1)

        thread = threads.of(agent)
        thread.heard = event.site
        thread.hear(sum(1 << lane for lane, group in event.groups if group >= 0), learn, event.site, threads.silent)

    def exited(self, agent: Agent, thread: Thread) -> None:
        """Reports lanes that exit while their stores may still read shared memory."""
        for (cluster, cta, warp, lane), bulk in self._bulk.items():
            if (cluster, cta, warp) != agent[:3] or not agent.lanes >> lane & 1 or bulk.last is None:
                continue
            if not thread.clock.knows(thread.clock.space, bulk.reads, bulk.youngest, ORDER):
                self._model.say(
                    "exit-pending", "warning", "the thread exits while its bulk store may still read shared memory",
                    bulk.last, missing="no cp.async.bulk.wait_group.read that covers the store",
                    fix="cp.async.bulk.wait_group.read 0 by the thread that issued it, before it exits",
                )  # fmt: skip

    def forget(self, cluster: int) -> None:
        drop_cluster(cluster, self._bulk)
