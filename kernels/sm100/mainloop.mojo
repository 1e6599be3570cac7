"""The main loop of sm_100a: one thread multiplies stage after stage into an accumulator in tensor memory."""
from ..common.config import MMA_K_BYTES, SWIZZLE_ROW_BYTES, GemmConfig, k_advance
from ..common.cta import Cta, Problem
from ..common.pipeline import CONSUMER
from .start_and_finish import tmem_address
from .tcgen05 import commit, fence_after_thread_sync, mma, operand_descriptor
from max.gpu.primitives.cluster import elect_one_sync


struct Multiplier[config: GemmConfig](TrivialRegisterPassable):
    """Issues MMAs. One thread of the CTA that leads the MMA uses it."""

    var a: UInt64
    var b: UInt64
    var tmem: UInt32

    @inline(.always)
    def __init__(out self, cta: Cta[Self.config]):
        self.a = operand_descriptor(cta.shared + UInt32(cta.layout.a), Self.config.a_mn_major())
        self.b = operand_descriptor(cta.shared + UInt32(cta.layout.b), Self.config.b_mn_major())
        self.tmem = tmem_address(cta)

    @inline(.always)
    def multiply(self, stage: UInt32, accumulator: UInt32, accumulate: Bool):
        """Starts the MMAs of a full stage, which overwrite the accumulator or, if `accumulate`, add to it."""
        fence_after_thread_sync()
        var a = self.a + UInt64(stage * UInt32(Self.config.a_bytes() // 16))
        var b = self.b + UInt64(stage * UInt32(Self.config.b_bytes() // 16))
        var tmem = self.tmem + accumulator * UInt32(Self.config.accumulator_columns())
        comptime for step in range(SWIZZLE_ROW_BYTES // MMA_K_BYTES):
            comptime a_advance = k_advance(step, Self.config.a_mn_major())
            comptime b_advance = k_advance(step, Self.config.b_mn_major())
            mma[Self.config](tmem, a + a_advance, b + b_advance, accumulate or step > 0)


@inline(.always)
def multiply_tile[config: GemmConfig](cta: Cta[config], problem: Problem):
    """Multiplies the stages of the only tile of a CTA, in one thread of the CTA that leads the MMA. A commit arrives
    when all earlier MMAs are done: for a stage, at the empty barriers of all CTAs that wrote into it; for the tile, at
    the full barriers of the accumulator in both CTAs of a pair."""
    if cta.leads_mma():
        if elect_one_sync():
            var multiplier = Multiplier[config](cta)
            var writers = cta.writer_mask()
            var stages = cta.stages(CONSUMER)
            for k in range(problem.k_iterations):
                stages.consumer_wait()
                multiplier.multiply(stages.stage, 0, k > 0)
                commit[config.cta_group](stages.empty(), writers)  # consumer release
                stages.advance()
            commit[config.cta_group](cta.accumulator_full(), cta.pair_mask())
