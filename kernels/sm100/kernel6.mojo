"""Kernel 6: a multi-stage pipeline and specialised warps. Loads, MMAs and waiting overlap.

    warps 0-3  epilogue   wait for the finished accumulator, write the whole tile of C
    warp 4     producer   one thread fills stages by TMA: waits on empty barriers
    warp 5     MMA        one thread of the even CTA of a pair reads them: waits on full barriers

The way of a stage: the producers of all CTAs that share a tile each load one slice of it and multicast it. The full
barrier of the pair's even CTA counts the bytes. The MMA thread waits for them, issues the MMAs, and commits: when these
have read the stage, the commit arrives at the empty barrier of every CTA that wrote into it. A producer writes a stage
again only after every MMA that reads its slices has arrived.
"""
from ..common.config import GemmConfig
from ..common.cta import Cta, Problem, Tile
from ..common.epilogue_store import write_tile
from ..common.producer import produce_tile
from .epilogue import EPILOGUE_WARPS, wait_for_accumulator
from .mainloop import multiply_tile
from max.gpu.primitives.cluster import elect_one_sync

comptime PRODUCER_WARP = EPILOGUE_WARPS


@inline(.always)
def kernel6[config: GemmConfig](cta: Cta[config], problem: Problem, tile: Tile):
    """Runs all roles of a CTA between `start` and `finish` (start_and_finish.mojo)."""
    if cta.warp < EPILOGUE_WARPS:
        write_tile[config](wait_for_accumulator(cta, tile), problem.c)
    elif cta.warp == PRODUCER_WARP:
        if elect_one_sync():
            produce_tile(cta, problem, tile)
    else:
        multiply_tile(cta, problem)
