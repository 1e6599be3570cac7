"""The state of a launch, one tree: a grid of clusters of CTAs of warps of fragments. Data, and who holds what.

A fragment is a set of lanes of one warp that execute together. Registers hold Python scalars where all lanes agree and
32-lane NumPy arrays where they may differ; a fragment of one lane holds scalars only, which makes elected-thread
loops fast.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
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
from emugpu.emulator.machine.lanes import WARP_SIZE, Value, lanes_of
from emugpu.emulator.machine.register_pool import RegisterPool, registers_at_entry
from emugpu.emulator.machine.warpgroup import Member, Warpgroup
from emugpu.emulator.memory.address_space import OFFSET_MASK, RANK_SHIFT, RESERVED_SHARED
from emugpu.emulator.memory.bytes import SpareBytes
from emugpu.emulator.memory.global_memory import GlobalMemory
from emugpu.emulator.memory.local import LocalMemory
from emugpu.emulator.memory.shared import SharedMemory
from emugpu.emulator.memory.tensor_map import TensorMap
from emugpu.emulator.memory.tmem import TensorMemory
from emugpu.emulator.memory.unwritten import Uninitialised, Unwritten
from emugpu.emulator.units.mma import MmaUnit

NO_LOCAL = LocalMemory(0)
"""The local memory of kernels that use none."""
NAMED_BARRIERS = 16
CLUSTER_BARRIER = -1

Dim3 = tuple[int, int, int]


@dataclass(frozen=True)
class Region:
    """A name for bytes of dynamic shared memory, for messages: "A stage 2", "full[0]"."""

    name: str
    offset: int
    nbytes: int


@dataclass(frozen=True)
class Launch:
    """Shape and arguments of one launch. ``parameters`` is the kernel's parameter block. ``workspace``: where the
    barrier of a cooperative grid lies in global memory, else 0.
    """

    grid: Dim3
    cluster: Dim3
    block: Dim3
    dynamic_shared: int
    parameters: bytes
    tensor_maps: dict[int, tuple[str, TensorMap]] = field(default_factory=dict)
    """A name for counters, and the map, by generic address."""
    regions: tuple[Region, ...] = ()
    workspace: int = 0

    @property
    def clusters(self) -> Dim3:
        """Clusters along each axis."""
        x, y, z = (g // c for g, c in zip(self.grid, self.cluster, strict=True))
        return x, y, z

    @property
    def cluster_size(self) -> int:
        """CTAs of a cluster."""
        x, y, z = self.cluster
        return x * y * z

    @property
    def cluster_count(self) -> int:
        x, y, z = self.clusters
        return x * y * z

    @property
    def threads(self) -> int:
        return self.block[0] * self.block[1] * self.block[2]


@dataclass(frozen=True)
class Printed:
    """What one thread has printed by one printf. ``cta``: its place in the grid; ``thread``: %tid."""

    cta: Dim3
    thread: Dim3
    text: str


class AsyncOperation:
    """Something in flight. ``pipe``: operations of one pipe complete in issue order; None means unordered.

    ``subject``: what is copied or multiplied, for a schedule that asks how long that takes.
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


class Choices(Protocol):
    """What a schedule decides beside the order of things."""

    splits_multicast: bool
    """Whether the destinations of a multicast get their data and signals one by one."""

    def submit(self, operation: AsyncOperation) -> None:
        """Something asynchronous is in flight from now on."""

    def early(self) -> bool:
        """Whether an asynchronous register load takes its value at issue rather than at the wait."""

    def spurious_failure(self) -> bool:
        """Whether something that may fail for no reason does."""


