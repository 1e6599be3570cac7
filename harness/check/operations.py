"""Asynchronous operations: each event goes to the part of the checker that knows operations of its kind."""

from __future__ import annotations

from harness.check.copies import Copies
from harness.check.flights import Flight, Flights
from harness.check.model import Model
from harness.check.multiplications import Multiplications
from harness.check.signals import Signals
from harness.check.small_copies import SmallCopies
from harness.check.stores import Stores
from harness.check.tensor_accesses import TensorAccesses
from harness.check.unit import Unit
from harness.check.wgmmas import Wgmmas
from harness.emulator.machine import events


class Operations:
    """Takes the events of asynchronous operations."""

    def __init__(self, model: Model) -> None:
        flights = self._flights = Flights(model)
        copies, small_copies, stores = Copies(flights), SmallCopies(flights), Stores(flights)
        wgmmas, tensor, signals = Wgmmas(flights), TensorAccesses(flights), Signals(flights)
        self._units: tuple[Unit, ...] = (
            copies, small_copies, stores, wgmmas, tensor, signals, Multiplications(flights),
        )  # fmt: skip
        self._by_kind = {kind: unit for unit in self._units for kind in unit.kinds}
        self._wgmmas = wgmmas
        self._committed = {"cp.async": small_copies.committed, "wgmma": wgmmas.committed}
        self._awaited = {"cp.async": small_copies.awaited, "wgmma": wgmmas.awaited, "bulk": stores.awaited}
        self.landed = copies.landed
        self.signalled = signals.signalled
        self.missed = signals.missed
        self.tensor_awaited = tensor.awaited
        self.exited = stores.exited

    def issued(self, event: events.Issued) -> None:
        operation, agent = event.operation, event.agent
        thread = self._flights.model.threads.of(agent)
        known = self._flights.all.get(operation.id)
        if known is not None:
            self._wgmmas.issued_again(known, thread, agent)
            return
        tensor = thread.tensor
        flight = self._flights.all[operation.id] = Flight(operation, thread.release(), tensor)
        self._by_kind[operation.kind].issue(flight, agent)

    def started(self, event: events.Started) -> None:
        flight = self._flights.all.get(event.operation.id)
        if flight is not None:
            self._by_kind[event.operation.kind].start(flight)

    def finished(self, event: events.Finished) -> None:
        flight = self._flights.all.get(event.operation.id)
        if flight is not None:
            self._by_kind[event.operation.kind].finish(flight, event)

    def committed(self, event: events.Committed) -> None:
        if event.kind in self._committed:
            self._committed[event.kind](event)

    def awaited(self, event: events.Awaited) -> None:
        self._awaited[event.kind](event)

    def flush(self) -> None:
        """The run has ended: what was under way is looked at as if it happened now."""
        for flight in list(self._flights.all.values()):
            self._by_kind[flight.operation.kind].flush(flight)
        self._flights.all.clear()

    def forget(self, cluster: int) -> None:
        """A cluster has ended."""
        self._flights.forget(cluster)
        for unit in self._units:
            unit.forget(cluster)
