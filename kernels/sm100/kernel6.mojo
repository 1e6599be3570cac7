"""Kernel 6: a ring of stages and specialised warps. Loads, MMAs and waiting overlap.

    warps 0-3  epilogue   wait for the finished accumulator, write the whole tile of C
    warp 4     producer   one thread fills the ring by TMA: waits on empty barriers
    warp 5     MMA        one thread of the even CTA of a pair empties it: waits on full barriers

A stage goes round like this. The producers of all CTAs that share a tile each load a slice of it and multicast it;
the bytes are counted on the full barrier of the pair's even CTA. The MMA thread waits for them, issues the MMAs, and
commits: when they have read the stage, one arrival goes to the empty barrier of every CTA that wrote into it. A
producer writes a stage again only after every MMA that reads its slices has arrived.
"""
from ..common.config import GemmConfig
from ..common.ptx import mbarrier_wait
from .cta import Cta
from .epilogue import write_tile
from .mainloop import Loader, Multiplier, Ring
from max.gpu.primitives.cluster import elect_one_sync

comptime EPILOGUE_WARPS = 4
comptime PRODUCER_WARP = 4


@inline(.always)
def produce[config: GemmConfig](cta: Cta[config], a_map: UInt64, b_map: UInt64, k_iterations: UInt32):
    """Fills the ring, one stage for each K step, then waits until every reader has released every stage. One thread."""
    if elect_one_sync():
        var loader = Loader[config](cta, a_map, b_map)
        var ring = Ring[config.stages](parity=1)
        var k: Int32 = 0
        for _ in range(k_iterations):
            mbarrier_wait(cta.empty(ring.stage), ring.parity)
            loader.load(cta, ring.stage, k)
            k += Int32(config.block_k)
            ring.advance()
        # Drain: the last commits of other CTAs must not find this one gone.
        comptime for _ in range(config.stages):
            mbarrier_wait(cta.empty(ring.stage), ring.parity)
            ring.advance()


@inline(.always)
def consume[config: GemmConfig](cta: Cta[config], k_iterations: UInt32):
    """Multiplies stage after stage as they become full, then hands the accumulator to the epilogues. One thread of
    the CTA that leads the MMA."""
    if cta.in_pair() == 0:
        if elect_one_sync():
            var multiplier = Multiplier[config](cta)
            var ring = Ring[config.stages](parity=0)
            for k in range(k_iterations):
                mbarrier_wait(cta.full(ring.stage), ring.parity)
                multiplier.multiply(cta, ring.stage, k > 0)
                ring.advance()
            multiplier.publish(cta)


@inline(.always)
def kernel6[config: GemmConfig](cta: Cta[config], a_map: UInt64, b_map: UInt64, c_map: UInt64, k_iterations: UInt32):
    """What the threads of a CTA do between its start and its end."""
    if cta.warp < EPILOGUE_WARPS:
        write_tile(cta, c_map)
    elif cta.warp == PRODUCER_WARP:
        produce(cta, a_map, b_map, k_iterations)
    else:
        consume(cta, k_iterations)
