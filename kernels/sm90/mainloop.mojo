"""The main loop of sm_90a: consumer warpgroups multiply stages, and release each to the CTAs that wrote into it."""
from ..common.config import GemmConfig
from ..common.cta import Cta, Problem, Tile
from ..common.pipeline import CONSUMER, MBarrier, Pipeline
from ..common.ptx import pinned
from .warpgroup import sync_warpgroup, warp_of_group, warpgroup
from .wgmma import Accumulator, operand_descriptor


__extension Pipeline:
    @inline(.always)
    def pin(mut self):
        """Keeps the compiler from computing the position any earlier. In unrolled code it would compute the positions
        of all stages in advance, and run out of registers."""
        self.stage = pinned(self.stage)
        self.parity = pinned(self.parity)


trait StageConsumer(TrivialRegisterPassable):
    """Multiplies the stages of a tile."""

    comptime config: GemmConfig

    def multiply_stage[
        *, first_stage: Bool = False
    ](
        mut self,
        mut accumulator: Accumulator[Self.config],
        mut stages: Pipeline[Self.config.stages],
        mut previous: UInt32,
    ):
        """Multiplies the next stage. `previous` is the last one that this has started, and not yet released."""
        ...

    def finish_tile(self, accumulator: Accumulator[Self.config], last: UInt32):
        """Waits for all MMAs and releases the last stage."""
        ...


