"""What a launch passes to a CTA, which tile of C it computes, its place in the cluster, and its barriers."""
from .block_scaling import SCALE_SLOTS
from .config import GemmConfig, SharedMemory, sms_filled
from .fragment import EpilogueOperands
from .groups import Groups
from .pipeline import PRODUCER, MBarrier, Pipeline, fence_mbarrier_init
from .ptx import griddepcontrol_wait, launch_dependents, prefetch_tensor_map
from max.gpu import grid_dim, thread_idx
from max.gpu.memory import external_memory
from max.gpu.primitives.cluster import block_rank_in_cluster, elect_one_sync
from max.gpu.primitives.warp import broadcast
from max.gpu.sync import syncwarp


@fieldwise_init
struct Problem(TrivialRegisterPassable):
    """Tensor maps by address, those of scale factors 0 where there are none, sizes, the workspace, and what an epilogue reads.
    """

    var a: UInt64
    var b: UInt64
    var c: UInt64
    var a_scales: UInt64
    var b_scales: UInt64
    var k_iterations: UInt32
    var m: UInt32  # rows of the product: of A, swapped of B
    var n: UInt32  # columns of the product: rows of B, swapped of A
    var clusters_m: UInt32  # cluster tiles along M: C in units of what a cluster computes together
    var clusters_n: UInt32
    var workspace: UInt64  # counters in global memory, then partial sums: split_k.mojo; 0 where none is needed
    var operands: EpilogueOperands
    var groups: Groups

    @inline(.always)
    def operands_of(self, tile: Tile) -> EpilogueOperands:
        """Each group has its own bias."""
        var found = self.operands
        found.bias += 2 * UInt64(tile.group * self.n)
        return found

    @inline(.always)
    def b_row(self, tile: Tile) -> Int32:
        """The row of B that makes the first column of a tile: the B of groups lie one after the other."""
        return tile.column + Int32(tile.group * self.n)


@fieldwise_init
struct Tile(TrivialRegisterPassable):
    """Where a CTA works in C. With a CTA pair the columns are those of the MMA they share."""

    var row: Int32  # first row of the product
    var column: Int32  # first column of the product, for the MMA
    var end: Int32  # the row behind the last one that is stored: M, or where the tile's group ends
    var group: UInt32  # of its rows; 0 if there are none


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
    def leads_mma(self) -> Bool:
        """Whether it issues the MMA: the even CTA of a pair, or a CTA alone."""
        return self.in_pair() == 0

    @inline(.always)
    def pair(self) -> UInt32:
        """Mask of the CTAs that share an MMA with this one, itself included."""
        comptime sharing = Self.config.sharing()
        return sharing.pair_mask(self.rank)

    @inline(.always)
    def stage_writers(self) -> UInt32:
        """Mask of the CTAs whose slices land in the stages of this CTA's MMA."""
        comptime sharing = Self.config.sharing()
        return sharing.commit_mask(self.rank)

    @inline(.always)
    def response(self, slot: UInt32) -> UInt32:
        """16 bytes that say which tile is next: TileScheduler."""
        return self.shared + UInt32(Self.layout.responses) + slot * 16

    # ---- barriers ----------------------------------------------------------------------------------------------------
    @inline(.always)
    def full(self) -> MBarrier:
        """TMA has filled a stage. Count 1: the producer of the CTA that leads the MMA arrives and announces the bytes of
        all CTAs of the MMA; TMA delivers them. The MMA thread waits, on sm_90a the consumers."""
        return {self.shared + UInt32(Self.layout.full)}

    @inline(.always)
    def empty(self) -> MBarrier:
        """All that this CTA loads into a stage has been read. Count `empty_arrivals`: of each MMA that reads it one commit,
        on sm_90a an arrival of each consumer warpgroup, of each of its warps where sums are promoted. This CTA's producer waits.
        """
        return {self.shared + UInt32(Self.layout.empty)}

    @inline(.always)
    def accumulator_full(self) -> MBarrier:
        """On sm_100a an accumulator is finished. Count 1: the last commit of the MMA thread. The epilogue warps wait.
        """
        return {self.shared + UInt32(Self.layout.accumulator_full)}

    @inline(.always)
    def accumulator_empty(self) -> MBarrier:
        """On sm_100a, persistent: an accumulator has been read. Count `accumulator_readers`: each epilogue warp of the CTAs of
        the MMA arrives in the one that leads it, after its last load from TMEM. The MMA thread waits."""
        return {self.shared + UInt32(Self.layout.accumulator_empty)}

    @inline(.always)
    def response_full(self) -> MBarrier:
        """A response is there. Count 1: this CTA's scheduler thread arrives and announces the bytes that rank 0 sends for,
        or alone in its cluster brings them. Every role of the CTA waits."""
        return {self.shared + UInt32(Self.layout.response_full)}

    @inline(.always)
    def response_empty(self) -> MBarrier:
        """A response has been read. Count `response_arrivals`. clc: every role of the cluster arrives in the CTA of rank 0,
        whose scheduler thread waits. dynamic: every role arrives in its own CTA, where the scheduler thread waits; that
        of rank 0 also hears one arrival of each other CTA."""
        return {self.shared + UInt32(Self.layout.response_empty)}

    @inline(.always)
    def scales_empty(self) -> MBarrier:
        """Block-scaled: a slot of scale factors in TMEM has been read. Count 1: a commit of the MMA thread, which itself
        waits before it copies into the slot again."""
        return {self.shared + UInt32(Self.layout.scales_empty)}

    @inline(.always)
    def stages(self, parity: UInt32) -> Pipeline[Self.config.stages]:
        """From the producers to the tensor core: slices of A and B."""
        return {self.full(), self.empty(), parity}

    @inline(.always)
    def scale_slots(self) -> Pipeline[SCALE_SLOTS]:
        """Of the MMA thread alone, which copies scale factors into a slot and uses them, in the order of issue. So nobody
        waits on a full barrier, and there is none."""
        return {self.scales_empty(), self.scales_empty(), PRODUCER}

    @inline(.always)
    def accumulators(self, parity: UInt32) -> Pipeline[Self.config.accumulator_barriers()]:
        """From the MMA thread to the epilogue warps: accumulators in TMEM, where they are used again."""
        return {self.accumulator_full(), self.accumulator_empty(), parity}

    @inline(.always)
    def responses(self, parity: UInt32) -> Pipeline[max(1, Self.config.response_slots())]:
        """From the scheduler thread to every role: which tile is next."""
        return {self.response_full(), self.response_empty(), parity}

    @inline(.always)
    def response_arrivals(self) -> UInt32:
        var readers = UInt32(Self.config.response_readers())
        comptime if Self.config.counts_tiles():
            readers += UInt32(Self.config.cluster_size() - 1) if self.rank == 0 else 0
        return readers

    @inline(.always)
    def init_barriers(self):
        """One thread."""
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
        fence_mbarrier_init()

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
                self.init_barriers()
            syncwarp()
