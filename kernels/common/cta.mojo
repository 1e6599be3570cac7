"""A CTA: the problem that a launch gives it, its tile of C, its place in the cluster, and its barriers."""
from .config import GemmConfig, SharedMemory
from .kernel import MOST_DECLARED, Barrier, Buffer, Kernel
from .pipeline import MBarrier, Pipeline
from .tma import prefetch_tensor_map
from max.gpu import thread_idx
from max.gpu.memory import external_memory
from max.gpu.primitives.cluster import block_rank_in_cluster
from max.gpu.primitives.warp import broadcast


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
    var workspace: UInt64  # global memory where CTAs meet; 0 if the kernel needs none

    @inline(.always)
    def b_row(self, tile: Tile) -> Int32:
        """Returns the row of the tensor B for the first column of a tile."""
        return tile.column + Int32(tile.which_b * self.n)

    @inline(.always)
    def prefetch_tensor_maps(self):
        """Prefetches the tensor maps for later copies. One thread calls this."""
        prefetch_tensor_map(self.a)
        prefetch_tensor_map(self.b)
        prefetch_tensor_map(self.c)


@fieldwise_init
struct Tile(TrivialRegisterPassable):
    """The tile of C that a CTA computes. The columns of a CTA pair are those of the MMA that it shares."""

    var row: Int32  # first row of the product
    var column: Int32  # first column of the product, for the MMA
    var end: Int32  # the row after the last one to store
    var which_b: UInt32  # its rows are multiplied with, where the tensor B holds several


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

    # ---- barriers ----------------------------------------------------------------------------------------------------
    @inline(.always)
    def init_barriers(self):
        """Initialises all barriers of this CTA, each with the count that its method states. One thread calls this;
        `fence_mbarrier_init` and a cluster barrier must follow before their use."""
        comptime for stage in range(UInt32(Self.config.stages)):
            self.full().next(stage).init(1)
            self.empty().next(stage).init(UInt32(Self.config.empty_arrivals()))
        comptime if Self.config.has_tmem():
            comptime for i in range(UInt32(Self.config.accumulator_barriers)):
                self.accumulator_full().next(i).init(1)
                comptime if Self.config.kernel.is_persistent:
                    self.accumulator_empty().next(i).init(UInt32(Self.config.accumulator_readers()))
        var declared = MBarrier(self.shared + UInt32(Self.layout.declared_barriers))
        comptime for i in range(MOST_DECLARED):
            comptime for _ in range(Int(Self.config.kernel.mbarriers[i])):
                declared.init(UInt32(Self.config.kernel.arrivals[i]))
                declared = declared.next(1)
        comptime for slot in range(UInt32(Self.config.response_slots)):
            self.response_full().next(slot).init(1)
            self.response_empty().next(slot).init(Self.config.response_arrivals(self.rank))

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
        consumer warpgroup, or of each of its warps. This CTA's producer waits."""
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
        """The full barrier of the first slot for responses about the next tile. A phase completes when a response has
        arrived. Its count is 1: this CTA's scheduler thread arrives, and announces the bytes if it does not store them
        itself. Every role waits."""
        return {self.shared + UInt32(Self.layout.response_full)}

    @inline(.always)
    def response_empty(self) -> MBarrier:
        """The empty barrier of the first slot for responses. A phase completes when every role has read the response.
        Its count is `response_arrivals`. With clc, every role of the cluster arrives at the CTA of rank 0, whose
        scheduler thread waits. With the dynamic schedule, every role arrives at its own CTA, whose scheduler thread
        waits; each other CTA then arrives once at rank 0."""
        return {self.shared + UInt32(Self.layout.response_empty)}

    @inline(.always)
    def barrier[kernel: Kernel, declared: Barrier](self, number: UInt32 = 0) -> MBarrier:
        """Returns an mbarrier that the kernel declares."""
        comptime offset = kernel.offset_of(declared)
        comptime name = kernel.capabilities.name
        comptime assert offset >= 0, String(t"add the barrier '{declared.name}' to the `barriers` of the kernel {name}")
        return MBarrier(self.shared + UInt32(Self.layout.declared_barriers + offset)).next(number)

    @inline(.always)
    def buffer[kernel: Kernel, declared: Buffer](self) -> UInt32:
        """Returns the shared memory address of a buffer that the kernel declares."""
        comptime offset = kernel.offset_of(declared)
        comptime name = kernel.capabilities.name
        comptime assert offset >= 0, String(t"add the buffer '{declared.name}' to the `buffers` of the kernel {name}")
        return self.shared + UInt32(Self.layout.declared_buffers + offset)

    @inline(.always)
    def stages(self, parity: UInt32) -> Pipeline[Self.config.stages]:
        """Returns the pipeline of stages: the producers fill them with slices of A and B, the MMAs read them."""
        return {self.full(), self.empty(), parity}

    @inline(.always)
    def accumulators(self, parity: UInt32) -> Pipeline[Self.config.accumulator_barriers]:
        """Returns the pipeline of accumulators in TMEM: the MMA thread fills them, the epilogue warps read them."""
        return {self.accumulator_full(), self.accumulator_empty(), parity}
