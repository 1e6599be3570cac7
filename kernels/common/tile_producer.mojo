"""The producer that loads tile after tile. On sm_90a, kernels 6 and 7 use it for their one tile."""
from .config import GemmConfig
from .cta import Cta, Problem
from .pipeline import PRODUCER
from .producer import Loader
from .ptx import launch_dependents
from .scale_loader import ScaleLoader
from .scheduler import TileScheduler


@inline(.always)
def produce_tiles[config: GemmConfig](cta: Cta[config], problem: Problem, var tiles: TileScheduler[config]):
    """Fills a stage for each K step of each tile, or of its part with split-K. One thread of every CTA calls this. It
    runs ahead: it loads the first stages of the next tile while the last ones of this tile are multiplied."""
    var b_rows = problem.n
    comptime if config.grouped:
        b_rows *= problem.layer.groups.count
    var loader = Loader[config](cta, problem, b_rows)
    var scale_loader = ScaleLoader[config](cta, problem)
    var stages = cta.stages(PRODUCER)
    while tiles.has_tile():
        var k: Int32 = 0
        comptime if config.splits_k():
            k = Int32(tiles.first_k_step() * UInt32(config.stage_columns()))
        for _ in range(tiles.k_steps(problem.k_iterations)):
            stages.producer_acquire()
            loader.expect_and_load(cta, tiles.tile, stages.stage, k)
            comptime if config.has_scale_factors():
                scale_loader.load(cta, tiles.tile, stages.stage, k)
            k += Int32(config.stage_columns())
            stages.advance()
        tiles.wait_for_next_tile(cta)
    comptime if config.overlaps_launches():
        launch_dependents()  # if Cta.wait_for_previous_grid has not done so
    stages.producer_tail()
