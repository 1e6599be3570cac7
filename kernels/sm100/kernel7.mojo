"""Kernel 7: kernel 6 with a double-buffered epilogue store.

The epilogue warps write the tile of C in steps of `epilogue_width` columns through two buffers: they fill one while TMA
stores the other. The buffers take 16 KB of shared memory, not 64 KB, so a sixth stage fits. The producer and the MMA
thread are those of kernel 6.
"""
from ..common.config import GemmConfig
from ..common.cta import Cta, Problem, Tile
from ..common.epilogue_store import finish_stores, write_double_buffered
from ..common.producer import produce_tile
from .epilogue import EPILOGUE_WARPS, wait_for_accumulator
from .mainloop import multiply_tile
from max.gpu.primitives.cluster import elect_one_sync

comptime PRODUCER_WARP = EPILOGUE_WARPS


@inline(.always)
def kernel7[config: GemmConfig](cta: Cta[config], problem: Problem, tile: Tile):
    """Runs all roles of a CTA between `start` and `finish` (start_and_finish.mojo)."""
    if cta.warp < EPILOGUE_WARPS:
        var epilogue = wait_for_accumulator(cta, tile)
        write_double_buffered[config](epilogue, problem.c)
        finish_stores(epilogue.leads())
    elif cta.warp == PRODUCER_WARP:
        if elect_one_sync():
            produce_tile(cta, problem, tile)
    else:
        multiply_tile(cta, problem)
