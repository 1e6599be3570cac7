"""The producer that loads tile after tile."""
from .cta import Cta, Problem
from .launch_control import launch_dependents
from .layer import Layer
from .layer_config import LayerConfig
from .layer_order import LayerTiles
from .pipeline import PRODUCER
from .producer import Loader
from .scale_loader import ScaleLoader
from .schedule import *


@inline(.always)
def produce_tiles[
    config: LayerConfig
](cta: Cta[config.gemm], problem: Problem, layer: Layer, var tiles: LayerTiles[config]):
    """Fills a stage for each K step of each tile, or of its part with split-K. One thread of every CTA calls this. It
    runs ahead: it loads the first stages of the next tile while the last ones of this tile are multiplied."""
    var b_rows = problem.n
    comptime if config.grouped:
        b_rows *= layer.groups.count
    var loader = Loader[config.gemm](cta, problem, b_rows)
    var scale_loader = ScaleLoader[config](cta, problem, layer)
    var stages = cta.stages(PRODUCER)
    while tiles.has_tile():
        var k: Int32 = 0
        comptime if config.splits_k():
            k = Int32(tiles.order.first_k_step(tiles.number) * UInt32(config.gemm.stage_columns()))
        for _ in range(tiles.order.k_steps(tiles.number)):
            stages.producer_acquire()
            loader.expect_and_load(cta, tiles.tile, stages.stage, k)
            comptime if config.has_scale_factors():
                scale_loader.load(cta, tiles.tile, stages.stage, k)
            k += Int32(config.gemm.stage_columns())
            stages.advance()
        tiles.wait_for_next_tile(cta)
    comptime if config.gemm.overlaps_launches():
        launch_dependents()  # if wait_for_previous_grid (sm90/start.mojo) has not done so
    stages.producer_tail()
