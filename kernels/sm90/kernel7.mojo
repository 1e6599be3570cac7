"""Kernel 7 of sm_90a: kernel 6 with a double-buffered epilogue store.

A warpgroup writes its rows in steps of `epilogue_width` columns through two buffers: the warps fill one while TMA
stores the other. The buffers take 16 KB of shared memory, not 64 KB, so a fourth stage fits. The grid has bands, so
that CTAs that run at the same time share operands in the L2 cache (LaunchPlan)."""
from ..common.config import GemmConfig
from ..common.cta import Cta, Problem, Tile
from ..common.epilogue_store import finish_stores, write_double_buffered
from ..common.producer import produce_tile
from .warpgroup import warp_of_group
from .epilogue import Epilogue
from .kernel6 import give_registers, is_producer, take_registers
from .mainloop import Consumer, consume_one_tile, skip_one_tile
from max.gpu.primitives.cluster import elect_one_sync


@inline(.always)
def kernel7[config: GemmConfig](cta: Cta[config], problem: Problem, tile: Tile):
    """Runs all roles of a CTA after `start` (start.mojo)."""
    if is_producer(cta):
        give_registers[config]()
        if warp_of_group(cta) == 0:
            if elect_one_sync():
                produce_tile(cta, problem, tile)
    else:
        take_registers[config]()
        var consumer = Consumer[config](cta)
        if consumer.owns_rows(tile, problem):
            var accumulator = consume_one_tile(cta, consumer, problem.k_iterations)
            var epilogue = Epilogue[config](cta, tile, accumulator)
            write_double_buffered[config](epilogue, problem.c)
            finish_stores(epilogue.leads())
        else:
            skip_one_tile(cta, consumer, problem.k_iterations)
