"""cp.async: copies of a thread's own through the generic proxy, in groups or signalled at an mbarrier."""

from __future__ import annotations

import numpy as np

from harness.check.clocks import set_generic
from harness.check.flights import Flight, Flights
from harness.check.model import drop_cluster
from harness.check.unit import Unit
from harness.emulator.machine.events import Agent, Awaited, Committed, Finished, GlobalItems, SharedItems


class SmallCopies(Unit):
    kinds = ("cp.async",)

    def __init__(self, flights: Flights) -> None:
        super().__init__(flights)
        self._committed: dict[tuple[int, int, int, int, int], int] = {}
        """Copies that a warp had issued when a lane committed a group."""

    def issue(self, flight: Flight, agent: Agent) -> None:
        self._flights.enter(flight, self._flights.pipe("cp.async", agent, agent.warp))

    def finish(self, flight: Flight, event: Finished) -> None:
        self.flush(flight)
        super().finish(flight, event)

    def flush(self, flight: Flight) -> None:
        operation, observer, model = flight.operation, flight.observer(), self._model
        (source,), (target,) = operation.reads, operation.writes
        assert isinstance(source, GlobalItems) and isinstance(target, SharedItems)
        copied = source.nbytes > 0
        if copied.any():
            read = flight.record("cp.async", False)
            read.order = None
            places = source.addresses[copied].astype(np.int64)
            model.access_global(places, int(source.nbytes.max()), read, observer)
        memory = model.shared[operation.agent.cluster, target.cta]
        memory.access(target.offsets, target.nbytes, flight.record("cp.async", True), observer)

    def committed(self, event: Committed) -> None:
        agent = event.agent
        count = self._flights.pipe("cp.async", agent, agent.warp).count
        for lane, group in event.groups:
            self._committed[agent.cluster, agent.cta, agent.warp, lane, group] = count

    def awaited(self, event: Awaited) -> None:
        """cp.async.wait_group, or wait_all, which covers copies in no group yet."""
        agent = event.agent
        pipe = self._flights.pipe("cp.async", agent, agent.warp)
        if event.site.modifiers[1] == "wait_all":
            over = pipe.count
        else:
            keys = ((agent.cluster, agent.cta, agent.warp, lane, group) for lane, group in event.groups)
            over = min((self._committed.get(key, 0) for key in keys), default=0)
        # They are writes of the generic proxy like any other: no proxy fence is implied.
        set_generic(self._model.threads.of(agent).own_clock(), pipe.component, over)

    def forget(self, cluster: int) -> None:
        drop_cluster(cluster, self._committed)
