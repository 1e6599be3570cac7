"""CTAs and clusters: who shares which memory, barriers, and when a CTA may leave."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from ..errors import Fault
from ..memory import SharedMemory
from ..tmem import TensorMemory
from .barriers import CountingBarrier, MBarrier
from .fragment import WARP_SIZE, Fragment, Warp
from .register_pool import RegisterPool

if TYPE_CHECKING:
    from .machine import Machine
    from .warpgroup import Warpgroup

RESERVED_SHARED = 1024
"""Bytes at the start of every CTA's shared window that belong to the system."""
RANK_SHIFT = 24
OFFSET_MASK = (1 << RANK_SHIFT) - 1
NAMED_BARRIERS = 16


class BulkGroup:
    """One committed bulk group: copies whose source is still being read, and copies not yet written."""

    __slots__ = ("reading", "writing")

    def __init__(self) -> None:
        self.reading = 0
        self.writing = 0


class BulkQueue:
    """Bulk groups of one thread (PTX ISA 9.7.9.25: groups belong to the thread that commits them)."""

    __slots__ = ("committed", "open", "waiters")

    def __init__(self) -> None:
        self.open = BulkGroup()
        self.committed: deque[BulkGroup] = deque()
        self.waiters: list[Fragment] = []

    def commit(self) -> None:
        self.committed.append(self.open)
        self.open = BulkGroup()

    def satisfied(self, allowed: int, reads_only: bool) -> bool:
        """Whether at most ``allowed`` of the youngest groups are still pending."""
        committed = self.committed
        while committed and not committed[0].reading and not committed[0].writing:
            committed.popleft()
        older = len(committed) - allowed
        for index, group in enumerate(committed):
            if index >= older:
                break
            if group.reading or (group.writing and not reads_only):
                return False
        return True

    @property
    def reading(self) -> int:
        return self.open.reading + sum(group.reading for group in self.committed)


class Cta:
    """One CTA: shared memory, tensor memory, barriers, warps. ``rank`` is its rank in the cluster."""

    def __init__(self, machine: Machine, cluster: Cluster, rank: int, index: tuple[int, int, int]):
        self.machine = machine
        self.cluster = cluster
        self.rank = rank
        self.index = index
        self.window = rank << RANK_SHIFT
        self.shared = SharedMemory(machine.shared_bytes)
        self.tmem = TensorMemory()
        self.mbarriers: dict[int, MBarrier] = {}
        self.named = [CountingBarrier(f"barrier {i} of CTA rank {rank}") for i in range(NAMED_BARRIERS)]
        self.bulk: dict[tuple[int, int], BulkQueue] = {}
        self.warpgroups: dict[int, Warpgroup] = {}
        """Those that have executed a wgmma instruction."""
        self.register_pool = RegisterPool(machine.registers_at_entry)
        self.mma_in_flight = 0
        self.allocations: list[tuple[int, int, int]] = []
        """(shared offset, columns, column) of every pair allocation so far, for the peer to follow."""
        self.allocation_waiters: list[Fragment] = []
        block = machine.launch.block
        self.threads = block[0] * block[1] * block[2]
        self.alive = self.threads
        self.warps = [Warp(self, i, block) for i in range(-(-self.threads // WARP_SIZE))]

    @property
    def exited(self) -> bool:
        return self.alive == 0

    @property
    def pair(self) -> tuple[Cta, Cta]:
        """The two CTAs that ``cta_group::2`` instructions act on: ranks that differ in bit 0, even first."""
        even = self.rank & ~1
        if even + 1 >= len(self.cluster.ctas):
            raise Fault(
                f"uses cta_group::2 in a cluster of {len(self.cluster.ctas)} CTA(s); CTA pairs need an even size"
            )
        return self.cluster.ctas[even], self.cluster.ctas[even + 1]

    def mbarrier(self, offset: int) -> MBarrier:
        barrier = self.mbarriers.get(offset)
        if barrier is None:
            if offset % 8:
                raise Fault(f"mbarrier address 0x{offset:x} is not a multiple of 8")
            known = ", ".join(f"0x{o:x}" for o in sorted(self.mbarriers)) or "none"
            raise Fault(
                f"uses an mbarrier at shared 0x{offset:x} of CTA rank {self.rank}, "
                f"which was never initialised (initialised: {known})"
            )
        return barrier

    def check_alive(self, what: str) -> None:
        if self.exited:
            raise Fault(f"{what} CTA rank {self.rank}, which has already exited")

    def lanes_left(self, fragment: Fragment) -> None:
        """Lanes have left the kernel: release the cluster barrier, and check the CTA's last obligations."""
        self.alive -= fragment.count
        self.machine.progress += 1
        if not self.warps[fragment.warp.index].alive:
            self.machine.counters.warps_finished += 1
        if self.exited:
            for warpgroup in self.warpgroups.values():
                warpgroup.finish()
            self.register_pool.finish(len(self.warps))
            leaks = self.tmem.leaks()
            if leaks:
                raise Fault(f"exits with tensor memory still allocated: {leaks}; tcgen05.dealloc is missing")
            for (warp, lane), queue in self.bulk.items():
                if queue.reading:
                    raise Fault(
                        f"exits while a bulk store of warp {warp} lane {lane} still reads its shared memory; "
                        "cp.async.bulk.wait_group.read 0 is missing"
                    )
        self.cluster.threads_left()


class Cluster:
    """CTAs that are co-resident and share their shared memories."""

    def __init__(self, machine: Machine, index: tuple[int, int, int]):
        self.machine = machine
        self.index = index
        shape = machine.launch.cluster
        self.barrier = CountingBarrier("the cluster barrier")
        self.ctas: list[Cta] = []
        for z in range(shape[2]):
            for y in range(shape[1]):
                for x in range(shape[0]):
                    first = tuple(i * s for i, s in zip(index, shape, strict=True))
                    self.ctas.append(Cta(machine, self, len(self.ctas), (first[0] + x, first[1] + y, first[2] + z)))

    @property
    def living_threads(self) -> int:
        return sum(cta.alive for cta in self.ctas)

    def threads_left(self) -> None:
        """Exited threads count as arrived (PTX ISA 9.7.13.3)."""
        if self.barrier.arrived:
            self.barrier.needed = self.living_threads
            self.barrier.test()

    def cta_at(self, address: int, what: str) -> tuple[Cta, int]:
        """CTA and offset that a shared::cluster address names."""
        rank = address >> RANK_SHIFT
        if rank >= len(self.ctas):
            raise Fault(
                f"{what} at shared::cluster 0x{address:08x} names CTA rank {rank} of a cluster of {len(self.ctas)}"
            )
        cta = self.ctas[rank]
        cta.check_alive(f"{what} reaches")
        return cta, address & OFFSET_MASK

    def masked(self, mask: int, what: str) -> list[Cta]:
        """CTAs of a multicast mask."""
        if mask == 0 or mask >> len(self.ctas):
            raise Fault(f"{what} has CTA mask 0x{mask:x}; it must name CTAs 0..{len(self.ctas) - 1} of the cluster")
        return [cta for cta in self.ctas if mask >> cta.rank & 1]
