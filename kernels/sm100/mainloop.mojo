"""The MMA thread: multiplies stages of A and B into the accumulators in TMEM."""
from ..common.config import ELEMENT_BYTES, MMA_K, GemmConfig
from ..common.cta import Cta, Problem
from ..common.pipeline import CONSUMER, PRODUCER
from ..common.scheduler import TileScheduler
from .tcgen05 import commit, fence_after_thread_sync, mma, operand_descriptor, tmem_address
from max.gpu.primitives.cluster import elect_one_sync


struct Multiplier[config: GemmConfig](TrivialRegisterPassable):
    """Multiplies stages of A and B into the accumulators in TMEM. One thread of the CTA that leads the MMA."""

    var a: UInt64
    var b: UInt64
    var tmem: UInt32

    @inline(.always)
    def __init__(out self, cta: Cta[Self.config]):
        self.a = operand_descriptor(cta.shared + UInt32(cta.layout.a))
        self.b = operand_descriptor(cta.shared + UInt32(cta.layout.b))
        self.tmem = tmem_address(cta)

    @inline(.always)
    def multiply(self, stage: UInt32, accumulator: UInt32, accumulate: Bool):
        """Starts to add a full stage to an accumulator, or to nothing. A commit says when it is done."""
        fence_after_thread_sync()
        var a = self.a + UInt64(stage * UInt32(Self.config.a_bytes() // 16))
        var b = self.b + UInt64(stage * UInt32(Self.config.b_bytes() // 16))
        var tmem = self.tmem + accumulator * UInt32(Self.config.accumulator_columns())
        comptime for step in range(Self.config.block_k // MMA_K):
            comptime advance = UInt64(step * MMA_K * ELEMENT_BYTES // 16)
            mma[Self.config](tmem, a + advance, b + advance, accumulate or step > 0)


@inline(.always)
def multiply[config: GemmConfig](cta: Cta[config], problem: Problem, var tiles: TileScheduler[config]):
    """One thread of the CTA that leads the MMA multiplies the stages of each tile into the next accumulator. A commit
    arrives when the MMAs before it are done: on the empty barriers of all CTAs that wrote into the stage, and at the end of
    a tile on the full barriers of the accumulator in both CTAs of a pair."""
    if cta.leads_mma():
        if elect_one_sync():
            var multiplier = Multiplier[config](cta)
            var writers = cta.stage_writers()
            var stages = cta.stages(CONSUMER)
            var accumulators = cta.accumulators(PRODUCER)
            while tiles.has_tile():
                comptime if config.is_persistent():
                    accumulators.producer_acquire()
                for k in range(problem.k_iterations):
                    stages.consumer_wait()
                    multiplier.multiply(stages.stage, accumulators.stage, k > 0)
                    commit[config.cta_group](stages.empty(), writers)  # consumer release
                    stages.advance()
                commit[config.cta_group](accumulators.full(), cta.pair())  # producer commit
                accumulators.advance()
                tiles.advance(cta)
