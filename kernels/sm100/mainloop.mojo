"""Multiplying stages of A and B into the accumulators in TMEM."""
from ..common.config import ELEMENT_BYTES, MMA_K, GemmConfig
from ..common.cta import Cta
from ..common.problem import Problem
from ..common.ptx import mbarrier_wait
from ..common.ring import Ring
from ..common.scheduler import TileScheduler
from .cta import tmem_address
from .tcgen05 import commit, fence_after_thread_sync, mma, operand_descriptor
from max.gpu.primitives.cluster import elect_one_sync


struct Multiplier[config: GemmConfig](TrivialRegisterPassable):
    """Multiplies stages. One thread of the CTA that leads the MMA."""

    comptime sharing = Self.config.sharing()

    var a: UInt64
    var b: UInt64
    var tmem: UInt32
    var writers: UInt16  # CTAs whose slices land in the stages of this MMA

    @inline(.always)
    def __init__(out self, cta: Cta[Self.config]):
        self.a = operand_descriptor(cta.shared + UInt32(cta.layout.a))
        self.b = operand_descriptor(cta.shared + UInt32(cta.layout.b))
        self.tmem = tmem_address(cta)
        comptime sharing = Self.sharing
        self.writers = UInt16(sharing.commit_mask(cta.rank))

    @inline(.always)
    def multiply(self, cta: Cta[Self.config], stage: UInt32, accumulator: UInt32, accumulate: Bool):
        """Adds one stage to an accumulator, then signals everyone who wrote into the stage that it has been read."""
        fence_after_thread_sync()
        var a = self.a + UInt64(stage * UInt32(Self.config.a_bytes() // 16))
        var b = self.b + UInt64(stage * UInt32(Self.config.b_bytes() // 16))
        var tmem = self.tmem + accumulator * UInt32(Self.config.accumulator_columns())
        comptime for step in range(Self.config.block_k // MMA_K):
            comptime advance = UInt64(step * MMA_K * ELEMENT_BYTES // 16)
            mma[Self.config](tmem, a + advance, b + advance, accumulate or step > 0)
        commit[Self.config.cta_group](cta.empty(stage), self.writers)

    @inline(.always)
    def publish(self, cta: Cta[Self.config], accumulator: UInt32):
        """Signals the epilogues of all CTAs of the MMA that an accumulator is complete."""
        comptime sharing = Self.sharing
        commit[Self.config.cta_group](cta.accumulator_full(accumulator), UInt16(sharing.pair_mask(cta.rank)))


@inline(.always)
def consume[config: GemmConfig](cta: Cta[config], problem: Problem, var tiles: TileScheduler[config]):
    """Multiplies stage after stage as they become full, and commits each finished accumulator to the epilogues. One
    thread of the CTA that leads the MMA."""
    if cta.in_pair() == 0:
        if elect_one_sync():
            var multiplier = Multiplier[config](cta)
            var ring = Ring[config.stages](parity=0)
            var accumulators = Ring[config.accumulators](parity=1)
            while tiles.has_tile():
                comptime if config.is_persistent():
                    mbarrier_wait(cta.accumulator_empty(accumulators.stage), accumulators.parity)
                for k in range(problem.k_iterations):
                    mbarrier_wait(cta.full(ring.stage), ring.parity)
                    multiplier.multiply(cta, ring.stage, accumulators.stage, k > 0)
                    ring.advance()
                multiplier.publish(cta, accumulators.stage)
                accumulators.advance()
                tiles.advance(cta)
