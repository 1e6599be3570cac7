"""A CTA: its place in the cluster, and the addresses of what it owns."""
from .config import GemmConfig
from .problem import Problem
from .ptx import (
    fence_mbarrier_init,
    launch_dependents,
    mbarrier_init,
    prefetch_tensor_map,
    griddepcontrol_wait,
)
from .residency import sms_filled
from .shared_memory import SharedMemory
from max.gpu import grid_dim, thread_idx
from max.gpu.memory import external_memory
from max.gpu.primitives.cluster import block_rank_in_cluster, elect_one_sync
from max.gpu.primitives.warp import broadcast
from max.gpu.sync import syncwarp


struct Cta[config: GemmConfig](TrivialRegisterPassable):
    comptime layout = SharedMemory(Self.config)

    var rank: UInt32  # in the cluster
    var warp: UInt32  # taken from one lane, so that branching on it is known to be uniform
    var lane: UInt32
    var shared: UInt32  # start of dynamic shared memory

    @inline(.always)
    def __init__(out self):
        self.rank = block_rank_in_cluster()
        var thread = UInt32(thread_idx.x)
        self.warp = broadcast(thread // 32)
        self.lane = thread % 32
        self.shared = UInt32(Int(external_memory[UInt8, address_space=.SHARED, alignment=1024]()))

    @inline(.always)
    def in_pair(self) -> UInt32:
        """Which CTA of its pair this is; 0 where one CTA does an MMA alone."""
        return self.rank % UInt32(Self.config.cta_group)

    @inline(.always)
    def full(self, stage: UInt32) -> UInt32:
        return self.shared + UInt32(Self.layout.full) + stage * 8

    @inline(.always)
    def empty(self, stage: UInt32) -> UInt32:
        return self.shared + UInt32(Self.layout.empty) + stage * 8

    @inline(.always)
    def accumulator_full(self, accumulator: UInt32) -> UInt32:
        """sm_100a: an accumulator is finished; the epilogue waits."""
        return self.shared + UInt32(Self.layout.accumulator_full) + accumulator * 8

    @inline(.always)
    def accumulator_empty(self, accumulator: UInt32) -> UInt32:
        """sm_100a: an accumulator has been read; the MMA thread waits. In the CTA that leads the MMA."""
        return self.shared + UInt32(Self.layout.accumulator_empty) + accumulator * 8

    @inline(.always)
    def response(self, slot: UInt32) -> UInt32:
        """16 bytes that say which tile is next: TileScheduler."""
        return self.shared + UInt32(Self.layout.responses) + slot * 16

    @inline(.always)
    def response_full(self, slot: UInt32) -> UInt32:
        return self.shared + UInt32(Self.layout.response_full) + slot * 8

    @inline(.always)
    def response_empty(self, slot: UInt32) -> UInt32:
        """With the schedule clc in the CTA of rank 0, which sends the requests; dynamic: in every CTA, for its own roles.
        """
        return self.shared + UInt32(Self.layout.response_empty) + slot * 8

    @inline(.always)
    def wait_for_previous_grid(self):
        """All threads, before any of them touches global memory: waits until the previous grid is over (programmatic
        dependent launch). The next one may begin to prepare and wait here, now or when the loads have been issued: see
        `produce`."""
        comptime if Self.config.overlaps_launches():
            if self.next_starts_together():
                launch_dependents()
            griddepcontrol_wait()

    @inline(.always)
    def next_starts_together(self) -> Bool:
        """Whether the CTAs of a launch like this one fit next to its own, or none does before these end. If some do and
        some do not, they begin to work at different times, and lose what they share in the L2 cache: on an H200 that
        takes up to 1.6 times as long."""
        comptime most = UInt32(sms_filled(Self.config.cluster_size(), Self.config.has_tmem()))
        var ctas = UInt32(grid_dim.x) * UInt32(grid_dim.y)
        return 2 * ctas <= most or ctas >= most

    @inline(.always)
    def prepare(self, problem: Problem):
        """Initialises the barriers. Warp 0; a cluster barrier must follow before any of them is used."""
        if self.warp == 0:
            if elect_one_sync():
                prefetch_tensor_map(problem.a)
                prefetch_tensor_map(problem.b)
                prefetch_tensor_map(problem.c)
                comptime for stage in range(Self.config.stages):
                    # full: the loading thread of the CTA that leads the MMA arrives and announces the bytes
                    mbarrier_init(self.full(UInt32(stage)), 1)
                    # empty: every reader of what this CTA loads
                    mbarrier_init(self.empty(UInt32(stage)), UInt32(Self.config.empty_arrivals()))
                comptime if Self.config.has_tmem():
                    comptime for i in range(Self.config.accumulators):
                        # full: the MMA thread's last commit
                        mbarrier_init(self.accumulator_full(UInt32(i)), 1)
                        comptime if Self.config.is_persistent():
                            # empty: every epilogue warp of the CTAs of the MMA
                            mbarrier_init(self.accumulator_empty(UInt32(i)), UInt32(Self.config.accumulator_readers()))
                comptime for slot in range(Self.config.response_slots()):
                    # full: who announces the bytes of the response, or brings it; empty: whoever reads it
                    mbarrier_init(self.response_full(UInt32(slot)), 1)
                    var readers = UInt32(Self.config.response_readers())
                    comptime if Self.config.counts_tiles():
                        readers += UInt32(Self.config.cluster_size() - 1) if self.rank == 0 else 0
                    mbarrier_init(self.response_empty(UInt32(slot)), readers)
                fence_mbarrier_init()
            syncwarp()
