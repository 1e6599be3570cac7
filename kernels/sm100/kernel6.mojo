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
from ..common.cta import Cta
from ..common.loader import produce
from ..common.ptx import mbarrier_wait
from ..common.ring import Ring
from ..common.write_out import write_tile
from .epilogue import EPILOGUE_WARPS, Epilogue
from .mainloop import Multiplier
from max.gpu.primitives.cluster import elect_one_sync

comptime PRODUCER_WARP = EPILOGUE_WARPS


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
        write_tile[config](Epilogue[config](cta), c_map)
    elif cta.warp == PRODUCER_WARP:
        if elect_one_sync():
            produce(cta, a_map, b_map, k_iterations)
    else:
        consume(cta, k_iterations)
