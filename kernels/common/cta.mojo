"""A CTA: the problem that a launch gives it, its tile of C, its place in the cluster, and its barriers."""
from .block_scaling import SCALE_SLOTS
from .config import GemmConfig, SharedMemory, resident_ctas
from .kernel import MOST_DECLARED, Barrier, Buffer, Kernel
from .layer import Layer
from .pipeline import PRODUCER, MBarrier, Pipeline, fence_mbarrier_init
from .ptx import griddepcontrol_wait, launch_dependents
from .tma import prefetch_tensor_map
from max.gpu import grid_dim, thread_idx
from max.gpu.memory import external_memory
from max.gpu.primitives.cluster import block_rank_in_cluster, elect_one_sync
from max.gpu.primitives.warp import broadcast
from max.gpu.sync import syncwarp


@fieldwise_init
struct Problem(TrivialRegisterPassable):
    """The problem of a launch: addresses of tensor maps, and sizes."""

    var a: UInt64
    var b: UInt64
    var c: UInt64
    var k_iterations: UInt32
    var m: UInt32  # rows of the product
    var n: UInt32  # columns of the product
    var clusters_m: UInt32  # cluster tiles along M; a cluster tile is the part of C that a cluster computes
    var clusters_n: UInt32
    var layer: Layer  # what only kernels 8 and 9 have

    @inline(.always)
    def b_row(self, tile: Tile) -> Int32:
        """Returns the row of the tensor B for the first column of a tile."""
        return tile.column + Int32(tile.group * self.n)


@fieldwise_init
struct Tile(TrivialRegisterPassable):
    """The tile of C that a CTA computes. The columns of a CTA pair are those of the MMA that it shares."""

    var row: Int32  # first row of the product
    var column: Int32  # first column of the product, for the MMA
    var end: Int32  # the row after the last one to store
    var group: UInt32  # which B its rows are multiplied with; 0 where there is one


