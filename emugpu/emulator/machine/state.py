"""The state of a launch as one tree: a grid of clusters, which hold CTAs, which hold warps, which hold fragments.

A fragment is a set of lanes of one warp that execute together. A register holds a Python scalar if all lanes agree, and
a 32-lane NumPy array if they may differ. A fragment of one lane holds scalars only, which makes loops of an elected
thread fast.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import numpy as np

from emugpu.emulator.errors import Fault
from emugpu.emulator.machine import events
from emugpu.emulator.machine.barriers import CountingBarrier, MBarrier, Waiting, Wakeups
from emugpu.emulator.machine.code import Code
from emugpu.emulator.machine.copies import BulkQueue, CopyQueues
from emugpu.emulator.machine.counters import Counters
from emugpu.emulator.machine.events import Agent, Operation, Site
from emugpu.emulator.machine.findings import Findings
from emugpu.emulator.machine.kernel_launch import Dim3, KernelLaunch, Printed
from emugpu.emulator.machine.lanes import WARP_SIZE, Value, lanes_of
from emugpu.emulator.machine.register_pool import RegisterPool, registers_at_entry
from emugpu.emulator.machine.sinks import Sink
from emugpu.emulator.machine.slots import ALL, slots_of
from emugpu.emulator.machine.warpgroup import Member, Warpgroup
from emugpu.emulator.memory.address_space import OFFSET_MASK, RANK_SHIFT, RESERVED_SHARED
from emugpu.emulator.memory.bytes import SpareBytes
from emugpu.emulator.memory.global_memory import GlobalMemory
from emugpu.emulator.memory.local import LocalMemory
from emugpu.emulator.memory.shared import SharedMemory
from emugpu.emulator.memory.tmem import RegisterPlace, TensorMemory
from emugpu.emulator.memory.unwritten import Uninitialised, Unwritten
from emugpu.emulator.units.mma import MmaUnit

NO_LOCAL = LocalMemory(0)
"""The local memory of kernels that use none."""
NAMED_BARRIERS = 16
CLUSTER_BARRIER = -1


class AsyncOperation:
    """An asynchronous operation in flight.

    ``pipe``: operations of one pipe complete in issue order; None means unordered. ``subject``: what is copied or
    multiplied, for a schedule that models how long that takes.
    """

    __slots__ = ("fragment", "kind", "pipe", "priority", "run", "site", "subject")

    def __init__(
        self,
        kind: str,
        run: Callable[[], None],
        fragment: Fragment,
        site: Site,
        pipe: Any = None,
        subject: Any = None,
    ):
        self.kind = kind
        self.run = run
        self.fragment = fragment
        self.site = site
        self.pipe = pipe
        self.subject = subject
        self.priority = 0.0


class ScheduleChoices(Protocol):
    """The decisions of a schedule other than the order of execution."""

    splits_multicast: bool
    """Whether each destination of a multicast gets its data and signal separately."""
    wakes_early: bool
    """Whether a warp that waits for groups of cp.async looks again after each copy, not only when its wait is over."""

    def submit(self, operation: AsyncOperation) -> None:
        """Takes an asynchronous operation that is in flight from now on."""

    def early(self) -> bool:
        """Returns whether an asynchronous register load takes its value at issue rather than at the wait."""

    def spurious_failure(self, is_first: bool = False) -> bool:
        """Returns whether an operation that may fail spuriously fails now; the first of an instruction mostly does."""


class Grid:
    """One launch. ``next_granted``: gives cluster launch control a cluster that has not been launched, or None."""

    def __init__(
        self,
        code: Code,
        launch: KernelLaunch,
        memory: GlobalMemory,
        mma_unit: MmaUnit,
        choices: ScheduleChoices,
        findings: Findings,
        sink: Sink | None,
        symbols: Mapping[str, int] | None = None,
        constants: GlobalMemory | None = None,
        uninitialised: Uninitialised = "fault",
        seed: int = 0,
    ) -> None:
        """symbols: addresses of the module's variables, each in its own state space. constants: .const memory.
        uninitialised, seed: see `Unwritten`.
        """
        self.symbols = symbols or {}
        self.constants = constants or GlobalMemory()
        self.printed: list[Printed] = []
        self.freed: list[Any] = []
        """Allocations that kernels have freed. The native engine may still hold their addresses."""
        self.spare = SpareBytes()
        """The memories of ended CTAs, for reuse. They are kept only if no sink is attached that may read them."""
        self.code = code
        self.launch = launch
        self.memory = memory
        self.mma_unit = mma_unit
        self.choices = choices
        self.findings = findings
        self.sink = sink
        self.unwritten = Unwritten(uninitialised, seed, self._note_unwritten)
        self.no_tensor_memory = None if code.uses_tensor_memory else TensorMemory(self.unwritten)
        """What all CTAs of a kernel that uses none have in common: clearing it costs more than a small CTA."""
        self.completing: AsyncOperation | None = None
        """The asynchronous operation that is completing, or that completed last."""
        self.counters = Counters()
        self.computes = True
        """Whether tensor copies and MMAs move and compute data. If not, they only give their signals."""
        self.arrivals_elsewhere = 0
        """The number of arrivals at mbarriers of other CTAs than the thread's own."""
        self.wakeups: Wakeups[Fragment] = Wakeups()
        self.shared_bytes = RESERVED_SHARED + code.static_shared + launch.dynamic_shared
        self.registers_at_entry = registers_at_entry(code.kernel)
        self.sms = 1
        """The number of SMs of the GPU."""
        self.architecture = ""
        """The architecture that is emulated, such as "sm_100"."""
        self.next_granted: Callable[[], int | None] = lambda: None
        self.tried: set[int] = set()
        """The instructions `mbarrier.try_wait`, by index, that have met a phase that was not over."""
        self.clock = 0
        self.clock_reads = 0
        self._ids = itertools.count()

    def submit(self, operation: AsyncOperation) -> None:
        operation.fragment.cta.cluster.in_flight += 1
        self.wakeups.changes += 1
        self.choices.submit(operation)

    def _note_unwritten(self, message: str) -> None:
        """Reports a read of unwritten memory.

        A memory does not know who reads it: the site is the instruction whose generated code is on the Python stack, or
        else that of the completing operation.
        """
        frame = inspect.currentframe()
        while frame is not None and frame.f_code.co_filename != self.code.filename:
            frame = frame.f_back
        index = None if frame is None else self.code.instruction_at[frame.f_lineno - 1]
        site = self.completing.site if index is None and self.completing is not None else self.code.sites[index or 0]
        self.findings.note("uninitialised", site, message)

    def operation(
        self,
        kind: str,
        f: Fragment,
        site: Site,
        reads: tuple[events.Region, ...] = (),
        writes: tuple[events.Region, ...] = (),
        **detail: Any,
    ) -> Operation:
        """Returns a new asynchronous operation and reports it to the sink as issued. A sink must be attached."""
        operation = Operation(next(self._ids), kind, f.agent, site, reads, writes, detail)
        assert self.sink is not None
        self.sink(events.Issued(operation, f.agent))
        return operation

    def region_at(self, offset: int) -> str:
        """Returns the name that the launch gives to an offset of shared memory, or "" if it has none."""
        start = RESERVED_SHARED + self.code.static_shared
        for region in self.launch.regions:
            inside = offset - start - region.offset
            if 0 <= inside < region.nbytes:
                return f"{region.name} + {inside}" if inside else region.name
        return ""