class Grid:
    """One launch. ``next_granted``: hands a cluster that has not been launched to cluster launch control."""

    def __init__(
        self,
        code: Code,
        launch: Launch,
        memory: GlobalMemory,
        mma_unit: MmaUnit,
        choices: Choices,
        findings: Findings,
        sink: events.Sink | None,
        symbols: Mapping[str, int] | None = None,
        constants: GlobalMemory | None = None,
        uninitialised: Uninitialised = "fault",
        seed: int = 0,
    ) -> None:
        """symbols: addresses of the module's variables, each in its own state space; constants: .const memory;
        uninitialised, seed: as of `Unwritten`.
        """
        self.symbols = symbols or {}
        self.constants = constants or GlobalMemory()
        self.printed: list[Printed] = []
        self.freed: list[Any] = []
        """Allocations that kernels have freed: the native engine may still know where they were."""
        self.spare = SpareBytes()
        """The memories of CTAs that have ended, where nobody listens who may look at them."""
        self.code = code
        self.launch = launch
        self.memory = memory
        self.mma_unit = mma_unit
        self.choices = choices
        self.findings = findings
        self.sink = sink
        self.unwritten = Unwritten(uninitialised, seed, self._note_unwritten)
        self.completing: AsyncOperation | None = None
        """The asynchronous operation that was carried out last."""
        self.counters = Counters()
        self.computes = True
        """Whether tensor copies and multiplications move and compute data; if not, only their signals are given."""
        self.arrivals_elsewhere = 0
        """How many arrivals there were at mbarriers of other CTAs than the thread's own."""
        self.wakeups: Wakeups[Fragment] = Wakeups()
        self.shared_bytes = RESERVED_SHARED + code.static_shared + launch.dynamic_shared
        self.registers_at_entry = registers_at_entry(code.kernel)
        self.sms = 1
        """Of the GPU."""
        self.next_granted: Callable[[], int | None] = lambda: None
        self.clock = 0
        self.clock_reads = 0
        self._ids = itertools.count()

    def submit(self, operation: AsyncOperation) -> None:
        operation.fragment.cta.cluster.in_flight += 1
        self.wakeups.changes += 1
        self.choices.submit(operation)

    def _note_unwritten(self, message: str) -> None:
        """Memories do not know who reads: it is the instruction whose code is on the stack, or what completes."""
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
        """A new asynchronous operation, told to the sink as issued. Only to be called if there is one."""
        operation = Operation(next(self._ids), kind, f.agent, site, reads, writes, detail)
        assert self.sink is not None
        self.sink(events.Issued(operation, f.agent))
        return operation

    def region_at(self, offset: int) -> str:
        """What lies at an offset of shared memory, by the names of the launch; nothing if there is none."""
        start = RESERVED_SHARED + self.code.static_shared
        for region in self.launch.regions:
            inside = offset - start - region.offset
            if 0 <= inside < region.nbytes:
                return f"{region.name} + {inside}" if inside else region.name
        return ""


