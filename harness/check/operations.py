"""Asynchronous operations: what they touch between issue and completion, and who learns of it.

An operation acts with what its thread knew at issue. Operations that complete in order share a component: the MMAs of
a thread, its bulk groups, the wgmmas of a warpgroup, the tcgen05 loads of a warp. Copies belong to the phase of the
mbarrier that counts their bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from harness.check.accesses import SCOPES, Observer, Record
from harness.check.barriers import Arrival
from harness.check.boxes import inside, is_inside
from harness.check.clocks import BEFORE, EXECUTION, INFORMAL, NARROW, ORDER, Clock, Rows, set_generic
from harness.check.memory import Memory
from harness.check.model import Model
from harness.check.threads import Cta
from harness.check.uses import check_use
from harness.emulator.machine import events
from harness.emulator.machine.events import (
    Agent,
    GlobalBox,
    GlobalItems,
    Operation,
    SharedBytes,
    SharedChunks,
    SharedItems,
    Site,
    TensorBlock,
)

WARPGROUP = 4
GROUPS_KEPT = 16
ARRIVES = ("tma.load", "tma.gather", "bulk.load", "st.async", "launch-control")
"""Operations whose bytes are counted by an mbarrier."""
DEPARTS = ("tma.store", "bulk.store")
"""Operations of bulk groups."""
OPERAND = "operand"
COPY = "a TMA copy"
RESPONSE = "a launch-control response"
NEVER = 1 << 30
"""Time of an operation whose end nobody has seen."""


@dataclass
class InFlight:
    """An operation that has been issued. ``clocks``: what those who issued it knew. ``time``: in its component."""

    operation: Operation
    clocks: list[Clock]
    tensor: Rows
    who: int = -1
    time: int = NEVER
    landed: set[int] = field(default_factory=set)
    signals: int = 0
    read: bool = False
    record: Record | None = None

    @property
    def clock(self) -> Clock:
        return self.clocks[0]

    def observer(self) -> Observer:
        return Observer(self.clocks[0], self.who, self.tensor, self.shape)

    @property
    def shape(self) -> object:
        """Of an MMA: accumulator, and the part of the instruction descriptor with M and N."""
        if self.operation.kind != "mma":
            return self.operation.kind
        mma = self.operation.detail["mma"]
        return mma.d_address, mma.idesc >> 17


@dataclass
class Pipe:
    """Operations that complete in order: their component, and how many there were."""

    component: int
    count: int = 0


@dataclass
class Bulk:
    """Bulk groups of a thread: components of their reads and of their writes, and the youngest group with a store."""

    reads: int
    writes: int
    youngest: int = 0
    last: tuple[Site, Agent] | None = None


class Operations:
    """Takes the events of asynchronous operations."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.in_flight: dict[int, InFlight] = {}
        self.bulk: dict[tuple[int, int, int, int], Bulk] = {}
        self._pipes: dict[tuple[Any, ...], Pipe] = {}
        self._groups: dict[tuple[int, int, int, int], int] = {}
        """wgmmas that a warp had issued when it committed a group."""
        self._copied: dict[tuple[int, int, int, int, int], int] = {}
        """cp.asyncs that a warp had issued when a lane committed a group."""
        self._collective: dict[tuple[int, int, int], dict[int, Clock]] = {}
        """By warpgroup: what those who issued a wgmma knew, the last one of each group."""
        self._ends: dict[tuple[int, int, int], set[int]] = {}
        self._landing: tuple[InFlight, tuple[events.Region, ...]] | None = None

    # ---- issue ----

    def issued(self, event: events.Issued) -> None:
        operation = event.operation
        thread = self.model.threads.of(event.agent)
        known = self.in_flight.get(operation.id)
        tensor = thread.tensor
        if known is not None:
            known.clocks.append(thread.release())
            self._pipe("wgmma of warp", event.agent, event.agent.warp).count = known.time
            return
        issue = _ISSUED.get(operation.kind)
        if issue is not None:
            flight = InFlight(operation, [thread.release()], tensor)
            self.in_flight[operation.id] = flight
            issue(self, flight, event.agent)

    def _cta(self, agent: Agent, rank: int | None = None) -> Cta:
        return self.model.threads.cta(agent.cluster, agent.cta if rank is None else rank)

    def _pipe(self, kind: str, agent: Agent, number: int) -> Pipe:
        key = (kind, agent.cluster, agent.cta, number)
        found = self._pipes.get(key)
        if found is None:
            found = self._pipes[key] = Pipe(self.model.threads.clusters[agent.cluster].components.new(agent.cta))
        return found

    def _in_pipe(self, flight: InFlight, pipe: Pipe) -> None:
        pipe.count += 1
        flight.who, flight.time = pipe.component, pipe.count

    def mma_pipe(self, agent: Agent) -> Pipe:
        """MMAs and commits of one thread."""
        lane = (agent.lanes & -agent.lanes).bit_length() - 1
        return self._pipe("mma", agent, agent.warp * 32 + lane)

    def _issue_mma(self, flight: InFlight, agent: Agent) -> None:
        self._in_pipe(flight, self.mma_pipe(agent))
        for rank in flight.operation.detail["ctas"]:
            self._reach(flight, rank, "an MMA of a pair")

    def _issue_tensor_copy(self, flight: InFlight, agent: Agent) -> None:
        self._in_pipe(flight, self.mma_pipe(agent))
        for region in flight.operation.reads:
            self._reach(flight, region.cta, "tcgen05.cp of a pair")  # type: ignore[union-attr]

    def _issue_small_copy(self, flight: InFlight, agent: Agent) -> None:
        self._in_pipe(flight, self._pipe("cp.async", agent, agent.warp))

    def _issue_copy_arrival(self, flight: InFlight, agent: Agent) -> None:
        pipe = self._pipe("cp.async", agent, agent.warp)
        flight.who, flight.time = pipe.component, pipe.count

    def _issue_commit(self, flight: InFlight, agent: Agent) -> None:
        pipe = self.mma_pipe(agent)
        flight.who, flight.time = pipe.component, pipe.count
        for rank, _ in flight.operation.detail["signals"]:
            self._reach(flight, rank, "tcgen05.commit")

    def _issue_wgmma(self, flight: InFlight, agent: Agent) -> None:
        self._in_pipe(flight, self._pipe("wgmma", agent, agent.warp // WARPGROUP))
        self._pipe("wgmma of warp", agent, agent.warp).count = flight.time

    def _issue_copy(self, flight: InFlight, agent: Agent) -> None:
        what = RESPONSE if flight.operation.kind == "launch-control" else COPY
        for region in flight.operation.writes:
            self._reach(flight, region.cta, what)  # type: ignore[union-attr]
        for rank, _ in flight.operation.detail["signals"]:
            self._reach(flight, rank, what)

    def _reach(self, flight: InFlight, rank: int, what: str) -> None:
        operation = flight.operation
        self.model.reach(flight.clock, operation.agent.cluster, rank, operation.site, operation.agent, what)

    def _issue_store(self, flight: InFlight, agent: Agent) -> None:
        lane, number = flight.operation.detail["group"]
        bulk = self._bulk(agent, lane)
        bulk.youngest, bulk.last = number + 1, (flight.operation.site, agent)
        flight.who, flight.time = bulk.reads, number + 1

    def _bulk(self, agent: Agent, lane: int) -> Bulk:
        key = (agent.cluster, agent.cta, agent.warp, lane)
        found = self.bulk.get(key)
        if found is None:
            components = self.model.threads.clusters[agent.cluster].components
            found = self.bulk[key] = Bulk(components.new(agent.cta), components.new(agent.cta))
        return found

    def _issue_tensor_load(self, flight: InFlight, agent: Agent) -> None:
        self._in_pipe(flight, self._pipe("load", agent, agent.warp))
        written = self._touch_tensor(flight, "load", flight.operation.reads, False)
        if not written:
            self._unwritten(flight, "tcgen05.ld reads")
        del self.in_flight[flight.operation.id]

    def _issue_tensor_store(self, flight: InFlight, agent: Agent) -> None:
        self._in_pipe(flight, self._pipe("keep", agent, agent.warp))
        self._touch_tensor(flight, "keep", flight.operation.writes, True)
        del self.in_flight[flight.operation.id]

    # ---- tensor memory ----

    def _touch_tensor(self, flight: InFlight, kind: str, regions: Iterable[Any], writes: bool) -> bool:
        """Returns whether all of it had been written before."""
        operation = flight.operation
        record = self._record(flight, kind, writes)
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
                memory = self.model.tensor[operation.agent.cluster, block.cta]
                written &= memory.access(block.lanes, block.columns, record, observer)
        return written

    def _unwritten(self, flight: InFlight, what: str) -> None:
        operation = flight.operation
        self.model.say(
            "tmem-uninit", "error", f"{what} columns of tensor memory that nobody has written",
            (operation.site, operation.agent),
            mend="wait for the MMA that writes them; the first MMA of a tile must not accumulate",
        )  # fmt: skip

    def _record(self, flight: InFlight, kind: str, writes: bool, who: int | None = None, time: int = 0) -> Record:
        operation, clock = flight.operation, flight.clock
        if who is None:
            who, time = flight.who, flight.time
        order = clock.rows[ORDER].copy()
        record = Record(clock.space, who, time, kind, writes, operation.agent, operation.site, order)
        record.shape = flight.shape
        return record

    # ---- start: operands are read ----

    def started(self, event: events.Started) -> None:
        flight = self.in_flight.get(event.operation.id)
        if flight is not None and not flight.read and event.operation.kind not in ARRIVES:
            self._start(flight)

    def _start(self, flight: InFlight) -> None:
        flight.read = True
        kind = flight.operation.kind
        if kind in ("mma", "tmem.copy"):
            self._multiply(flight)
        elif kind == "wgmma":
            self._multiply_wgmma(flight)
        elif kind in DEPARTS:
            self._read_source(flight)

    def _multiply(self, flight: InFlight) -> None:
        operation = flight.operation
        record, observer = self._record(flight, "mma", False), flight.observer()
        kind = "cp" if operation.kind == "tmem.copy" else "mma"
        record.kind = kind
        accumulator = set(operation.writes)
        accumulates = False
        for region in operation.reads:
            if isinstance(region, SharedChunks):
                self._read_operand(flight, region, record, observer)
            elif region in accumulator:
                accumulates = True
            elif not self._touch_tensor(flight, kind, (region,), False):
                self._unwritten(flight, "the MMA reads")
        written = self._touch_tensor(flight, kind, operation.writes, True)
        if accumulates and not written:
            self._unwritten(flight, "the MMA accumulates in")
        for rank in {region.cta for region in operation.writes}:  # type: ignore[union-attr]
            if rank != operation.agent.cta:
                self.model.touch(
                    self._cta(operation.agent, rank), flight.who, flight.time, operation.site, operation.agent, "an MMA"
                )

    def _read_operand(self, flight: InFlight, region: SharedChunks, record: Record, observer: Observer) -> None:
        operation = flight.operation
        memory = self.model.shared[operation.agent.cluster, region.cta]
        if memory.is_untouched(region.chunks):
            self.model.say(
                "stage-read-early", "error", "the MMA reads shared memory that nobody has written yet",
                (operation.site, operation.agent), missing="no wait for whatever is to write it",
                mend="wait for the mbarrier that counts the bytes of the copies",
            )  # fmt: skip
        memory.access_chunks(region.chunks, record, observer)

    def _multiply_wgmma(self, flight: InFlight) -> None:
        """Each warp must have waited for what it multiplies: what counts is what all of them knew."""
        space = flight.clock.space
        told = flight.clock.copy()
        for clock in flight.clocks[1:]:
            told.join(clock)
        group = _warpgroup(flight.operation.agent)
        held = self._collective.setdefault(group, {})
        if held and (last := next(reversed(held))) not in self._ends.get(group, ()):
            told.join(held.pop(last))
        held[flight.time] = told
        if len(held) > GROUPS_KEPT:
            del held[next(iter(held))]
        width = min(clock.rows.shape[1] for clock in flight.clocks)
        rows = np.minimum.reduce([clock.rows[:, :width] for clock in flight.clocks])
        flight.clocks = [Clock(space, rows)]
        record, observer = self._record(flight, "wgmma", False), flight.observer()
        for region in flight.operation.reads:
            if isinstance(region, SharedChunks):
                self._read_operand(flight, region, record, observer)

    def _read_source(self, flight: InFlight) -> None:
        operation = flight.operation
        source, target = operation.reads[0], operation.writes[0]
        record = self._record(flight, "store", False)
        if isinstance(source, SharedChunks) and isinstance(target, GlobalBox) and len(operation.writes) == 1:
            chunks = source.chunks
            if not is_inside(target.tensor_map, target.coordinates):
                chunks = chunks[inside(target.tensor_map, target.coordinates)]
            if len(chunks):
                memory = self.model.shared[operation.agent.cluster, source.cta]
                memory.access_chunks(chunks, record, flight.observer())
        else:
            self._read_at(flight, source, record)

    def _read_at(self, flight: InFlight, source: Any, record: Record) -> None:
        """A source of a copy, in shared or in global memory. Reads of the latter are kept for long: without clocks."""
        cluster, observer = flight.operation.agent.cluster, flight.observer()
        if isinstance(source, SharedChunks):
            self.model.shared[cluster, source.cta].access_chunks(source.chunks, record, observer)
        elif isinstance(source, SharedBytes):
            self.model.shared[cluster, source.cta].access(source.offset, source.nbytes, record, observer)
        else:
            record.order = None
            self.access_global(source, record, observer)

    # ---- completion ----

    def finished(self, event: events.Finished) -> None:
        flight = self.in_flight.get(event.operation.id)
        if flight is None:
            return
        kind = event.operation.kind
        if kind in ARRIVES:
            self._landing = (flight, event.regions)
            return
        if kind in DEPARTS:
            self._write_target(flight)
        elif kind == "cp.async":
            self._copy_items(flight)
        del self.in_flight[event.operation.id]

    def _copy_items(self, flight: InFlight) -> None:
        """cp.async: through the generic proxy."""
        operation, observer = flight.operation, flight.observer()
        (source,), (target,) = operation.reads, operation.writes
        assert isinstance(source, GlobalItems) and isinstance(target, SharedItems)
        copied = source.nbytes > 0
        if copied.any():
            read = self._record(flight, "cp.async", False)
            read.order = None
            places = source.addresses[copied].astype(np.int64)
            self.model.access_global(places, int(source.nbytes.max()), read, observer)
        memory = self.model.shared[operation.agent.cluster, target.cta]
        memory.access(target.offsets, target.nbytes, self._record(flight, "cp.async", True), observer)

    def _write_target(self, flight: InFlight) -> None:
        operation = flight.operation
        lane, number = operation.detail["group"]
        bulk = self._bulk(operation.agent, lane)
        clock = flight.clock
        record = Record(clock.space, bulk.writes, number + 1, "store", True, operation.agent, operation.site)
        if operation.detail.get("reduction") is not None:
            record.scope = SCOPES["gpu"]
        for target in operation.writes:
            self.access_global(target, record, flight.observer())

    def access_global(self, region: Any, record: Record, observer: Observer) -> None:
        """Boxes or ranges of global memory are read or written."""
        if isinstance(region, GlobalBox):
            allocation = self.model.allocation(region.tensor_map.address)
            if allocation is not None:
                allocation.access(region, record, observer)
        else:
            assert isinstance(region, GlobalItems)
            for address, nbytes in zip(region.addresses.tolist(), region.nbytes.tolist(), strict=True):
                if nbytes:
                    self.model.access_global(np.array([address], np.int64), nbytes, record, observer)

    def landed(self, event: events.BytesLanded) -> None:
        """Bytes complete in a phase: the copy whose ``Finished`` came before has written its regions."""
        cluster = event.agent.cluster
        barrier = self.model.barriers[cluster, event.cta, event.offset]
        barrier.used = True
        barrier.bytes -= event.nbytes
        if self._landing is None or event.operation is None:
            thread = self.model.threads.of(event.agent)
            barrier.arrive(thread, "relaxed", 0)
            return
        flight, regions = self._landing
        self._landing = None
        check_use(self.model, barrier, flight.clock, event.site, event.agent, "the copy signals")
        barrier.follow(flight.clock)
        self._land(flight, regions, barrier.component, event.phase + 1)
        flight.landed |= {region.cta for region in regions}  # type: ignore[union-attr]
        if len(flight.landed) == len(flight.operation.writes):
            del self.in_flight[flight.operation.id]

    def _land(self, flight: InFlight, regions: Iterable[Any], who: int, time: int) -> None:
        operation = flight.operation
        kind = "answer" if operation.kind == "launch-control" else "copy"
        cluster = operation.agent.cluster
        observer = Observer(flight.clock)
        record = self._record(flight, kind, True, who, time)
        if operation.detail.get("reduction") is not None:
            record.scope = SCOPES["sys"]
        if not flight.read:
            flight.read = True
            written = set(map(id, operation.writes))
            for source in operation.reads:
                if id(source) not in written:
                    self._read_at(flight, source, self._record(flight, kind, False, who, time))
        for region in regions:
            memory: Memory = self.model.shared[cluster, region.cta]
            if isinstance(region, SharedChunks):
                memory.access_chunks(region.chunks, record, observer)
            else:
                assert isinstance(region, SharedBytes)
                memory.access(region.offset, region.nbytes, record, observer)
            if who >= 0:
                what = COPY if kind == "copy" else RESPONSE
                cta = self._cta(operation.agent, region.cta)
                self.model.touch(cta, who, time, operation.site, operation.agent, what)

    def signalled(self, event: events.Signalled) -> None:
        flight = self.in_flight[event.operation.id]
        operation = flight.operation
        agent = operation.agent
        barrier = self.model.barriers[agent.cluster, event.cta, event.offset]
        barrier.used = True
        check_use(self.model, barrier, flight.clock, operation.site, agent, f"{operation.site.opcode} signals")
        barrier.last = (operation.site, agent)
        barrier.pending -= 1
        if operation.kind == "cp.async.arrive":
            barrier.copied(flight.clock, flight.who, flight.time)
            self._end_signal(flight)
            return
        barrier.commit(flight.clock, flight.tensor, flight.who, flight.time)
        barrier.unseen.append(Arrival(event.phase, flight.who, flight.time, operation.site, agent, True))
        self._end_signal(flight)

    def missed(self, operation: Operation) -> tuple[int, int]:
        """A commit has come to a CTA that has exited. Returns component and time of what it stands for."""
        flight = self.in_flight[operation.id]
        self._end_signal(flight)
        return flight.who, flight.time

    def _end_signal(self, flight: InFlight) -> None:
        flight.signals += 1
        if flight.signals == len(flight.operation.detail["signals"]):
            del self.in_flight[flight.operation.id]

    # ---- groups and waits ----

    def committed(self, event: events.Committed) -> None:
        if event.kind == "cp.async":
            agent = event.agent
            count = self._pipe("cp.async", agent, agent.warp).count
            for lane, group in event.groups:
                self._copied[agent.cluster, agent.cta, agent.warp, lane, group] = count
        elif event.kind == "wgmma":
            agent = event.agent
            ((_, group),) = event.groups
            count = self._pipe("wgmma of warp", agent, agent.warp).count
            self._groups[agent.cluster, agent.cta, agent.warp, group] = count
            self._ends.setdefault(_warpgroup(agent), set()).add(count)

    def awaited(self, event: events.Awaited) -> None:
        agent = event.agent
        thread = self.model.threads.of(agent)
        if event.kind == "cp.async":
            self._copies_awaited(event)
            return
        for lane, group in event.groups:
            if group < 0:
                continue
            if event.kind == "wgmma":
                count = self._groups.pop((agent.cluster, agent.cta, agent.warp, group), 0)
                component = self._pipe("wgmma", agent, agent.warp // WARPGROUP).component
                thread.own_clock().set(component, count)
                # All four warps have issued it, so what they had done before has happened.
                told = self._collective.get(_warpgroup(agent), {}).get(count)
                if told is not None:
                    thread.acquire(told, NARROW)
                continue
            bulk = self._bulk(agent, lane)
            clock = thread.own_clock()
            clock.set(bulk.reads, group + 1)
            if not event.reads_only:
                clock.set(bulk.writes, group + 1)

    def _copies_awaited(self, event: events.Awaited) -> None:
        """cp.async.wait_group, or wait_all, which covers copies in no group yet."""
        agent = event.agent
        pipe = self._pipe("cp.async", agent, agent.warp)
        counts: list[int] = []
        for lane, group in event.groups:
            key = (agent.cluster, agent.cta, agent.warp, lane, group)
            everything = event.site.modifiers[1] == "wait_all"
            counts.append(pipe.count if everything else self._copied.get(key, 0))
        # They are writes of the generic proxy like any other: no proxy fence is implied.
        clock = self.model.threads.of(agent).own_clock()
        set_generic(clock, pipe.component, min(counts, default=0))

    def tensor_awaited(self, event: events.TensorMemoryWaited) -> None:
        """Loads, or stores, of the thread are over."""
        if not event.operations:
            return
        agent = event.agent
        thread = self.model.threads.of(agent)
        pipe = self._pipe("keep" if event.kind == "st" else "load", agent, agent.warp)
        clock = thread.own_clock()
        for rows in (slice(EXECUTION, BEFORE), slice(INFORMAL, None)):
            clock.set(pipe.component, pipe.count, rows)
        thread.may_follow(pipe.component, pipe.count)
        if event.kind == "use":
            load = event.operations[0]
            self.model.say(
                "register-before-wait", "warning", "a register of tcgen05.ld is used before tcgen05.wait::ld",
                (load.site, load.agent), (event.site, agent), mend="tcgen05.wait::ld.sync.aligned before the use",
            )  # fmt: skip

    # ---- the end ----

    def flush(self) -> None:
        """The run has ended: what was under way is looked at as if it happened now."""
        for flight in list(self.in_flight.values()):
            operation = flight.operation
            if operation.kind in ARRIVES:
                rest = [r for r in operation.writes if r.cta not in flight.landed]  # type: ignore[union-attr]
                self._land(flight, rest, -1, NEVER)
            elif operation.kind in ("mma", "tmem.copy", *DEPARTS) and not flight.read:
                self._start(flight)
            elif operation.kind == "cp.async":
                self._copy_items(flight)
        self.in_flight.clear()

    def forget(self, cluster: int) -> None:
        """A cluster has ended."""
        tables: tuple[dict[Any, Any], ...] = (self.bulk, self._groups, self._copied, self._collective, self._ends)
        for held in tables:
            for key in [key for key in held if key[0] == cluster]:
                del held[key]
        for name in [name for name in self._pipes if name[1] == cluster]:
            del self._pipes[name]


def _warpgroup(agent: Agent) -> tuple[int, int, int]:
    return agent.cluster, agent.cta, agent.warp // WARPGROUP


_ISSUED = {
    "tma.load": Operations._issue_copy,
    "launch-control": Operations._issue_copy,
    "tma.gather": Operations._issue_copy,
    "bulk.load": Operations._issue_copy,
    "st.async": Operations._issue_copy,
    "tma.store": Operations._issue_store,
    "bulk.store": Operations._issue_store,
    "mma": Operations._issue_mma,
    "commit": Operations._issue_commit,
    "tmem.copy": Operations._issue_tensor_copy,
    "cp.async": Operations._issue_small_copy,
    "cp.async.arrive": Operations._issue_copy_arrival,
    "wgmma": Operations._issue_wgmma,
    "tmem.load": Operations._issue_tensor_load,
    "tmem.store": Operations._issue_tensor_store,
}
