"""Operations that only signal mbarriers: tcgen05.commit, for what its thread has multiplied so far, and
cp.async.mbarrier.arrive, for what it has copied.
"""

from __future__ import annotations

from harness.check.flights import Flight
from harness.check.mbarrier import Arrival
from harness.check.multiplications import mma_pipe
from harness.check.unit import Unit
from harness.check.uses import check_use
from harness.emulator.machine.events import Agent, Operation, Signalled


class Signals(Unit):
    kinds = ("commit", "cp.async.arrive")

    def issue(self, flight: Flight, agent: Agent) -> None:
        operation, flights = flight.operation, self._flights
        if operation.kind == "commit":
            flights.follow(flight, mma_pipe(flights, agent))
            flights.reach(flight, (rank for rank, _ in operation.detail["signals"]), "tcgen05.commit")
        else:
            flights.follow(flight, flights.pipe("cp.async", agent, agent.warp))

    def signalled(self, event: Signalled) -> None:
        flight = self._flights.all[event.operation.id]
        operation, model = flight.operation, self._model
        agent, site = operation.agent, operation.site
        barrier = model.barriers[agent.cluster, event.cta, event.offset]
        check_use(model, barrier, flight.clock, site, agent, f"{site.opcode} signals")
        barrier.last = (site, agent)
        barrier.pending -= 1
        if operation.kind == "cp.async.arrive":
            barrier.copied(flight.clock, flight.who, flight.time)
        else:
            barrier.commit(flight.clock, flight.tensor, flight.who, flight.time)
            barrier.unseen.append(Arrival(event.phase, flight.who, flight.time, site, agent, True))
        self._flights.signal(flight)

    def missed(self, operation: Operation) -> tuple[int, int]:
        """A signal has come to a CTA that has exited. Returns component and time of what it stands for."""
        flight = self._flights.all[operation.id]
        self._flights.signal(flight)
        return flight.who, flight.time
