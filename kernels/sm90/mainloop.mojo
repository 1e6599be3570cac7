"""The main loop of sm_90a: consumer warpgroups multiply stages, and release each to the CTAs that wrote into it."""
from ..common.config import GemmConfig
from ..common.cta import Cta, Problem, Tile
from ..common.pipeline import CONSUMER, MBarrier, Pipeline
from ..common.ptx import fence_proxy_async
from .cta import sync_warpgroup, warp_of_group, warpgroup
from .promotion import Promotion
from .wgmma import Accumulator, operand_descriptor
from max.gpu.sync import syncwarp


struct Consumer[config: GemmConfig](TrivialRegisterPassable):
    """The operands that one consumer warpgroup reads, and the barriers that it signals."""

    var group: UInt32
    var row: Int32  # this warpgroup's first row in a tile
    var a: UInt64
    var b: UInt64
    var empty: MBarrier  # the first empty barrier of the CTA whose rank is this thread's lane
    var signals: Bool  # this thread arrives there: that CTA writes into the stages of this one
    var promotion: Promotion[Self.config]

    @inline(.always)
    def __init__(out self, cta: Cta[Self.config]):
        comptime rows_bytes = Self.config.a_bytes() // Self.config.consumers_of_tile()
        self.group = warpgroup(cta)
        var part = self.group % UInt32(Self.config.consumers_of_tile())
        self.row = Int32(part) * Int32(Self.config.consumer_m())
        self.a = operand_descriptor(
            cta.shared + UInt32(cta.layout.a) + part * UInt32(rows_bytes), Self.config.a_mn_major()
        )
        self.b = operand_descriptor(cta.shared + UInt32(cta.layout.b), Self.config.b_mn_major())
        var rank = min(cta.lane, UInt32(Self.config.cluster_size() - 1))
        self.empty = cta.empty().in_cta(rank)
        self.signals = cta.lane == rank and cta.writer_mask() >> rank & 1 == 1
        comptime if not Self.config.promotes():  # with promotion, every warp arrives (`empty_arrivals`)
            self.signals = self.signals and warp_of_group(cta) == 0
        self.promotion = {cta, self.row}

    @inline(.always)
    def owns_rows(self, tile: Tile, problem: Problem) -> Bool:
        """This warpgroup has a row in C."""
        return tile.row + self.row < tile.end and tile.column < Int32(problem.n)

    @inline(.always)
    def multiply[*, first_stage: Bool = False](self, mut accumulator: Accumulator[Self.config], stage: UInt32):
        """Starts to multiply a stage, and adds it to the accumulator. The `first_stage` of a tile overwrites it."""
        accumulator.multiply[first_stage=first_stage](
            self.a + UInt64(stage * UInt32(Self.config.a_bytes() // 16)),
            self.b + UInt64(stage * UInt32(Self.config.b_bytes() // 16)),
        )

    @inline(.always)
    def multiply_piece[piece: Int](mut self, stage: UInt32):
        """Starts to multiply a piece of a stage (promotion.mojo)."""
        self.promotion.multiply[piece](
            self.a + UInt64(stage * UInt32(Self.config.a_bytes() // 16)),
            self.b + UInt64(stage * UInt32(Self.config.b_bytes() // 16)),
        )

    @inline(.always)
    def release(self, stage: UInt32):
        """Arrives at the empty barriers of all CTAs that write into the stage, one thread at each. A wait for the MMAs
        of the stage must come before; it covers the whole warpgroup."""
        if self.signals:
            self.empty.next(stage).arrive()


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
def multiply_stage[
    config: GemmConfig, *, first_stage: Bool = False
](
    cta: Cta[config],
    mut consumer: Consumer[config],
    mut accumulator: Accumulator[config],
    mut stages: Pipeline[config.stages],
    mut previous: UInt32,
):
    """Waits for the next stage and starts to multiply it, then waits for the previous one and releases it, so that the
    tensor core always has work. With promotion, it multiplies and releases one stage at a time."""
    comptime if config.promotes():
        return promote_stage[first_stage=first_stage](cta, consumer, accumulator, stages)
    stages.consumer_wait()
    consumer.multiply[first_stage=first_stage](accumulator, stages.stage)
    comptime if config.stages == 1:
        accumulator.wait[0]()
        consumer.release(stages.stage)
    elif not first_stage:
        accumulator.wait[1]()
        consumer.release(previous)
    previous = stages.stage
    stages.advance()


@inline(.always)
def promote_stage[
    config: GemmConfig, *, first_stage: Bool
](
    cta: Cta[config],
    mut consumer: Consumer[config],
    mut accumulator: Accumulator[config],
    mut stages: Pipeline[config.stages],
):
    """Waits for the next stage, multiplies it, releases it, and promotes its sums with its scale factors."""
    comptime pieces = Promotion[config].pieces
    stages.consumer_wait()
    var factors = consumer.promotion.factors[first_stage=first_stage](stages.stage)
    comptime for piece in range(pieces):
        consumer.multiply_piece[piece](stages.stage)
        comptime if piece == 0:
            fence_proxy_async()  # the async proxy writes the next factors: only after these reads
        accumulator.wait[0]()
        comptime if piece == pieces - 1:
            syncwarp()  # all lanes have read their factors; one lane arrives
            consumer.release(stages.stage)
        consumer.promotion.promote[piece, first_stage=first_stage](factors, accumulator)
    stages.advance()


@inline(.always)
def start_tile[
    config: GemmConfig, Job: SideJob
](
    cta: Cta[config],
    mut consumer: Consumer[config],
    mut accumulator: Accumulator[config],
    mut stages: Pipeline[config.stages],
    k_iterations: UInt32,
    job: Job,
) -> UInt32:
    """Multiplies stage after stage as they become full, and does the whole job meanwhile: one step after the start of
    each stage, the rest after the last. Returns the last stage for `finish_tile`.

    The code for the first stages is unrolled, each with its step, because registers cannot be indexed at run time."""
    var last: UInt32 = 0
    multiply_stage[first_stage=True](cta, consumer, accumulator, stages, last)
    comptime for step in range(Job.steps):
        job.run[step]()
        stages.pin()
        if UInt32(step + 1) < k_iterations:
            multiply_stage(cta, consumer, accumulator, stages, last)
    comptime first = Job.steps + 1
    for _ in range(UInt32(first), max(UInt32(first), k_iterations)):
        multiply_stage(cta, consumer, accumulator, stages, last)
    return last


@inline(.always)
def finish_tile[config: GemmConfig](consumer: Consumer[config], accumulator: Accumulator[config], last: UInt32):
    """Waits for all MMAs and releases the last stage."""
    comptime if config.stages > 1 and not config.promotes():
        accumulator.wait[0]()
        consumer.release(last)


@inline(.always)
def skip_tile[
    config: GemmConfig
](cta: Cta[config], consumer: Consumer[config], mut stages: Pipeline[config.stages], k_iterations: UInt32):
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
    var last = start_tile(cta, consumer, accumulator, stages, k_iterations, NoSideJob())
    finish_tile(consumer, accumulator, last)
    return accumulator


@inline(.always)
def skip_one_tile[config: GemmConfig](cta: Cta[config], consumer: Consumer[config], k_iterations: UInt32):
    """Releases all stages unread. A warpgroup without rows in C calls this, not `consume_one_tile`."""
    var stages = cta.stages(CONSUMER)
    skip_tile(cta, consumer, stages, k_iterations)
