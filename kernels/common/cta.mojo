"""A CTA: its place in the cluster and in the problem, and the addresses of what it owns."""
from .config import GemmConfig
from .ptx import fence_mbarrier_init, mbarrier_init, prefetch_tensor_map
from .shared_memory import SharedMemory
from max.gpu import block_idx, grid_dim, thread_idx
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
    var row: Int32  # first row of A and C of this CTA
    var column: Int32  # first column of C, first row of B of the MMA this CTA takes part in

    @inline(.always)
    def __init__(out self):
        self.rank = block_rank_in_cluster()
        var thread = UInt32(thread_idx.x)
        self.warp = broadcast(thread // 32)
        self.lane = thread % 32
        self.shared = UInt32(Int(external_memory[UInt8, address_space=.SHARED, alignment=1024]()))
        # z counts bands of the grid along M: LaunchPlan
        self.row = (Int32(block_idx.z) * Int32(grid_dim.x) + Int32(block_idx.x)) * Int32(Self.config.cta_m())
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
        """The barrier that tells sm_100a's epilogue about a finished accumulator."""
        return self.shared + UInt32(Self.layout.accumulator)

    @inline(.always)
    def prepare(self, a_map: UInt64, b_map: UInt64, c_map: UInt64):
        """Initialises the barriers. Warp 0; a cluster barrier must follow before any of them is used."""
        if self.warp == 0:
            if elect_one_sync():
                prefetch_tensor_map(a_map)
                prefetch_tensor_map(b_map)
                prefetch_tensor_map(c_map)
                comptime for stage in range(Self.config.stages):
                    # full: the loading thread of the CTA that leads the MMA arrives and announces the bytes
                    mbarrier_init(self.full(UInt32(stage)), 1)
                    # empty: every reader of what this CTA loads
                    mbarrier_init(self.empty(UInt32(stage)), UInt32(Self.config.empty_arrivals()))
                comptime if Self.config.has_tmem():
                    # accumulator: the MMA thread's last commit
                    mbarrier_init(self.accumulator(), 1)
                fence_mbarrier_init()
            syncwarp()
