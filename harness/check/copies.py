"""Copies whose bytes an mbarrier counts: TMA loads, bulk copies, st.async, launch-control responses.

What they write belongs to the phase that counts it: who knows that the phase is over knows that the bytes are there.
They write through the async proxy, but st.async and red.async through the generic one (PTX ISA 9.7.9.12, 9.7.13.7).
"""

from __future__ import annotations

from collections.abc import Iterable

from harness.check.accesses import SCOPES, Observer
from harness.check.flights import NEVER, Flight, Flights
from harness.check.unit import Unit
from harness.check.uses import check_use
from harness.emulator.machine.events import Agent, BytesLanded, Finished, Operation, Region, SharedBytes, SharedChunks

COPY = "a TMA copy"
RESPONSE = "a launch-control response"
_KINDS = {"st.async": "st.async", "launch-control": "answer"}
"""Of the accesses of operations that are no ordinary copies."""


def _called(operation: Operation) -> str:
    if operation.kind == "st.async":
        return operation.site.verb
    return RESPONSE if operation.kind == "launch-control" else COPY


class Copies(Unit):
    kinds = ("tma.load", "tma.gather", "bulk.load", "st.async", "launch-control")

    def __init__(self, flights: Flights) -> None:
        super().__init__(flights)
        self._landing: tuple[Flight, tuple[Region, ...]] | None = None

    def issue(self, flight: Flight, agent: Agent) -> None:
        operation = flight.operation
        ranks = [region.cta for region in operation.writes]  # type: ignore[union-attr]
        ranks += [rank for rank, _ in operation.detail["signals"]]
        self._flights.reach(flight, ranks, _called(operation))

    def start(self, flight: Flight) -> None:
        """What it reads is looked at when it lands: then it is known who learns of it."""

    def finish(self, flight: Flight, event: Finished) -> None:
        self._landing = (flight, event.regions)

    def landed(self, event: BytesLanded) -> None:
        """Bytes complete in a phase: the copy whose ``Finished`` came before has written its regions."""
        model = self._model
        barrier = model.barriers[event.agent.cluster, event.cta, event.offset]
        barrier.bytes -= event.nbytes
        if self._landing is None or event.operation is None:
            barrier.arrive(model.threads.of(event.agent), "relaxed", 0)
            return
        flight, regions = self._landing
        self._landing = None
        check_use(model, barrier, flight.clock, event.site, event.agent, "the copy signals")
        who, time = barrier.component, event.phase + 1
        if event.operation.kind == "st.async":
            who = barrier.store(flight.clock, event.agent.cta, time)
        else:
            barrier.follow(flight.clock)
        self._land(flight, regions, who, time)
        flight.landed |= {region.cta for region in regions}  # type: ignore[union-attr]
        if len(flight.landed) == len(flight.operation.writes):
            self._flights.end(flight)

    def flush(self, flight: Flight) -> None:
        rest = [r for r in flight.operation.writes if r.cta not in flight.landed]  # type: ignore[union-attr]
        self._land(flight, rest, -1, NEVER)

    def _land(self, flight: Flight, regions: Iterable[Region], who: int, time: int) -> None:
        """``who``, ``time``: what stands for the bytes of the mbarrier's phase, or nobody."""
        operation, model = flight.operation, self._model
        kind = _KINDS.get(operation.kind, "copy")
        agent = operation.agent
        observer = Observer(flight.clock)
        record = flight.record(kind, True, who, time)
        if operation.detail.get("reduction") is not None:
            record.scope = SCOPES["sys"]
        if not flight.read:
            flight.read = True
            written = set(map(id, operation.writes))
            for source in operation.reads:
                if id(source) not in written:
                    self._flights.read_source(flight, source, flight.record(kind, False, who, time))
        for region in regions:
            assert isinstance(region, SharedChunks | SharedBytes)
            memory = model.shared[agent.cluster, region.cta]
            if isinstance(region, SharedChunks):
                memory.access_chunks(region.chunks, record, observer)
            else:
                memory.access(region.offset, region.nbytes, record, observer)
            if who >= 0:
                model.touch(self._flights.cta(agent, region.cta), who, time, operation.site, agent, _called(operation))