class Cluster:
    """CTAs that are co-resident and share their shared memories. ``number``: in the grid, x fastest."""

    def __init__(self, grid: Grid, number: int):
        self.grid = grid
        self.number = number
        across, down, _ = grid.launch.clusters
        self.index = (number % across, number // across % down, number // (across * down))
        self.in_flight = 0
        """Asynchronous operations in flight."""
        self.barrier = CountingBarrier("the cluster barrier", CLUSTER_BARRIER, grid.wakeups, self._completed(grid))
        shape = grid.launch.cluster
        first = tuple(i * s for i, s in zip(self.index, shape, strict=True))
        self.routes: dict[tuple[Any, ...], tuple[tuple[Cta, Cta], ...]] = {}
        """Where TMA loads go and whom they signal, as `instructions.tensor_copies` has found for their operands."""
        self.ctas = [
            Cta(grid, self, x + shape[0] * (y + shape[1] * z), (first[0] + x, first[1] + y, first[2] + z))
            for z in range(shape[2])
            for y in range(shape[1])
            for x in range(shape[0])
        ]

    def _completed(self, grid: Grid) -> Callable[[CountingBarrier], None] | None:
        if grid.sink is None:
            return None
        return lambda b: _tell(grid, events.GroupCompleted(self.number, -1, CLUSTER_BARRIER, b.generation))

    @property
    def living_threads(self) -> int:
        return sum(cta.alive for cta in self.ctas)

    def cta_at(self, address: int, what: str) -> tuple[Cta, int]:
        """CTA and offset that a shared::cluster address names."""
        rank = address >> RANK_SHIFT
        if rank >= len(self.ctas):
            raise Fault(
                f"{what} at shared::cluster 0x{address:08x} names CTA rank {rank} of a cluster of {len(self.ctas)}",
                "cluster",
            )
        return self.ctas[rank], address & OFFSET_MASK

    def masked(self, mask: int, what: str) -> list[Cta]:
        """CTAs of a multicast mask."""
        if mask == 0 or mask >> len(self.ctas):
            raise Fault(
                f"{what} has CTA mask 0x{mask:x}; it must name CTAs 0..{len(self.ctas) - 1} of the cluster", "cluster"
            )
        return [cta for cta in self.ctas if mask >> cta.rank & 1]


class Cta:
    """One CTA: shared memory, tensor memory, barriers, warps. ``rank`` is its rank in the cluster."""

    def __init__(self, grid: Grid, cluster: Cluster, rank: int, index: Dim3):
        self.grid = grid
        self.cluster = cluster
        self.rank = rank
        self.index = index
        self.window = rank << RANK_SHIFT
        self.sm = (cluster.number * grid.launch.cluster_size + rank) % grid.sms
        """Its SM, if the first wave were dealt out in order; later ones follow in turn."""
        self.shared = SharedMemory(grid.shared_bytes, grid.unwritten, grid.spare.take)
        self.tmem = TensorMemory(grid.unwritten, grid.spare.take)
        self.mbarriers: dict[int, MBarrier] = {}
        self.invalidated: dict[int, MBarrier] = {}
        """mbarriers that mbarrier.inval has ended, until others are initialised in their place."""
        self.named = [self._barrier(i) for i in range(NAMED_BARRIERS)]
        self.bulk: dict[tuple[int, int], BulkQueue] = {}
        self.warpgroups: dict[int, Warpgroup] = {}
        """The warpgroups that have executed a wgmma instruction."""
        self.register_pool = RegisterPool(grid.registers_at_entry)
        self.mma_in_flight = 0
        self.allocations: list[tuple[int, int, int]] = []
        """(shared offset, columns, column) of every pair allocation so far, for the peer to follow."""
        self.cta_group = 0
        """The group of the CTA's tensor memory allocations; 0 before the first."""
        self.allocation_waiters: list[Fragment] = []
        self.launch_requests = 0
        """Requests to cluster launch control in flight."""
        self.launch_refused = False
        """Whether a thread has seen that such a request failed."""
        self.threads = grid.launch.threads
        self.alive = self.threads
        self.warps = [Warp(self, i, grid.launch.block) for i in range(-(-self.threads // WARP_SIZE))]

    def _barrier(self, number: int) -> CountingBarrier:
        grid, cluster, rank = self.grid, self.cluster.number, self.rank
        tell = None
        if grid.sink is not None:

            def tell(b: CountingBarrier) -> None:
                _tell(grid, events.GroupCompleted(cluster, rank, number, b.generation))

        return CountingBarrier(f"barrier {number}", number, grid.wakeups, tell)

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
        """One of `pair`: 0 the even CTA, 1 the odd one."""
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

    def new_mbarrier(self, offset: int, count: int) -> MBarrier:
        """Initialise the 8 bytes at an offset as an mbarrier."""
        grid, cluster, rank = self.grid, self.cluster.number, self.rank
        tell = None
        if grid.sink is not None:

            def tell(b: MBarrier) -> None:
                _tell(grid, events.PhaseCompleted(cluster, rank, offset, b.phase))

        name = grid.region_at(offset)
        label = f"{name} (mbarrier)" if name else "mbarrier"
        barrier = MBarrier(self.rank, offset, count, label, grid.wakeups, tell)
        self.shared.check_range(offset, 8, 8)
        self.shared.guard_mbarrier(offset, str(barrier))
        self.mbarriers[offset] = barrier
        self.invalidated.pop(offset, None)
        return barrier

    def check_alive(self, what: str) -> None:
        """Fault if the CTA has exited: for what would read or write its memory."""
        if self.alive == 0:
            raise Fault(f"{what} CTA rank {self.rank}, which has already exited", "cluster")


def _tell(grid: Grid, event: Any) -> None:
    if grid.sink is not None:
        grid.sink(event)


@lru_cache(1024)
def _threads(block: Dim3, warp: int) -> tuple[int, tuple[Value, ...]]:
    """The mask of the threads of a warp, and their %tid.x, .y and .z."""
    width, height, depth = block
    count = min(WARP_SIZE, width * height * depth - warp * WARP_SIZE)
    linear = np.arange(warp * WARP_SIZE, (warp + 1) * WARP_SIZE, dtype=np.uint32)
    axes = (linear % width, linear // width % height, linear // (width * height))
    return (1 << count) - 1, tuple(int(axis[0]) if (axis[:count] == axis[0]).all() else axis for axis in axes)


class Warp:
    """32 lanes of a CTA: which are alive, and the values of their special registers."""

    def __init__(self, cta: Cta, index: int, block: Dim3):
        self.cta = cta
        self.index = index
        self.alive, self.tid = _threads(block, index)
        """%tid.x, .y and .z."""
        self.fragments: list[Fragment] = []
        frame = cta.grid.code.local_bytes
        self.local = LocalMemory(frame, cta.grid.unwritten) if frame else NO_LOCAL
        self.copies: CopyQueues | None = None
        """The queues of the warp's cp.async copies, from the first one on."""
        self.member: Member | None = None
        """Its part in a warpgroup, once it has executed a wgmma instruction."""
        self.meetings: dict[tuple[str, int], list[tuple[Fragment, tuple[Value, ...]]]] = {}
        """The fragments that wait for other lanes, and what they bring, by ``.sync`` instruction and member mask."""

    def own_local(self) -> LocalMemory:
        """The local memory, which is there for what a thread allocates if the kernel has no variables in it."""
        if self.local is NO_LOCAL:
            self.local = LocalMemory(0, self.cta.grid.unwritten)
        return self.local

    def thread(self, lane: int) -> Dim3:
        """%tid of a lane."""
        x, y, z = (int(axis) if isinstance(axis, int) else int(axis[lane]) for axis in self.tid)
        return x, y, z

    def __repr__(self) -> str:
        return f"warp {self.index}"


class JoinPoint:
    """Lanes of ``mask`` meet at ``block``; fragments that have arrived wait in ``arrived``. ``before``: the registers
    they had in common when they split, and ``native`` what the engine has kept of them.
    """

    __slots__ = ("arrived", "before", "block", "mask", "native")

    def __init__(self, block: int, mask: int, before: list[Value], native: Any = None):
        self.block = block
        self.mask = mask
        self.before = before
        self.native = native
        self.arrived: list[Fragment] = []


@dataclass(eq=False)
class PendingLoad:
    """A tcgen05.ld that tcgen05.wait::ld has not covered. read: its values, one row a register. open: of each one,
    the lanes that have not got theirs, nor written the register again.
    """

    site: Site
    slots: tuple[int, ...]
    open: list[int]
    read: Callable[[], np.ndarray]
    columns: range
    operation: Operation | None


@dataclass(eq=False)
class PendingStore:
    """A tcgen05.st that tcgen05.wait::st has not covered; positions: flat, in tensor memory."""

    site: Site
    positions: np.ndarray
    operation: Operation | None


class Fragment:
    """Lanes of one warp that execute together.

    ``registers`` is indexed by register slot; ``block`` is the basic block to run next. ``streak``: blocks run since
    it last waited for something.
    """

    __slots__ = (
        "agent",
        "awaited",
        "block",
        "count",
        "cta",
        "grid",
        "join_block",
        "joins",
        "lane_index",
        "lanes",
        "mask",
        "native",
        "observed",
        "pending_loads",
        "pending_stores",
        "polled",
        "registers",
        "single",
        "streak",
        "timed_out",
        "tokens",
        "waiting",
        "warp",
    )

    def __init__(self, warp: Warp, mask: int, registers: list[Value], block: int, joins: list[JoinPoint]):
        self.warp = warp
        self.cta = warp.cta
        self.grid = warp.cta.grid
        self.registers = registers
        self.block = block
        self.joins = joins
        self.join_block = joins[-1].block if joins else None
        self.waiting: Waiting | None = None
        self.tokens: dict[object, Any] = {}
        """Per barrier object: the generation this fragment has arrived for. Of the warp: whom it has met, and what they
        have brought."""
        self.observed: dict[MBarrier, int] = {}
        """Per mbarrier: the last phase this fragment has seen the end of."""
        self.pending_loads: list[PendingLoad] = []
        self.pending_stores: list[PendingStore] = []
        self.awaited: tuple[MBarrier, int] | None = None
        """The barrier and the phase it was suspended for. Once that has ended, the wait passes."""
        self.polled = -1
        """The changes of the grid when it last looked at an mbarrier in vain."""
        self.timed_out = False
        """Whether the look at an mbarrier it is suspended in is to answer no."""
        self.streak = 0
        self.native: Any = None
        """Its registers as the native engine has them, once that has run it."""
        self.mask = mask
        self.lanes, self.lane_index = lanes_of(mask)
        self.count = len(self.lanes)
        self.single = self.lanes[0] if self.count == 1 else -1
        self.agent = Agent(self.cta.cluster.number, self.cta.rank, warp.index, mask)
        """What events call the fragment."""

    @property
    def polls(self) -> bool:
        """Whether it is suspended in an instruction that only looks."""
        return self.waiting is not None and "test_wait" in self.waiting.site.modifiers

    def require_whole_warp(self) -> None:
        """Raise Fault unless all living lanes of the warp are here (``.aligned`` and ``.sync`` instructions)."""
        if self.mask != self.warp.alive:
            missing = self.warp.alive & ~self.mask
            raise Fault(
                f"needs the whole warp converged, but only lanes 0x{self.mask:08x} execute it; "
                f"lanes 0x{missing:08x} are elsewhere",
                "convergence",
            )

    def uniform(self, value: Value, what: str) -> int:
        """The one value that all lanes must pass."""
        if isinstance(value, int):
            return value
        first = int(value[self.lanes[0]])
        if (value[self.lane_index] != first).any():
            raise Fault(f"the lanes of the warp pass different values as {what}; they must agree", "convergence")
        return first
