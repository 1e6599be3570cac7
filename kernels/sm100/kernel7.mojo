"""Kernel 7: kernel 6 with a double-buffered epilogue store.

The tile of C leaves in steps of `epilogue_width` columns through two small buffers: while TMA stores one, the
warps fill the other. That needs 16 KB of shared memory instead of 64 KB; a sixth stage fits. Producer and MMA thread
do what they do in kernel 6.
"""
from ..common.config import GemmConfig
from ..common.cta import Cta, Problem
from ..common.epilogue_store import finish_stores, write_double_buffered
from ..common.producer import produce
from ..common.scheduler import TileScheduler
from .epilogue import EPILOGUE_WARPS, wait_for_accumulator
from .mainloop import multiply
from max.gpu.primitives.cluster import elect_one_sync

comptime PRODUCER_WARP = EPILOGUE_WARPS


@inline(.always)
def kernel7[config: GemmConfig](cta: Cta[config], problem: Problem, tiles: TileScheduler[config]):
    """What the threads of a CTA do between its start and its end."""
    if cta.warp < EPILOGUE_WARPS:
        var epilogue = wait_for_accumulator(cta, tiles.tile)
        write_double_buffered[config](epilogue, problem.c)
        finish_stores(epilogue.leads())
    elif cta.warp == PRODUCER_WARP:
        if elect_one_sync():
            produce(cta, problem, tiles)
    else:
        multiply(cta, problem, tiles)
