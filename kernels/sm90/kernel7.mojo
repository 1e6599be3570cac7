"""Kernel 7 of sm_90a: kernel 6 with a double-buffered epilogue store.

The rows of a warpgroup leave in steps of `epilogue_width` columns through two small buffers: while TMA stores
one, the warps fill the other. That needs 16 KB of shared memory instead of 64 KB; a fourth stage of the ring fits. The
grid is cut into bands, so that CTAs that run together find each other's operands in the L2 cache: see LaunchPlan.
"""
from ..common.config import GemmConfig
from ..common.cta import Cta, Problem
from ..common.epilogue_store import finish_stores, write_double_buffered
from ..common.producer import produce
from ..common.scheduler import TileScheduler
from .cta import warp_of_group
from .epilogue import Epilogue
from .kernel6 import give_registers, is_producer, take_registers
from .mainloop import Consumer, consume, drain_without_mma
from max.gpu.primitives.cluster import elect_one_sync


@inline(.always)
def kernel7[config: GemmConfig](cta: Cta[config], problem: Problem, tiles: TileScheduler[config]):
    """What the threads of a CTA do after its start."""
    if is_producer(cta):
        give_registers[config]()
        if warp_of_group(cta) == 0:
            if elect_one_sync():
                produce(cta, problem, tiles)
    else:
        take_registers[config]()
        var consumer = Consumer[config](cta)
        if consumer.owns_rows(tiles.tile, problem):
            var accumulator = consume(cta, consumer, problem.k_iterations)
            var epilogue = Epilogue[config](cta, tiles.tile, accumulator)
            write_double_buffered[config](epilogue, problem.c)
            finish_stores(epilogue.leads())
        else:
            drain_without_mma(cta, consumer, problem.k_iterations)
