"""Tensor core operations (wgmma, tcgen05.mma and tcgen05.cp), and tensor memory from its allocation to its end."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from emugpu.check.clocks import BEFORE, COMPLETED, EXECUTION, ORDER, Clock
from emugpu.check.findings import Severity
from emugpu.check.history import Observer
from emugpu.check.in_flight import InFlight, OperationChecker, OperationsInFlight, Pipe
from emugpu.check.model import Model, drop_cluster
from emugpu.check.record import Record
from emugpu.check.threads import Thread, has_started
from emugpu.emulator.machine.events import (
    Agent,
    Awaited,
    Committed,
    Operation,
    SharedChunks,
    TensorBlock,
    TensorMemoryAllocated,
    TensorMemoryFreed,
    TensorMemoryWaited,
)
from emugpu.emulator.machine.warpgroup import WARPS
from emugpu.emulator.memory.tmem import LANES


def read_operand(
    model: Model, operation: Operation, region: SharedChunks, record: Record, observer: Observer
) -> None:  # fmt: skip
    memory = model.shared[operation.agent.cluster, region.cta]
    if fresh := memory.access_chunks(region.chunks, record, observer):
        # The program may leave the rows of the result unused that come from unwritten rows, but not all of the result.
        # What is written there later is a race of its own.
        severity: Severity = "error" if fresh == region.chunks.size else "warning"
        model.say(
            "stage-read-early", severity, "the MMA reads shared memory that nobody has written yet",
            (operation.site, operation.agent), missing="no wait for the operation that writes it",
            fix="wait for the mbarrier that counts the bytes of the copies, or use no row that comes from this",
        )  # fmt: skip


GROUPS_KEPT = 16


class Wgmmas(OperationChecker):
    """Checks wgmma: four warps issue it together, and wait for its groups."""

    kinds = ("wgmma",)

    def __init__(self, operations: OperationsInFlight) -> None:
        super().__init__(operations)
        self._issued: dict[int, list[Clock]] = {}
        """By operation: the clock of each warp that has issued it."""
        self._of_warp: dict[tuple[int, int, int], int] = {}
        """The last wgmma that a warp has issued."""
        self._committed: dict[tuple[int, int, int, int], int] = {}
        """The last wgmma that a warp had issued when it committed a group."""
        self._collective: dict[tuple[int, int, int], dict[int, Clock]] = {}
        """By warpgroup: the joint knowledge of the issuers of a wgmma, for the last one of each group."""
        self._ends: dict[tuple[int, int, int], set[int]] = {}
        """By warpgroup: the wgmmas that are the last of a group."""

    def issue(self, in_flight: InFlight, agent: Agent) -> None:
        self._operations.enter(in_flight, self._operations.pipe("wgmma", agent, agent.warp // WARPS))
        self._issued[in_flight.operation.id] = []
        self._joins(in_flight, in_flight.clock, agent)

    def issued_again(self, in_flight: InFlight, thread: Thread, agent: Agent) -> None:
        """Handles the issue of the same wgmma by another warp of the warpgroup."""
        self._joins(in_flight, thread.release(), agent)

    def _joins(self, in_flight: InFlight, clock: Clock, agent: Agent) -> None:
        self._issued[in_flight.operation.id].append(clock)
        self._of_warp[agent[:3]] = in_flight.time

    def _read(self, in_flight: InFlight) -> None:
        """Reads the operands. Each warp must have waited for them, so only what all four warps knew counts."""
        operation, clocks = in_flight.operation, self._issued.pop(in_flight.operation.id)
        known = clocks[0].copy()
        for clock in clocks[1:]:
            known.join(clock)
        group = _warpgroup(operation.agent)
        held = self._collective.setdefault(group, {})
        if held and (last := next(reversed(held))) not in self._ends.get(group, ()):
            known.join(held.pop(last))
        held[in_flight.time] = known
        if len(held) > GROUPS_KEPT:
            del held[next(iter(held))]
        width = min(clock.rows.shape[1] for clock in clocks)
        rows = np.minimum.reduce([clock.rows[:, :width] for clock in clocks])
        in_flight.clock = Clock(in_flight.clock.space, rows)
        record, observer = in_flight.record("wgmma", False), in_flight.observer()
        for region in operation.reads:
            if isinstance(region, SharedChunks):
                read_operand(self._model, operation, region, record, observer)

    def committed(self, event: Committed) -> None:
        agent = event.agent
        ((_, group),) = event.groups
        count = self._of_warp.get(agent[:3], 0)
        self._committed[agent.cluster, agent.cta, agent.warp, group] = count
        self._ends.setdefault(_warpgroup(agent), set()).add(count)

    def awaited(self, event: Awaited) -> None:
        agent = event.agent
        thread = self._model.threads.of(agent)
        component = self._operations.pipe("wgmma", agent, agent.warp // WARPS).component
        for _, group in event.groups:
            if group < 0:
                continue
            count = self._committed.pop((agent.cluster, agent.cta, agent.warp, group), 0)
            thread.own_clock().set(component, count)
            # All four warps have issued it, so their earlier actions have happened.
            known = self._collective.get(_warpgroup(agent), {}).get(count)
            if known is not None:
                thread.acquire(known, COMPLETED)

    def forget(self, cluster: int) -> None:
        drop_cluster(cluster, self._of_warp, self._committed, self._collective, self._ends)


def _warpgroup(agent: Agent) -> tuple[int, int, int]:
    return agent.cluster, agent.cta, agent.warp // WARPS


OPERAND = "operand"


class TensorMemoryAccesses(OperationChecker):
    """Checks tcgen05.ld and .st at their issue; their warp waits for each kind."""

    kinds = ("tmem.load", "tmem.store")

    def __init__(self, operations: OperationsInFlight) -> None:
        super().__init__(operations)
        self._stores: dict[tuple[int, int], int] = {}
        """The places in their pipes of the stores that no wait covers, by cluster and operation."""

    def forget(self, cluster: int) -> None:
        drop_cluster(cluster, self._stores)

    def issue(self, in_flight: InFlight, agent: Agent) -> None:
        operation = in_flight.operation
        loads = operation.kind == "tmem.load"
        kind = "load" if loads else "keep"
        self._operations.enter(in_flight, self._operations.pipe(kind, agent, agent.warp))
        if not loads:
            self._stores[agent.cluster, operation.id] = in_flight.time
        written = touch_tensor(
            self._operations, in_flight, kind, operation.reads if loads else operation.writes, not loads
        )
        if loads and not written:
            unwritten(self._operations, in_flight, "tcgen05.ld reads")
        self._operations.end(in_flight)

    def awaited(self, event: TensorMemoryWaited) -> None:
        """Handles tcgen05.wait: the loads, or the stores, of the thread are over."""
        if not event.operations:
            return
        agent, model = event.agent, self._model
        thread = model.threads.of(agent)
        pipe = self._operations.pipe("keep" if event.kind in ("st", "st by ld") else "load", agent, agent.warp)
        clock = thread.own_clock()
        stores = [self._stores.pop((agent.cluster, one.id), 0) for one in event.operations]
        over = max(stores) if event.kind == "st by ld" else pipe.count
        for rows in (slice(EXECUTION, BEFORE), slice(BEFORE + 1, None)):
            clock.set(pipe.component, over, rows)
        thread.may_follow(pipe.component, over)
        if event.kind == "st by ld":
            store = event.operations[0]
            model.say(
                "tmem-race", "warning",
                "the tcgen05.ld reads columns that its warp's tcgen05.st may not have written",
                (store.site, store.agent), (event.site, agent), fix="tcgen05.wait::st.sync.aligned between them",
            )  # fmt: skip
        if event.kind == "use":
            load = event.operations[0]
            model.say(
                "register-before-wait", "warning", "a register of tcgen05.ld is used before tcgen05.wait::ld",
                (load.site, load.agent), (event.site, agent), fix="tcgen05.wait::ld.sync.aligned before the use",
            )  # fmt: skip


def touch_tensor(
    operations: OperationsInFlight, in_flight: InFlight, kind: str, regions: Iterable[Any], writes: bool
) -> bool:
    """Records accesses to tensor memory. Returns whether all of it had been written before."""
    operation = in_flight.operation
    record = in_flight.record(kind, writes)
    # The loads of a warp, and its stores, complete in order, but stores and loads do not follow one another.
    pipe = in_flight.who if writes or kind in ("mma", "cp") else -1
    observer = Observer(in_flight.clock, pipe, in_flight.tensor, in_flight.shape)
    if kind == "mma" and not writes:
        # An operand in tensor memory is not in order with the accesses of the thread's other MMAs.
        record.shape = observer.shape = OPERAND
    written = True
    for block in regions:
        if isinstance(block, TensorBlock):
            memory = operations.model.tensor[operation.agent.cluster, block.cta]
            written &= memory.access(block.lanes, block.columns, record, observer)
    return written


def unwritten(operations: OperationsInFlight, in_flight: InFlight, what: str) -> None:
    operation = in_flight.operation
    # The program may leave a loaded value unused; if the value decides something, the machine reports it.
    severity: Severity = "warning" if operation.kind == "tmem.load" else "error"
    operations.model.say(
        "tmem-uninit", severity, f"{what} columns of tensor memory that nobody has written",
        (operation.site, operation.agent),
        fix="wait for the MMA that writes them; the first MMA of a tile must not accumulate",
    )  # fmt: skip


class Mmas(OperationChecker):
    """Checks a thread's tcgen05.mma and tcgen05.cp, which complete in order, and the commits that signal this."""

    kinds = ("mma", "tmem.copy")

    def issue(self, in_flight: InFlight, agent: Agent) -> None:
        operation = in_flight.operation
        self._operations.enter(in_flight, mma_pipe(self._operations, agent))
        if operation.kind == "mma":
            self._operations.reach(in_flight, operation.detail["ctas"], "an MMA of a pair")
        else:
            ranks = (region.cta for region in operation.reads)  # type: ignore[union-attr]
            self._operations.reach(in_flight, ranks, "tcgen05.cp of a pair")

    def _read(self, in_flight: InFlight) -> None:
        operation = in_flight.operation
        kind = "cp" if operation.kind == "tmem.copy" else "mma"
        record, observer = in_flight.record(kind, False), in_flight.observer()
        accumulator = set(operation.writes)
        accumulates = False
        for region in operation.reads:
            if isinstance(region, SharedChunks):
                read_operand(self._model, operation, region, record, observer)
            elif region in accumulator:
                accumulates = True
            elif not touch_tensor(self._operations, in_flight, kind, (region,), False):
                unwritten(self._operations, in_flight, "the MMA reads")
        written = touch_tensor(self._operations, in_flight, kind, operation.writes, True)
        if accumulates and not written:
            unwritten(self._operations, in_flight, "the MMA accumulates in")
        agent = operation.agent
        for rank in {region.cta for region in operation.writes}:  # type: ignore[union-attr]
            if rank != agent.cta:
                cta = self._operations.cta(agent, rank)
                self._model.touch(cta, in_flight.who, in_flight.time, operation.site, agent, "an MMA")

    def flush(self, in_flight: InFlight) -> None:
        self.start(in_flight)