struct Consumer[gemm: GemmConfig](StageConsumer):
    """The operands that one consumer warpgroup reads, and the barriers that it signals."""

    comptime config = Self.gemm

    var group: UInt32
    var row: Int32  # this warpgroup's first row in a tile
    var a: UInt64
    var b: UInt64
    var empty: MBarrier  # the first empty barrier of the CTA whose rank is this thread's lane
    var signals: Bool  # this thread arrives there: that CTA writes into the stages of this one

    @inline(.always)
    def __init__(out self, cta: Cta[Self.gemm]):
        comptime rows_bytes = Self.gemm.a_bytes() // Self.gemm.consumers_of_tile
        self.group = warpgroup(cta)
        var part = self.group % UInt32(Self.gemm.consumers_of_tile)
        self.row = Int32(part) * Int32(Self.gemm.consumer_m())
        self.a = operand_descriptor(
            cta.shared + UInt32(cta.layout.a) + part * UInt32(rows_bytes), Self.gemm.a_mn_major()
        )
        self.b = operand_descriptor(cta.shared + UInt32(cta.layout.b), Self.gemm.b_mn_major())
        var rank = min(cta.lane, UInt32(Self.gemm.cluster_size() - 1))
        self.empty = cta.empty().in_cta(rank)
        self.signals = cta.lane == rank and cta.writer_mask() >> rank & 1 == 1
        comptime if Self.gemm.consumer_arrivals == 1:  # otherwise, every warp arrives
            self.signals = self.signals and warp_of_group(cta) == 0

    @inline(.always)
    def owns_rows(self, tile: Tile, problem: Problem) -> Bool:
        """This warpgroup has a row in C."""
        return tile.row + self.row < tile.end and tile.column < Int32(problem.n)

    @inline(.always)
    def multiply[*, first_stage: Bool = False](self, mut accumulator: Accumulator[Self.gemm], stage: UInt32):
        """Starts to multiply a stage, and adds it to the accumulator. The `first_stage` of a tile overwrites it."""
        accumulator.multiply[first_stage=first_stage](self.a_of(stage), self.b_of(stage))

    @inline(.always)
    def a_of(self, stage: UInt32) -> UInt64:
        """Returns the descriptor of this warpgroup's rows of A in a stage."""
        return self.a + UInt64(stage * UInt32(Self.gemm.a_bytes() // 16))

    @inline(.always)
    def b_of(self, stage: UInt32) -> UInt64:
        """Returns the descriptor of B in a stage."""
        return self.b + UInt64(stage * UInt32(Self.gemm.b_bytes() // 16))

    @inline(.always)
    def release(self, stage: UInt32):
        """Arrives at the empty barriers of all CTAs that write into the stage, one thread at each. A wait for the MMAs
        of the stage must come before; it covers the whole warpgroup."""
        if self.signals:
            self.empty.next(stage).arrive()

    @inline(.always)
    def multiply_stage[
        *, first_stage: Bool = False
    ](mut self, mut accumulator: Accumulator[Self.gemm], mut stages: Pipeline[Self.gemm.stages], mut previous: UInt32):
        """Waits for the next stage and starts to multiply it, then waits for the previous one and releases it, so that
        the tensor core always has work."""
        stages.consumer_wait()
        self.multiply[first_stage=first_stage](accumulator, stages.stage)
        comptime if Self.gemm.stages == 1:
            accumulator.wait[0]()
            self.release(stages.stage)
        elif not first_stage:
            accumulator.wait[1]()
            self.release(previous)
        previous = stages.stage
        stages.advance()

    @inline(.always)
    def finish_tile(self, accumulator: Accumulator[Self.gemm], last: UInt32):
        comptime if Self.gemm.stages > 1:
            accumulator.wait[0]()
            self.release(last)


trait SideJob(TrivialRegisterPassable):
    """Work that a consumer warpgroup does in steps while the tensor core multiplies."""

    comptime steps: Int

    def run[step: Int](self):
        """Does one step. The multiplication of a stage has started before."""
        ...


@fieldwise_init
struct NoSideJob(SideJob, TrivialRegisterPassable):
    comptime steps = 0

    @inline(.always)
    def run[step: Int](self):
        pass


@inline(.always)
def start_tile[
    C: StageConsumer, Job: SideJob, //
](
    mut consumer: C,
    mut accumulator: Accumulator[C.config],
    mut stages: Pipeline[C.config.stages],
    k_iterations: UInt32,
    job: Job,
) -> UInt32:
    """Multiplies stage after stage as they become full, and does the whole job meanwhile: one step after the start of
    each stage, the rest after the last. Returns the last stage for `finish_tile`.

    The code for the first stages is unrolled, each with its step, because registers cannot be indexed at run time."""
    var last: UInt32 = 0
    consumer.multiply_stage[first_stage=True](accumulator, stages, last)
    comptime for step in range(Job.steps):
        job.run[step]()
        stages.pin()
        if UInt32(step + 1) < k_iterations:
            consumer.multiply_stage(accumulator, stages, last)
    comptime first = Job.steps + 1
    for _ in range(UInt32(first), max(UInt32(first), k_iterations)):
        consumer.multiply_stage(accumulator, stages, last)
    return last


@inline(.always)
def skip_tile[
    config: GemmConfig
](consumer: Consumer[config], mut stages: Pipeline[config.stages], k_iterations: UInt32):
    """Releases every stage of a tile unread. A warpgroup without rows in C calls this, not `start_tile` and
    `finish_tile`: its CTA still loads slices for other CTAs. Products that no thread stores would cost power."""
    for _ in range(k_iterations):
        stages.consumer_wait()
        # All warps must have seen the stage full, as after a multiplication, before one thread releases it.
        sync_warpgroup(consumer.group)
        consumer.release(stages.stage)
        stages.advance()


@inline(.always)
def consume_one_tile[
    config: GemmConfig
](cta: Cta[config], mut consumer: Consumer[config], k_iterations: UInt32) -> Accumulator[config]:
    """Multiplies the only tile of a CTA, and returns its accumulator."""
    var stages = cta.stages(CONSUMER)
    var accumulator = Accumulator[config]()
    var last = start_tile(consumer, accumulator, stages, k_iterations, NoSideJob())
    consumer.finish_tile(accumulator, last)
    return accumulator


@inline(.always)
def skip_one_tile[config: GemmConfig](cta: Cta[config], consumer: Consumer[config], k_iterations: UInt32):
    """Releases all stages unread. A warpgroup without rows in C calls this, not `consume_one_tile`."""
    var stages = cta.stages(CONSUMER)
    skip_tile(consumer, stages, k_iterations)
