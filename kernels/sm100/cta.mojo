"""The life of a CTA: what must hold before the first copy and after the last, for CTAs that write into one another.

    start    barriers initialised -> cluster barrier -> TMEM allocated -> cluster barrier -> roles
    finish   roles done -> cluster barrier -> TMEM freed -> exit

The first cluster barrier makes the mbarriers usable by every peer, and proves that the other CTA of the pair exists
before the pair allocates TMEM together. The second publishes the TMEM address and tells the MMA thread that the
peer's TMEM is there. After the last, no CTA of the cluster can still read, multicast or commit into this one:
producers leave only after every commit that targets them has landed (the drain), epilogues after the accumulator's.
"""
from ..common.config import GemmConfig
from ..common.ptx import fence_mbarrier_init, load_shared, mbarrier_init, prefetch_tensor_map
from ..common.shared_memory import SharedMemory
from .tcgen05 import fence_after_thread_sync, fence_before_thread_sync, tmem_allocate, tmem_deallocate
from max.gpu import barrier, block_idx, thread_idx
from max.gpu.memory import external_memory
from max.gpu.primitives.cluster import block_rank_in_cluster, cluster_sync, elect_one_sync
from max.gpu.primitives.warp import broadcast
from max.gpu.sync import syncwarp


struct Cta[config: GemmConfig](TrivialRegisterPassable):
    """Who this thread is, and the addresses of what its CTA owns."""

    comptime layout = SharedMemory(Self.config)

    var rank: UInt32  # in the cluster
    var warp: UInt32  # taken from one lane, so that branching on it is known to be uniform
    var lane: UInt32
    var shared: UInt32  # start of dynamic shared memory
    var tmem: UInt32  # accumulator
    var row: Int32  # first row of A and C of this CTA
    var column: Int32  # first column of C, first row of B of the MMA this CTA takes part in

    @inline(.always)
    def __init__(out self):
        self.rank = block_rank_in_cluster()
        var thread = UInt32(thread_idx.x)
        self.warp = broadcast(thread // 32)
        self.lane = thread % 32
        self.shared = UInt32(Int(external_memory[UInt8, address_space=.SHARED, alignment=1024]()))
        self.tmem = 0
        self.row = Int32(block_idx.x) * Int32(Self.config.cta_m())
        self.column = Int32(block_idx.y) * Int32(Self.config.mma_n)

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
    def accumulator(self) -> UInt32:
        return self.shared + UInt32(Self.layout.accumulator)

    @inline(.always)
    def start(mut self, a_map: UInt64, b_map: UInt64, c_map: UInt64):
        """Everything before the roles. All threads."""
        comptime sharing = Self.config.sharing()
        if self.warp == 0:
            if elect_one_sync():
                prefetch_tensor_map(a_map)
                prefetch_tensor_map(b_map)
                prefetch_tensor_map(c_map)
                comptime for stage in range(Self.config.stages):
                    # full: the leading CTA's loading thread arrives and announces the bytes of every CTA of the MMA
                    mbarrier_init(self.full(UInt32(stage)), 1)
                    # empty: one commit from each MMA that reads what this CTA loads
                    mbarrier_init(self.empty(UInt32(stage)), UInt32(sharing.arrivals()))
                # accumulator: the MMA thread's last commit
                mbarrier_init(self.accumulator(), 1)
                fence_mbarrier_init()
            syncwarp()
        cluster_sync()
        var slot = self.shared + UInt32(Self.layout.tmem_address)
        if self.warp == 0:
            tmem_allocate[Self.config](slot)
        fence_before_thread_sync()
        comptime if Self.config.cta_group == 2:
            cluster_sync()
        else:
            barrier()
        fence_after_thread_sync()
        self.tmem = load_shared(slot)

    @inline(.always)
    def finish(self):
        """Everything after the roles. All threads."""
        syncwarp()
        fence_before_thread_sync()
        cluster_sync()
        fence_after_thread_sync()
        if self.warp == 0:
            tmem_deallocate[Self.config](self.tmem)
