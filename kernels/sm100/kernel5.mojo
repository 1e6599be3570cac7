"""Kernel 5: multicast and MMA without a pipeline. One stage, four warps.

One thread loads a stage, waits for it, multiplies it, and waits until it may load the next. A CTA never waits for the
whole cluster: the commit that follows an MMA arrives only at the CTAs that wrote into its operands, and a CTA loads
again when the MMAs that read its slices have all arrived. Afterwards all four warps write out the tile.
"""
from ..common.config import GemmConfig
from ..common.cta import Cta
from ..common.epilogue_store import write_tile
from ..common.loader import Loader
from ..common.problem import Problem
from ..common.ptx import mbarrier_wait
from ..common.ring import Ring
from ..common.scheduler import Tile, TileScheduler
from .epilogue import Epilogue
from .mainloop import Multiplier
from max.gpu.primitives.cluster import elect_one_sync
from max.gpu.sync import syncwarp


@inline(.always)
def load_and_multiply[config: GemmConfig](cta: Cta[config], problem: Problem, tile: Tile):
    """The K loop. Only the even CTA of a pair waits for full stages and multiplies; both load."""
    var loader = Loader[config](cta, problem)
    var multiplier = Multiplier[config](cta)
    var ring = Ring[1](parity=0)
    for k in range(problem.k_iterations):
        mbarrier_wait(cta.empty(0), ring.parity ^ 1)
        loader.load(cta, tile, 0, Int32(k) * Int32(config.block_k))
        if cta.in_pair() == 0:
            mbarrier_wait(cta.full(0), ring.parity)
            multiplier.multiply(cta, 0, 0, k > 0)
        ring.advance()
    if cta.in_pair() == 0:
        multiplier.publish(cta, 0)
    # Drain: the last commits of other CTAs must not find this one gone.
    mbarrier_wait(cta.empty(0), ring.parity ^ 1)


@inline(.always)
def kernel5[config: GemmConfig](cta: Cta[config], problem: Problem, tiles: TileScheduler[config]):
    """What the threads of a CTA do between its start and its end."""
    if cta.warp == 0:
        if elect_one_sync():
            load_and_multiply(cta, problem, tiles.tile)
        syncwarp()
    write_tile[config](Epilogue[config](cta, tiles.tile, Ring[config.accumulators](parity=0)), problem.c)