struct Cta[config: GemmConfig](TrivialRegisterPassable):
    """The place of this thread in its CTA and cluster, and the barriers of the CTA in shared memory."""

    comptime layout = SharedMemory(Self.config)

    var rank: UInt32  # in the cluster
    var warp: UInt32  # broadcast from one lane, so that the compiler knows that branches on it are uniform
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
    def rank_in_pair(self) -> UInt32:
        """Returns which CTA of its pair this is; 0 if a CTA issues its MMAs alone."""
        return self.rank % UInt32(Self.config.cta_group)

    @inline(.always)
    def leads_mma(self) -> Bool:
        """This CTA issues the MMAs: it is the even CTA of a pair, or has no pair."""
        return self.rank_in_pair() == 0

    @inline(.always)
    def pair_mask(self) -> UInt32:
        """Returns the mask of the CTAs that share an MMA with this one, itself included."""
        comptime sharing = Self.config.sharing()
        return sharing.pair_mask(self.rank)

    @inline(.always)
    def writer_mask(self) -> UInt32:
        """Returns the mask of the CTAs that load slices into the stages of this CTA's MMA."""
        comptime sharing = Self.config.sharing()
        return sharing.writer_mask(self.rank)

    @inline(.always)
    def response(self, slot: UInt32) -> UInt32:
        """Returns the shared memory address of a response, 16 bytes that name the next tile (TileScheduler)."""
        return self.shared + UInt32(Self.layout.responses) + slot * 16

    # ---- barriers ----------------------------------------------------------------------------------------------------
    @inline(.always)
    def full(self) -> MBarrier:
        """The full barrier of the first stage. A phase completes when TMA has filled the stage. Its count is 1: the
        producer of the CTA that leads the MMA arrives and announces the bytes of all CTAs of the MMA. The MMA thread
        waits; on sm_90a, the consumers wait."""
        return {self.shared + UInt32(Self.layout.full)}

    @inline(.always)
    def empty(self) -> MBarrier:
        """The empty barrier of the first stage. A phase completes when all readers have read what this CTA loads into
        the stage. Its count is `empty_arrivals`: one commit of each MMA that reads it; on sm_90a, one arrival of each
        consumer warpgroup, or of each consumer warp where sums are promoted. This CTA's producer waits."""
        return {self.shared + UInt32(Self.layout.empty)}

    @inline(.always)
    def accumulator_full(self) -> MBarrier:
        """The full barrier of the first accumulator (sm_100a). A phase completes when the MMAs of a tile are done. Its
        count is 1: the last commit of the MMA thread. The epilogue warps wait."""
        return {self.shared + UInt32(Self.layout.accumulator_full)}

    @inline(.always)
    def accumulator_empty(self) -> MBarrier:
        """The empty barrier of the first accumulator (sm_100a, persistent kernels). A phase completes when the epilogue
        has read the accumulator. Its count is `accumulator_readers`: each epilogue warp of the MMA's CTAs arrives at
        the CTA that leads the MMA after its last load from TMEM. The MMA thread waits."""
        return {self.shared + UInt32(Self.layout.accumulator_empty)}

    @inline(.always)
    def response_full(self) -> MBarrier:
        """The full barrier of the first response. A phase completes when the response has arrived. Its count is 1: this
        CTA's scheduler thread arrives, and announces the bytes if it does not store them itself. Every role waits."""
        return {self.shared + UInt32(Self.layout.response_full)}

    @inline(.always)
    def response_empty(self) -> MBarrier:
        """The empty barrier of the first response. A phase completes when every role has read the response. Its count
        is `response_arrivals`. With clc, every role of the cluster arrives at the CTA of rank 0, whose scheduler thread
        waits. With the dynamic schedule, every role arrives at its own CTA, whose scheduler thread waits; each other
        CTA then arrives once at rank 0."""
        return {self.shared + UInt32(Self.layout.response_empty)}

    @inline(.always)
    def scales_empty(self) -> MBarrier:
        """The empty barrier of the first slot of scale factors in TMEM (block-scaled kernels). A phase completes when
        the MMAs have read the slot. Its count is 1: a commit of the MMA thread, which also waits before its next copy
        into the slot."""
        return {self.shared + UInt32(Self.layout.scales_empty)}

    @inline(.always)
    def barrier[kernel: Kernel, declared: Barrier](self, number: UInt32 = 0) -> MBarrier:
        """Returns an mbarrier that the kernel declares."""
        comptime offset = kernel.offset_of(declared)
        comptime assert offset >= 0, "the kernel does not declare this barrier"
        return MBarrier(self.shared + UInt32(Self.layout.declared_barriers + offset)).next(number)

    @inline(.always)
    def buffer[kernel: Kernel, declared: Buffer](self) -> UInt32:
        """Returns the shared memory address of a buffer that the kernel declares."""
        comptime offset = kernel.offset_of(declared)
        comptime assert offset >= 0, "the kernel does not declare this buffer"
        return self.shared + UInt32(Self.layout.declared_buffers + offset)

    @inline(.always)
    def stages(self, parity: UInt32) -> Pipeline[Self.config.stages]:
        """Returns the pipeline of stages: the producers fill them with slices of A and B, the MMAs read them."""
        return {self.full(), self.empty(), parity}

    @inline(.always)
    def scale_slots(self) -> Pipeline[SCALE_SLOTS]:
        """Returns the pipeline of slots for scale factors in TMEM. Only the MMA thread uses it. Its copies into a slot
        and its MMAs run in the order of issue, so the pipeline needs no full barrier."""
        return {self.scales_empty(), self.scales_empty(), PRODUCER}

    @inline(.always)
    def accumulators(self, parity: UInt32) -> Pipeline[Self.config.accumulator_barriers()]:
        """Returns the pipeline of accumulators in TMEM: the MMA thread fills them, the epilogue warps read them."""
        return {self.accumulator_full(), self.accumulator_empty(), parity}

    @inline(.always)
    def responses(self, parity: UInt32) -> Pipeline[max(1, Self.config.response_slots())]:
        """Returns the pipeline of responses: the scheduler thread sends the next tile to every role."""
        return {self.response_full(), self.response_empty(), parity}

    @inline(.always)
    def response_arrivals(self) -> UInt32:
        """Returns the arrival count of this CTA's empty barriers of responses."""
        var readers = UInt32(Self.config.response_readers())
        comptime if Self.config.counts_tiles():
            readers += UInt32(Self.config.cluster_size() - 1) if self.rank == 0 else 0
        return readers

    @inline(.always)
    def init_barriers(self):
        """Initialises all barriers of this CTA. One thread calls this."""
        comptime for stage in range(UInt32(Self.config.stages)):
            self.full().next(stage).init(1)
            self.empty().next(stage).init(UInt32(Self.config.empty_arrivals()))
        comptime if Self.config.has_tmem():
            comptime for i in range(UInt32(Self.config.accumulator_barriers())):
                self.accumulator_full().next(i).init(1)
                comptime if Self.config.kernel.is_persistent:
                    self.accumulator_empty().next(i).init(UInt32(Self.config.accumulator_readers()))
        comptime if Self.config.kernel.is_block_scaled:
            comptime for slot in range(UInt32(SCALE_SLOTS)):
                self.scales_empty().next(slot).init(1)
        comptime for slot in range(UInt32(Self.config.response_slots())):
            self.response_full().next(slot).init(1)
            self.response_empty().next(slot).init(self.response_arrivals())
        var declared = MBarrier(self.shared + UInt32(Self.layout.declared_barriers))
        comptime for i in range(MOST_DECLARED):
            comptime for _ in range(Int(Self.config.kernel.mbarriers[i])):
                declared.init(UInt32(Self.config.kernel.arrivals[i]))
                declared = declared.next(1)
        fence_mbarrier_init()

    @inline(.always)
    def wait_for_previous_grid(self):
        """Waits until the previous grid has ended (programmatic dependent launch). All threads call this before any of
        them accesses global memory. It lets the next grid start early if `next_starts_together`; otherwise
        `produce_tiles` does so after its last load."""
        comptime if Self.config.overlaps_launches():
            if self.next_starts_together():
                launch_dependents()
            griddepcontrol_wait()

    @inline(.always)
    def next_starts_together(self) -> Bool:
        """All CTAs of a next launch like this one can start together: either all fit next to these CTAs, or none does.
        If only some fit, they start at different times and share less in L2: on an H200, up to 1.6 times as long."""
        comptime most = UInt32(resident_ctas(Self.config.cluster_size(), Self.config.has_tmem()))
        var ctas = UInt32(grid_dim.x) * UInt32(grid_dim.y)
        return 2 * ctas <= most or ctas >= most

    @inline(.always)
    def prepare(self, problem: Problem):
        """Prefetches tensor maps and initialises barriers, in warp 0. A cluster barrier must follow before their
        use."""
        if self.warp == 0:
            if elect_one_sync():
                prefetch_tensor_map(problem.a)
                prefetch_tensor_map(problem.b)
                prefetch_tensor_map(problem.c)
                self.init_barriers()
            syncwarp()
