"""Bulk stores: TMA stores, reductions and copies out of shared memory, in bulk groups of their thread."""

from __future__ import annotations

from dataclasses import dataclass

from harness.check.accesses import SCOPES, Record
from harness.check.boxes import inside, is_inside
from harness.check.clocks import ORDER
from harness.check.flights import Flight, Flights
from harness.check.model import drop_cluster
from harness.check.threads import Thread
from harness.check.unit import Unit
from harness.emulator.machine.events import Agent, Awaited, Finished, GlobalBox, SharedChunks, Site


@dataclass
class Bulk:
    """Bulk groups of a thread: components of their reads and of their writes, and the youngest group with a store."""

    reads: int
    writes: int
    youngest: int = 0
    last: tuple[Site, Agent] | None = None


class Stores(Unit):
    kinds = ("tma.store", "bulk.store")

    def __init__(self, flights: Flights) -> None:
        super().__init__(flights)
        self._bulk: dict[tuple[int, int, int, int], Bulk] = {}
        """By cluster, CTA, warp and lane."""

    def _bulk_of(self, agent: Agent, lane: int) -> Bulk:
        key = (agent.cluster, agent.cta, agent.warp, lane)
        found = self._bulk.get(key)
        if found is None:
            components = self._model.threads.clusters[agent.cluster].components
            found = self._bulk[key] = Bulk(components.new(agent.cta), components.new(agent.cta))
        return found

    def issue(self, flight: Flight, agent: Agent) -> None:
        lane, number = flight.operation.detail["group"]
        bulk = self._bulk_of(agent, lane)
        bulk.youngest, bulk.last = number + 1, (flight.operation.site, agent)
        flight.who, flight.time = bulk.reads, number + 1

    def _read(self, flight: Flight) -> None:
        """The source is read; of a box that hangs over the edge of its tensor, the chunks inside."""
        operation = flight.operation
        source, target = operation.reads[0], operation.writes[0]
        record = flight.record("store", False)
        if isinstance(source, SharedChunks) and isinstance(target, GlobalBox) and len(operation.writes) == 1:
            chunks = source.chunks
            if not is_inside(target.tensor_map, target.coordinates):
                chunks = chunks[inside(target.tensor_map, target.coordinates)]
            if len(chunks):
                memory = self._model.shared[operation.agent.cluster, source.cta]
                memory.access_chunks(chunks, record, flight.observer())
        else:
            self._flights.read_source(flight, source, record)

    def finish(self, flight: Flight, event: Finished) -> None:
        operation = flight.operation
        lane, number = operation.detail["group"]
        bulk = self._bulk_of(operation.agent, lane)
        record = Record(flight.clock.space, bulk.writes, number + 1, "store", True, operation.agent, operation.site)
        if operation.detail.get("reduction") is not None:
            record.scope = SCOPES["gpu"]
        for target in operation.writes:
            self._flights.access_global(target, record, flight.observer())
        super().finish(flight, event)

    def flush(self, flight: Flight) -> None:
        self.start(flight)

    def awaited(self, event: Awaited) -> None:
        """cp.async.bulk.wait_group: only the thread that has committed the groups learns of it."""
        clock = self._model.threads.of(event.agent).own_clock()
        for lane, group in event.groups:
            if group < 0:
                continue
            bulk = self._bulk_of(event.agent, lane)
            clock.set(bulk.reads, group + 1)
            if not event.reads_only:
                clock.set(bulk.writes, group + 1)

    def exited(self, agent: Agent, thread: Thread) -> None:
        """Lanes leave: no store of theirs may still read shared memory."""
        for (cluster, cta, warp, lane), bulk in self._bulk.items():
            if (cluster, cta, warp) != agent[:3] or not agent.lanes >> lane & 1 or bulk.last is None:
                continue
            if not thread.clock.knows(thread.clock.space, bulk.reads, bulk.youngest, ORDER):
                self._model.say(
                    "exit-pending", "error", "the thread exits while its bulk store may still read shared memory",
                    bulk.last, missing="no cp.async.bulk.wait_group.read that covers the store",
                    mend="cp.async.bulk.wait_group.read 0 by the thread that issued it, before it exits",
                )  # fmt: skip

    def forget(self, cluster: int) -> None:
        drop_cluster(cluster, self._bulk)