def mma_pipe(operations: OperationsInFlight, agent: Agent) -> Pipe:
    """Returns the pipe of one thread's MMAs, tcgen05.cps and commits."""
    lane = (agent.lanes & -agent.lanes).bit_length() - 1
    return operations.pipe("mma", agent, agent.warp * 32 + lane)


Life = TensorMemoryAllocated | TensorMemoryFreed


class TensorMemoryLife:
    """Checks the order of allocating and freeing tensor memory, by each CTA for itself or by both CTAs of a pair.

    A pair allocates together: the first warp may wait for the second one (PTX ISA 9.7.16.5). Kernels that run well use
    both tensor memories as soon as their own allocation has returned. Therefore the allocation of the even CTA, for
    which that of the odd CTA waits here, stands for both.
    """

    def __init__(self, model: Model) -> None:
        self.model = model
        self._made: dict[tuple[int, int, int], Record] = {}
        self._freed: dict[tuple[int, int, int], Record] = {}

    def allocated(self, event: TensorMemoryAllocated) -> None:
        agent = event.agent
        peer = agent.cta ^ 1
        both: tuple[int, ...] = (agent.cta, peer) if agent.cta < peer else ()
        record = self._act(event, "alloc", both if _in_pair(event) else (agent.cta,))
        self._made[agent.cluster, agent.cta, event.column] = record
        if not _in_pair(event):
            return
        thread = self.model.threads.of(agent)
        if not both:
            made = self._made[agent.cluster, peer, event.column]
            thread.own_clock().set(made.who, made.time, slice(ORDER, ORDER + 1))
        if not has_started(thread.clock, self.model.threads.cta(agent.cluster, peer)):
            self.model.say(
                "tmem-alloc-order", "warning", f"allocates tensor memory with CTA {peer}, which may not have started",
                (event.site, agent), missing="no cluster barrier before the allocation",
                fix="a cluster barrier before tcgen05.alloc.cta_group::2",
            )  # fmt: skip
        freed = self._freed.get((agent.cluster, peer, event.column))
        if freed is not None and (agent.cluster, agent.cta, event.column) not in self._freed:
            self._too_soon(record, freed)

    def freed(self, event: TensorMemoryFreed) -> None:
        agent = event.agent
        record = self._act(event, "free", (agent.cta,))
        self._freed[agent.cluster, agent.cta, event.column] = record
        if not _in_pair(event):
            return
        made = self._made.get((agent.cluster, agent.cta ^ 1, event.column))
        clock = self.model.threads.of(agent).clock
        if made is not None and not clock.knows(made.space, made.who, made.time, EXECUTION):
            self._too_soon(made, record)

    def _act(self, event: Life, kind: str, ctas: tuple[int, ...]) -> Record:
        """Records that columns of CTAs are allocated or freed.

        Their users must access them after the allocation and before the deallocation.
        """
        agent = event.agent
        thread = self.model.threads.of(agent)
        clock = thread.release()
        made = Record(clock.space, thread.own, thread.time - 1, kind, True, agent, event.site, clock.rows[ORDER].copy())
        columns = range(event.column, event.column + event.columns)
        for cta in ctas:
            observer = Observer(clock, tensor=thread.tensor)
            self.model.tensor[agent.cluster, cta].access(range(LANES), columns, made, observer)
        return made

    def _too_soon(self, made: Record, freed: Record) -> None:
        self.model.say(
            "tmem-alloc-order", "error",
            f"CTA {freed.agent.cta} frees tensor memory while the allocation of CTA {made.agent.cta} may be in flight",
            (made.site, made.agent), (freed.site, freed.agent), missing="no path from the peer's allocation to this",
            fix="a cluster barrier between the allocation and the deallocation",
        )  # fmt: skip

    def forget(self, cluster: int) -> None:
        drop_cluster(cluster, self._made, self._freed)


def _in_pair(event: Life) -> bool:
    return "cta_group::2" in event.site.modifiers
