"""Kernel 8: kernel 7 as a persistent kernel, with two accumulators.

    warps 0-3  epilogue   wait for a finished accumulator, write its tile, release it after the last load from TMEM
    warp 4     producer   one thread fills the ring by TMA, and runs ahead into the next tile
    warp 5     MMA        one thread of the even CTA of a pair: waits for an empty accumulator, then for full stages
    warp 6     scheduler  with cluster launch control: one thread requests the next tile, ahead of all others

The ring of stages is that of kernel 6, and runs on across tiles. While the epilogues write one accumulator, the MMA
thread fills the other; it waits for the epilogues of both CTAs of the pair before it fills one again, because its MMAs
write into the TMEM of both.

Every role gets the same tiles, each from its own TileScheduler.
"""
from ..common.config import GemmConfig
from ..common.cta import Cta
from ..common.epilogue_store import finish_stores, write_double_buffered
from ..common.loader import produce
from ..common.problem import Problem
from ..common.ring import Ring
from ..common.scheduler import TileScheduler, request_tiles
from .epilogue import EPILOGUE_WARPS, Epilogue
from .kernel6 import PRODUCER_WARP
from .mainloop import consume
from max.gpu.primitives.cluster import elect_one_sync

comptime MMA_WARP = PRODUCER_WARP + 1


@inline(.always)
def write_tiles[config: GemmConfig](cta: Cta[config], problem: Problem, var tiles: TileScheduler[config]):
    """The epilogue warps: tile after tile, accumulator after accumulator."""
    var accumulators = Ring[config.accumulators](parity=0)
    while tiles.has_tile():
        var epilogue = Epilogue[config](cta, tiles.tile, accumulators)
        write_double_buffered[config](epilogue, problem.c)
        accumulators.advance()
        tiles.advance[whole_warp=True](cta)
        if not tiles.has_tile():
            finish_stores(epilogue.leads())


@inline(.always)
def kernel8[config: GemmConfig](cta: Cta[config], problem: Problem, tiles: TileScheduler[config]):
    """What the threads of a CTA do between its start and its end."""
    if cta.warp < EPILOGUE_WARPS:
        write_tiles(cta, problem, tiles)
    elif cta.warp == PRODUCER_WARP:
        if elect_one_sync():
            produce(cta, problem, tiles)
    elif cta.warp == MMA_WARP:
        consume(cta, problem, tiles)
    else:
        comptime if config.fetches_tiles():
            if elect_one_sync():
                request_tiles(cta, tiles)