class Cluster:
    """CTAs that are co-resident and share their shared memories. ``number``: its place in the grid, x fastest."""

    def __init__(self, grid: Grid, number: int):
        self.grid = grid
        self._set_number(number)
        self.in_flight = 0
        """Asynchronous operations in flight."""
        self.barrier = CountingBarrier("the cluster barrier", CLUSTER_BARRIER, grid.wakeups, self._completed(grid))
        shape = grid.launch.cluster
        first = tuple(i * s for i, s in zip(self.index, shape, strict=True))
        self.routes: dict[tuple[Any, ...], tuple[tuple[Cta, Cta], ...]] = {}
        """The destinations and signalled CTAs of TMA loads, cached by operands (`instructions.tensor_copies`)."""
        self.ctas = [
            Cta(grid, self, x + shape[0] * (y + shape[1] * z), (first[0] + x, first[1] + y, first[2] + z))
            for z in range(shape[2])
            for y in range(shape[1])
            for x in range(shape[0])
        ]

    def _set_number(self, number: int) -> None:
        self.number = number
        across, down, _ = self.grid.launch.clusters
        self.index = (number % across, number // across % down, number // (across * down))

    def restart_as(self, number: int) -> None:
        """Makes this the cluster of another number. It has one CTA, of which nothing has run."""
        self._set_number(number)
        cta = self.ctas[0]
        cta.index, cta.sm = self.index, number % self.grid.sms
        for warp in cta.warps:
            for f in warp.fragments:
                f.forget_agent()

    def _completed(self, grid: Grid) -> Callable[[CountingBarrier], None] | None:
        if grid.sink is None:
            return None
        return lambda b: _report(grid, events.GroupCompleted(self.number, -1, CLUSTER_BARRIER, b.generation))

    @property
    def living_threads(self) -> int:
        return sum(cta.alive for cta in self.ctas)

    def cta_at(self, address: int, what: str) -> tuple[Cta, int]:
        """Returns the CTA and the offset that a shared::cluster address names."""
        rank = address >> RANK_SHIFT
        if rank >= len(self.ctas):
            raise Fault(
                f"{what} at shared::cluster 0x{address:08x} names CTA rank {rank} of a cluster of {len(self.ctas)}",
                "cluster",
            )
        return self.ctas[rank], address & OFFSET_MASK

    def masked(self, mask: int, what: str) -> list[Cta]:
        """Returns the CTAs of a multicast mask."""
        if mask == 0 or mask >> len(self.ctas):
            raise Fault(
                f"{what} has CTA mask 0x{mask:x}; it must name CTAs 0..{len(self.ctas) - 1} of the cluster", "cluster"
            )
        return [cta for cta in self.ctas if mask >> cta.rank & 1]


class NamedBarriers(dict[int, CountingBarrier]):
    """The named barriers of a CTA that anything has used, by number; `make` makes one."""

    def __init__(self, make: Callable[[int], CountingBarrier]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, number: int) -> CountingBarrier:
        barrier = self[number] = self._make(number)
        return barrier

    def in_use(self) -> list[CountingBarrier]:
        """Returns those at which threads have arrived since they last completed, by number."""
        return [self[number] for number in sorted(self) if self[number].arrived or self[number].gathering]


class Cta:
    """One CTA: shared memory, tensor memory, barriers, warps. ``rank`` is its rank in the cluster."""

    def __init__(self, grid: Grid, cluster: Cluster, rank: int, index: Dim3):
        self.grid = grid
        self.cluster = cluster
        self.rank = rank
        self.index = index
        self.window = rank << RANK_SHIFT
        self.sm = (cluster.number * grid.launch.cluster_size + rank) % grid.sms
        """The number of its SM, if the first wave is dealt out in order and later CTAs follow in turn."""
        self.shared = SharedMemory(grid.shared_bytes, grid.unwritten, grid.spare.take)
        self.tmem = grid.no_tensor_memory or TensorMemory(grid.unwritten, grid.spare.take)
        self.mbarriers: dict[int, MBarrier] = {}
        self.invalidated: dict[int, MBarrier] = {}
        """mbarriers that mbarrier.inval has ended, until others are initialised at their offsets."""
        self.named = NamedBarriers(self._barrier)
        self.bulk: dict[tuple[int, int], BulkQueue] = {}
        self.warpgroups: dict[int, Warpgroup] = {}
        """The warpgroups that have executed a wgmma instruction."""
        self.register_pool = RegisterPool(grid.registers_at_entry)
        self.mma_in_flight = 0
        self.allocations: list[tuple[int, int, int]] = []
        """(shared offset, columns, first column) of every pair allocation so far, for the peer CTA to follow."""
        self.cta_group = 0
        """The cta_group of the CTA's tensor memory allocations; 0 before the first."""
        self.allocation_waiters: list[Fragment] = []
        self.launch_requests = 0
        """The number of requests to cluster launch control in flight."""
        self.launch_refused = False
        """Whether a thread has seen that such a request was declined."""
        self.threads = grid.launch.threads
        self.alive = self.threads
        self.warps = [Warp(self, i, grid.launch.block) for i in range(-(-self.threads // WARP_SIZE))]

    def _barrier(self, number: int) -> CountingBarrier:
        grid, cluster, rank = self.grid, self.cluster.number, self.rank
        report = None
        if grid.sink is not None:

            def report(b: CountingBarrier) -> None:
                _report(grid, events.GroupCompleted(cluster, rank, number, b.generation))

        return CountingBarrier(f"barrier {number}", number, grid.wakeups, report)

    @property
    def exited(self) -> bool:
        return self.alive == 0

    @property
    def pair(self) -> tuple[Cta, Cta]:
        """The two CTAs that ``cta_group::2`` instructions act on: ranks that differ in bit 0, even first."""
        even = self.rank & ~1
        if even + 1 >= len(self.cluster.ctas):
            raise Fault(
                f"uses cta_group::2 in a cluster of {len(self.cluster.ctas)} CTA(s); CTA pairs need an even size",
                "cluster",
            )
        return self.cluster.ctas[even], self.cluster.ctas[even + 1]

    def pair_member(self, position: int) -> Cta:
        """Returns one CTA of `pair`. position: 0 for the even rank, 1 for the odd rank."""
        return self if self.rank & 1 == position else self.pair[position]

    def mbarrier(self, offset: int) -> MBarrier:
        barrier = self.mbarriers.get(offset)
        if barrier is None:
            if offset % 8:
                raise Fault(f"mbarrier address 0x{offset:x} is not a multiple of 8", "alignment", offset)
            known = ", ".join(f"0x{o:x}" for o in sorted(self.mbarriers)) or "none"
            raise Fault(
                f"uses an mbarrier at shared 0x{offset:x} of CTA rank {self.rank}, "
                f"which was never initialised (initialised: {known})",
                "mbarrier-init",
                offset,
            )
        return barrier

    def new_mbarrier(self, offset: int, count: int, layout: int = 0) -> MBarrier:
        """Initialises the 8 bytes at an offset as an mbarrier."""
        grid, cluster, rank = self.grid, self.cluster.number, self.rank
        report = None
        if grid.sink is not None:

            def report(b: MBarrier) -> None:
                _report(grid, events.PhaseCompleted(cluster, rank, offset, b.phase))

        name = grid.region_at(offset)
        label = f"{name} (mbarrier)" if name else "mbarrier"
        barrier = MBarrier(self.rank, offset, count, label, grid.wakeups, report, layout)
        self.shared.check_range(offset, 8, 8)
        self.shared.guard_mbarrier(offset, str(barrier))
        self.mbarriers[offset] = barrier
        self.invalidated.pop(offset, None)
        return barrier

    def check_alive(self, what: str) -> None:
        """Raises Fault if the CTA has exited, because then nothing may read or write its memory."""
        if self.alive == 0:
            raise Fault(f"{what} CTA rank {self.rank}, which has already exited", "cluster")


def _report(grid: Grid, event: Any) -> None:
    if grid.sink is not None:
        grid.sink(event)


@lru_cache(1024)
def _threads(block: Dim3, warp: int) -> tuple[int, tuple[Value, ...]]:
    """Returns the mask of a warp's threads, and their %tid.x, .y and .z."""
    width, height, depth = block
    count = min(WARP_SIZE, width * height * depth - warp * WARP_SIZE)
    linear = np.arange(warp * WARP_SIZE, (warp + 1) * WARP_SIZE, dtype=np.uint32)
    axes = (linear % width, linear // width % height, linear // (width * height))
    return (1 << count) - 1, tuple(int(axis[0]) if (axis[:count] == axis[0]).all() else axis for axis in axes)


class Warp:
    """32 lanes of a CTA: which of them are alive, and the values of their special registers."""

    def __init__(self, cta: Cta, index: int, block: Dim3):
        self.cta = cta
        self.index = index
        self.alive, self.tid = _threads(block, index)
        """%tid.x, .y and .z."""
        self.fragments: list[Fragment] = []
        self.root = -1
        """The root of its priorities under a random schedule, once it is drawn."""
        frame = cta.grid.code.local_bytes
        self.local = LocalMemory(frame, cta.grid.unwritten) if frame else NO_LOCAL
        self.copies: CopyQueues | None = None
        """The queues of the warp's cp.async copies. None before the first copy."""
        self.member: Member | None = None
        """The warp's part in a warpgroup. None before its first wgmma instruction."""
        self.meetings: dict[tuple[str, int], list[tuple[Fragment, tuple[Value, ...]]]] = {}
        """The fragments that wait for other lanes, with their operands, by ``.sync`` instruction and member mask."""
        self.gathering: list[Fragment] = []
        """The fragments at ``.aligned`` barriers that wait until the others have exited."""
        self.arriving: list[CountingBarrier] = []
        """The barriers for some threads at which lanes have arrived and others perhaps not."""

    @property
    def name(self) -> str:
        """Returns the name of the warp in its cluster, in messages."""
        return f"CTA rank {self.cta.rank} warp {self.index}"

    def forget_counted(self) -> None:
        """Drops the barriers at which the warp now counts."""
        self.arriving = [barrier for barrier in self.arriving if self.index in barrier.gathering]

    def own_local(self) -> LocalMemory:
        """Returns the warp's own local memory, and makes one if the kernel declares no local variables (alloca)."""
        if self.local is NO_LOCAL:
            self.local = LocalMemory(0, self.cta.grid.unwritten)
        return self.local

    def thread(self, lane: int) -> Dim3:
        """Returns %tid of a lane."""
        x, y, z = (int(axis) if isinstance(axis, int) else int(axis[lane]) for axis in self.tid)
        return x, y, z

    def __repr__(self) -> str:
        return f"warp {self.index}"


class JoinPoint:
    """The lanes of ``mask`` meet at ``block``; fragments that have arrived wait in ``arrived``.

    ``before``: the registers that the lanes had in common when they split. ``native``: the engine's copy of them, which
    lacks those in the set ``unpassed``.
    """

    __slots__ = ("arrived", "before", "block", "mask", "native", "unpassed")

    def __init__(self, block: int, mask: int, before: list[Value], native: Any = None, unpassed: int = ALL):
        self.block = block
        self.mask = mask
        self.before = before
        self.native = native
        self.unpassed = unpassed
        self.arrived: list[Fragment] = []


@dataclass(eq=False)
class PendingLoad:
    """A tcgen05.ld that no tcgen05.wait::ld has covered yet.

    read: returns the loaded values, one row for each register. open: for each register, the mask of lanes that neither
    have their value yet nor have overwritten the register.
    """

    site: Site
    slots: tuple[int, ...]
    open: list[int]
    read: Callable[[], np.ndarray]
    columns: range
    operation: Operation | None


@dataclass(eq=False)
class PendingStore:
    """A tcgen05.st that no tcgen05.wait::st has covered yet."""

    site: Site
    address: int
    place: RegisterPlace
    operation: Operation | None


class Fragment:
    """Lanes of one warp that execute together.

    ``registers`` is indexed by register slot. The set (`slots.set_of`) ``outdated`` has those that ``fetch`` must bring
    up to date before they are read. ``unpassed`` has those that the native engine's rows lack; in a fragment that the
    engine has not run, those written since it split off. ``block`` is the basic block to run next. ``streak`` counts
    the blocks that have run since the fragment last waited.
    """

    __slots__ = (
        "_agent",
        "awaited",
        "block",
        "count",
        "cta",
        "fetch",
        "grid",
        "join_block",
        "joins",
        "lane_index",
        "lanes",
        "mask",
        "native",
        "observed",
        "outdated",
        "pending_loads",
        "pending_stores",
        "polled",
        "registers",
        "single",
        "streak",
        "timed_out",
        "tokens",
        "unpassed",
        "waiting",
        "warp",
    )

    def __init__(self, warp: Warp, mask: int, registers: list[Value], block: int, joins: list[JoinPoint]):
        self.warp = warp
        self.cta = warp.cta
        self.grid = warp.cta.grid
        self.registers = registers
        self.outdated, self.unpassed = 0, ALL
        self.fetch: Any = None
        """A function that brings registers of a fragment up to date."""
        self.block = block
        self.joins = joins
        self.join_block = joins[-1].block if joins else None
        self.waiting: Waiting | None = None
        self.tokens: dict[object, Any] = {}
        """For each barrier: the generation this fragment has arrived for. For the warp: the fragments of the last
        meeting, with their operands.
        """
        self.observed: dict[MBarrier, int] = {}
        """For each mbarrier: the last phase whose end this fragment has observed."""
        self.pending_loads: list[PendingLoad] = []
        self.pending_stores: list[PendingStore] = []
        self.awaited: tuple[MBarrier, int] | None = None
        """The barrier and the phase for which it was suspended. Once that phase has ended, the wait passes."""
        self.polled = -1
        """The grid's count of changes when the fragment last tested an mbarrier in vain."""
        self.timed_out = False
        """Whether the mbarrier test in which it is suspended is to return false."""
        self.streak = 0
        self.native: Any = None
        """The native engine's copy of its registers, once the engine has run it."""
        self.mask = mask
        self.lanes, self.lane_index = lanes_of(mask)
        self.count = len(self.lanes)
        self.single = self.lanes[0] if self.count == 1 else -1
        self._agent: Agent | None = None

    @property
    def agent(self) -> Agent:
        """The fragment's identity in events."""
        if self._agent is None:
            self._agent = Agent(self.cta.cluster.number, self.cta.rank, self.warp.index, self.mask)
        return self._agent

    def forget_agent(self) -> None:
        """Lets the identity be found anew, because the cluster has another number."""
        self._agent = None

    @property
    def polls(self) -> bool:
        """Whether it is suspended in an instruction that only tests (test_wait)."""
        return self.waiting is not None and "test_wait" in self.waiting.site.modifiers

    def current(self, wanted: int) -> list[Value]:
        """Returns all registers, of which the wanted ones are up to date."""
        if self.outdated & wanted:
            self.fetch(self, wanted)
        return self.registers

    def values(self, wanted: int) -> list[Value]:
        """Returns the values of some registers, in the order of their slots."""
        registers = self.current(wanted)
        return [registers[slot] for slot in slots_of(wanted)]

    def set(self, slot: int, value: Value) -> None:
        self.registers[slot] = value
        self.unpassed |= 1 << slot

    def require_whole_warp(self) -> None:
        """Raises Fault unless all living lanes of the warp are here (``.aligned`` and ``.sync`` instructions)."""
        if self.mask != self.warp.alive:
            missing = self.warp.alive & ~self.mask
            raise Fault(
                f"needs the whole warp converged, but only lanes 0x{self.mask:08x} execute it; "
                f"lanes 0x{missing:08x} are elsewhere",
                "convergence",
            )

    def uniform(self, value: Value, what: str) -> int:
        """Returns the one value that all lanes must pass; raises Fault if they differ."""
        if isinstance(value, int):
            return value
        first = int(value[self.lanes[0]])
        if (value[self.lane_index] != first).any():
            raise Fault(f"the lanes of the warp pass different values as {what}; they must agree", "convergence")
        return first
