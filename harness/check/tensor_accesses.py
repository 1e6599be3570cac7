"""Asynchronous operations touch tensor memory: tcgen05.ld and .st, whose warp waits for each kind; MMAs and copies."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from harness.check.accesses import Observer
from harness.check.clocks import BEFORE, EXECUTION
from harness.check.flights import Flight, Flights
from harness.check.unit import Unit
from harness.emulator.machine.events import Agent, TensorBlock, TensorMemoryWaited

OPERAND = "operand"


class TensorAccesses(Unit):
    """tcgen05.ld and .st: they are looked at when they are issued."""

    kinds = ("tmem.load", "tmem.store")

    def issue(self, flight: Flight, agent: Agent) -> None:
        operation = flight.operation
        loads = operation.kind == "tmem.load"
        kind = "load" if loads else "keep"
        self._flights.enter(flight, self._flights.pipe(kind, agent, agent.warp))
        written = touch_tensor(self._flights, flight, kind, operation.reads if loads else operation.writes, not loads)
        if loads and not written:
            unwritten(self._flights, flight, "tcgen05.ld reads")
        self._flights.end(flight)

    def awaited(self, event: TensorMemoryWaited) -> None:
        """Loads, or stores, of the thread are over."""
        if not event.operations:
            return
        agent, model = event.agent, self._model
        thread = model.threads.of(agent)
        pipe = self._flights.pipe("keep" if event.kind == "st" else "load", agent, agent.warp)
        clock = thread.own_clock()
        for rows in (slice(EXECUTION, BEFORE), slice(BEFORE + 1, None)):
            clock.set(pipe.component, pipe.count, rows)
        thread.may_follow(pipe.component, pipe.count)
        if event.kind == "use":
            load = event.operations[0]
            model.say(
                "register-before-wait", "warning", "a register of tcgen05.ld is used before tcgen05.wait::ld",
                (load.site, load.agent), (event.site, agent), mend="tcgen05.wait::ld.sync.aligned before the use",
            )  # fmt: skip


def touch_tensor(flights: Flights, flight: Flight, kind: str, regions: Iterable[Any], writes: bool) -> bool:
    """Returns whether all of it had been written before."""
    operation = flight.operation
    record = flight.record(kind, writes)
    observer = flight.observer()
    if kind == "mma" and not writes:
        # An operand in tensor memory: what other MMAs of the thread do there is not in order with it.
        record.shape = observer.shape = OPERAND
    elif kind not in ("mma", "cp"):
        # The loads of a warp, and its stores, complete in order, but stores and loads do not follow one another.
        observer = Observer(flight.clock, flight.who if writes else -1, flight.tensor, flight.shape)
    written = True
    for block in regions:
        if isinstance(block, TensorBlock):
            memory = flights.model.tensor[operation.agent.cluster, block.cta]
            written &= memory.access(block.lanes, block.columns, record, observer)
    return written


def unwritten(flights: Flights, flight: Flight, what: str) -> None:
    operation = flight.operation
    flights.model.say(
        "tmem-uninit", "error", f"{what} columns of tensor memory that nobody has written",
        (operation.site, operation.agent),
        mend="wait for the MMA that writes them; the first MMA of a tile must not accumulate",
    )  # fmt: skip
