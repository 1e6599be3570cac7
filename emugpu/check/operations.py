"""Passes each event of an asynchronous operation to the part of the checker for operations of its kind."""

from __future__ import annotations

from emugpu.check.barriers import check_use
from emugpu.check.copies import BulkStores, CountedCopies, CpAsyncCopies
from emugpu.check.in_flight import InFlight, OperationChecker, OperationsInFlight
from emugpu.check.mbarrier import Arrival, Signal
from emugpu.check.model import Model
from emugpu.check.tensor_core import Mmas, TensorMemoryAccesses, Wgmmas, mma_pipe
from emugpu.emulator.machine import events
from emugpu.emulator.machine.events import Agent, Operation, Signalled


class Signals(OperationChecker):
    """Checks operations that only signal mbarriers: tcgen05.commit for its thread's MMAs so far, and
    cp.async.mbarrier.arrive for its thread's copies so far.
    """

    kinds = ("commit", "cp.async.arrive")

    def issue(self, in_flight: InFlight, agent: Agent) -> None:
        operation, operations = in_flight.operation, self._operations
        if operation.kind == "commit":
            operations.follow(in_flight, mma_pipe(operations, agent))
            operations.reach(in_flight, (rank for rank, _ in operation.detail["signals"]), "tcgen05.commit")
        else:
            operations.follow(in_flight, operations.pipe("cp.async", agent, agent.warp))

    def signalled(self, event: Signalled) -> None:
        in_flight = self._operations.all[event.operation.id]
        operation, model = in_flight.operation, self._model
        agent, site = operation.agent, operation.site
        barrier = model.barriers[agent.cluster, event.cta, event.offset]
        check_use(model, barrier, in_flight.clock, site, agent, f"{site.opcode} signals")
        barrier.signal(operation.id, event.phase)
        barrier.last = (site, agent)
        barrier.arrivers.add((agent.cta, agent.warp))
        barrier.pending -= 1
        if operation.kind == "cp.async.arrive":
            barrier.copied(in_flight.clock, in_flight.who, in_flight.time)
        else:
            barrier.commit(in_flight.clock, in_flight.tensor, in_flight.who, in_flight.time)
            barrier.unseen.append(Arrival(event.phase, in_flight.who, in_flight.time, site, agent, True))
        self._operations.signal(in_flight)

    def missed(self, operation: Operation) -> tuple[int, int]:
        """Handles a signal to a CTA that has exited. Returns the component and time that it stands for."""
        in_flight = self._operations.all[operation.id]
        self._operations.signal(in_flight)
        return in_flight.who, in_flight.time


class AsynchronousOperations:
    """Handles the events of asynchronous operations."""

    def __init__(self, model: Model) -> None:
        operations = self._operations = OperationsInFlight(model)
        copies, cp_async, stores = CountedCopies(operations), CpAsyncCopies(operations), BulkStores(operations)
        wgmmas, tensor, signals = Wgmmas(operations), TensorMemoryAccesses(operations), Signals(operations)
        self._checkers: tuple[OperationChecker, ...] = (
            copies, cp_async, stores, wgmmas, tensor, signals, Mmas(operations),
        )  # fmt: skip
        self._by_kind = {kind: checker for checker in self._checkers for kind in checker.kinds}
        self._wgmmas = wgmmas
        self._committed = {"cp.async": cp_async.committed, "wgmma": wgmmas.committed}
        self._awaited = {"cp.async": cp_async.awaited, "wgmma": wgmmas.awaited, "bulk": stores.awaited}
        self.landed = copies.landed
        self.signalled = signals.signalled
        self.missed = signals.missed
        self.tensor_awaited = tensor.awaited
        self.exited = stores.exited

    def issued(self, event: events.Issued, tensor_map: int) -> None:
        """``tensor_map`` is the address of the operation's tensor map in global memory, or -1."""
        operation, agent = event.operation, event.agent
        thread = self._operations.model.threads.of(agent)
        known = self._operations.all.get(operation.id)
        if known is not None:
            self._wgmmas.issued_again(known, thread, agent)
            return
        tensor = thread.tensor
        known_to_it = thread.release()
        in_flight = InFlight(operation, known_to_it, tensor, (thread.own, thread.time), tensor_map)
        self._operations.all[operation.id] = in_flight
        self._by_kind[operation.kind].issue(in_flight, agent)
        ends = ((in_flight.who, in_flight.time),) if in_flight.who >= 0 else ()
        for rank, offset in operation.detail.get("signals", ()):
            barrier = self._operations.model.barriers.get((agent.cluster, rank, offset))
            if barrier is not None:
                barrier.coming[operation.id] = Signal(ends, operation.site, agent)

    def started(self, event: events.Started) -> None:
        in_flight = self._operations.all.get(event.operation.id)
        if in_flight is not None:
            self._by_kind[event.operation.kind].start(in_flight)

    def finished(self, event: events.Finished) -> None:
        in_flight = self._operations.all.get(event.operation.id)
        if in_flight is not None:
            self._by_kind[event.operation.kind].finish(in_flight, event)

    def committed(self, event: events.Committed) -> None:
        if event.kind in self._committed:
            self._committed[event.kind](event)

    def awaited(self, event: events.Awaited) -> None:
        self._awaited[event.kind](event)

    def flush(self) -> None:
        """Ends the run: checks the operations still in flight as if they happened now."""
        for in_flight in list(self._operations.all.values()):
            self._by_kind[in_flight.operation.kind].flush(in_flight)
        self._operations.all.clear()

    def forget(self, cluster: int) -> None:
        """Drops the state of a cluster that has ended."""
        self._operations.forget(cluster)
        for checker in self._checkers:
            checker.forget(cluster)
