"""Kernel 8: kernel 7 as a persistent kernel, with two accumulators.

    warps 0-3  epilogue   wait for a finished accumulator, write its tile, release it after the last load from TMEM
    warp 4     producer   one thread fills stages by TMA, and runs ahead into the next tile
    warp 5     MMA        one thread of the even CTA of a pair: waits for an empty accumulator, then for full stages
    warp 6     scheduler  with cluster launch control: one thread requests the next tile, ahead of all others

The pipeline of stages is that of kernel 6, and continues across tiles. While the epilogue warps read one accumulator,
the MMA thread fills the other. Before it fills one again, it waits for the epilogue warps of both CTAs of the pair,
because its MMAs write into the TMEM of both.

Every role has its own tile scheduler; all give the same tiles."""
from ..common.cta import Cta, Problem
from ..common.epilogue_store import finish_stores, write_step
from ..common.layer import Layer
from ..common.layer_box import LayerRows
from ..common.layer_config import LayerConfig
from ..common.layer_order import LayerTiles
from ..common.pipeline import CONSUMER, PRODUCER
from ..common.schedule import *
from ..common.scheduler import request_tiles
from ..common.tile_producer import produce_tiles
from .epilogue import EPILOGUE_WARPS, release_accumulator, wait_for_accumulator
from .layer_epilogue import write_results
from .mainloop import Multiplier
from .tcgen05 import commit
from max.gpu.primitives.cluster import elect_one_sync

comptime PRODUCER_WARP = EPILOGUE_WARPS
comptime MMA_WARP = PRODUCER_WARP + 1


@inline(.always)
def multiply_tiles[config: LayerConfig](cta: Cta[config.gemm], problem: Problem, var tiles: LayerTiles[config]):
    """Multiplies the stages of each tile into the next accumulator. One thread of the CTA that leads the MMA calls
    this. A tile's last commit arrives at the full barriers of its accumulator in both CTAs of a pair."""
    var multiplier = Multiplier[config.gemm](cta)
    var writers = cta.writer_mask()
    var stages = cta.stages(CONSUMER)
    var accumulators = cta.accumulators(PRODUCER)
    while tiles.has_tile():
        accumulators.producer_acquire()
        for k in range(tiles.order.k_steps(tiles.number)):
            stages.consumer_wait()
            multiplier.multiply(stages.stage, accumulators.stage, k > 0)
            commit[config.gemm.cta_group](stages.empty(), writers)  # consumer release
            stages.advance()
        commit[config.gemm.cta_group](accumulators.full(), cta.pair_mask())  # producer commit
        accumulators.advance()
        tiles.wait_for_next_tile(cta)


@inline(.always)
def write_tiles[config: LayerConfig](cta: Cta[config.gemm], problem: Problem, var tiles: LayerTiles[config]):
    """Writes tile after tile, accumulator after accumulator. Four warps call this."""
    comptime last = config.gemm.epilogue_steps() - 1
    var accumulators = cta.accumulators(CONSUMER)
    while tiles.has_tile():
        var epilogue = wait_for_accumulator[Rows=LayerRows[config]](
            cta, tiles.tile, accumulators.stage, accumulators.parity
        )
        comptime for step in range(config.gemm.epilogue_steps()):
            var values = epilogue.load[step]()
            comptime if step == last:
                release_accumulator(epilogue)  # consumer release
            write_step[config.gemm, step](epilogue, epilogue.pack_words(values), problem.c)
        accumulators.advance()
        tiles.wait_for_next_tile[whole_warp=True](cta)
        if not tiles.has_tile():
            finish_stores(epilogue.leads())


@inline(.always)
def kernel8[config: LayerConfig](cta: Cta[config.gemm], problem: Problem, layer: Layer, tiles: LayerTiles[config]):
    """Runs all roles of a CTA between `start` and `finish` (start_and_finish.mojo)."""
    if cta.warp < EPILOGUE_WARPS:
        comptime if config.stores_product():
            write_tiles(cta, problem, tiles)
        else:
            write_results(cta, problem, layer, tiles)
    elif cta.warp == PRODUCER_WARP:
        if elect_one_sync():
            produce_tiles(cta, problem, layer, tiles)
    elif cta.warp == MMA_WARP:
        if cta.leads_mma():
            if elect_one_sync():
                multiply_tiles(cta, problem, tiles)
    else:
        comptime if config.gemm.fetches_tiles():
            if elect_one_sync():
                request_tiles(cta, tiles)
