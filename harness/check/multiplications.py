"""tcgen05.mma and tcgen05.cp of a thread, which complete in order, and the commits that say so."""

from __future__ import annotations

from harness.check.flights import Flight, Flights, Pipe
from harness.check.operands import read_operand
from harness.check.tensor_accesses import touch_tensor, unwritten
from harness.check.unit import Unit
from harness.emulator.machine.events import Agent, SharedChunks


class Multiplications(Unit):
    kinds = ("mma", "tmem.copy")

    def issue(self, flight: Flight, agent: Agent) -> None:
        operation = flight.operation
        self._flights.enter(flight, mma_pipe(self._flights, agent))
        if operation.kind == "mma":
            self._flights.reach(flight, operation.detail["ctas"], "an MMA of a pair")
        else:
            ranks = (region.cta for region in operation.reads)  # type: ignore[union-attr]
            self._flights.reach(flight, ranks, "tcgen05.cp of a pair")

    def _read(self, flight: Flight) -> None:
        operation = flight.operation
        kind = "cp" if operation.kind == "tmem.copy" else "mma"
        record, observer = flight.record(kind, False), flight.observer()
        accumulator = set(operation.writes)
        accumulates = False
        for region in operation.reads:
            if isinstance(region, SharedChunks):
                read_operand(self._model, operation, region, record, observer)
            elif region in accumulator:
                accumulates = True
            elif not touch_tensor(self._flights, flight, kind, (region,), False):
                unwritten(self._flights, flight, "the MMA reads")
        written = touch_tensor(self._flights, flight, kind, operation.writes, True)
        if accumulates and not written:
            unwritten(self._flights, flight, "the MMA accumulates in")
        agent = operation.agent
        for rank in {region.cta for region in operation.writes}:  # type: ignore[union-attr]
            if rank != agent.cta:
                cta = self._flights.cta(agent, rank)
                self._model.touch(cta, flight.who, flight.time, operation.site, agent, "an MMA")

    def flush(self, flight: Flight) -> None:
        self.start(flight)


def mma_pipe(flights: Flights, agent: Agent) -> Pipe:
    """MMAs, tcgen05.cps and commits of one thread."""
    lane = (agent.lanes & -agent.lanes).bit_length() - 1
    return flights.pipe("mma", agent, agent.warp * 32 + lane)
