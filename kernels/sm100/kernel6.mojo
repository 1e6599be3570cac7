"""Kernel 6: a ring of stages and specialised warps. Loads, MMAs and waiting overlap.

    warps 0-3  epilogue   wait for the finished accumulator, write the whole tile of C
    warp 4     producer   one thread fills the ring by TMA: waits on empty barriers
    warp 5     MMA        one thread of the even CTA of a pair empties it: waits on full barriers

How a stage goes through the ring: the producers of all CTAs that share a tile each load a slice of it and multicast it;
the bytes are counted on the full barrier of the pair's even CTA. The MMA thread waits for them, issues the MMAs, and
commits: when they have read the stage, one arrival goes to the empty barrier of every CTA that wrote into it. A
producer writes a stage again only after every MMA that reads its slices has arrived.
"""
from ..common.config import GemmConfig
from ..common.cta import Cta
from ..common.epilogue_store import write_tile
from ..common.loader import produce
from ..common.problem import Problem
from ..common.ring import Ring
from ..common.scheduler import TileScheduler
from .epilogue import EPILOGUE_WARPS, Epilogue
from .mainloop import consume
from max.gpu.primitives.cluster import elect_one_sync

comptime PRODUCER_WARP = EPILOGUE_WARPS


@inline(.always)
def kernel6[config: GemmConfig](cta: Cta[config], problem: Problem, tiles: TileScheduler[config]):
    """What the threads of a CTA do between its start and its end."""
    if cta.warp < EPILOGUE_WARPS:
        write_tile[config](Epilogue[config](cta, tiles.tile, Ring[config.accumulators](parity=0)), problem.c)
    elif cta.warp == PRODUCER_WARP:
        if elect_one_sync():
            produce(cta, problem, tiles)
    else:
        consume(cta, problem, tiles)
