"""Kernel 5: multicast and MMA without a pipeline. One stage, four warps.

One thread loads a stage, waits for it, multiplies it, and waits until it may load the next. A CTA never waits for the
whole cluster: the commit after an MMA arrives only at the CTAs that wrote its operands, and a CTA loads again when all
MMAs that read its slices have arrived. At the end all four warps write the tile.
"""
from ..common.config import GemmConfig
from ..common.cta import Cta, Problem, Tile
from ..common.epilogue_store import write_tile
from ..common.pipeline import CONSUMER
from ..common.producer import Loader
from .epilogue import wait_for_accumulator
from .mainloop import Multiplier
from .tcgen05 import commit
from max.gpu.primitives.cluster import elect_one_sync
from max.gpu.sync import syncwarp


@inline(.always)
def load_and_multiply[config: GemmConfig](cta: Cta[config], problem: Problem, tile: Tile):
    """Runs the K loop. Every CTA loads; only the CTA that leads the MMA waits for full stages and multiplies."""
    var loader = Loader[config](cta, problem, problem.n)
    var multiplier = Multiplier[config](cta)
    var writers = cta.writer_mask()
    var stage = cta.stages(CONSUMER)
    for k in range(problem.k_iterations):
        stage.as_producer().producer_acquire()
        loader.expect_and_load(cta, tile, 0, Int32(k) * Int32(config.stage_columns()))
        if cta.leads_mma():
            stage.consumer_wait()
            multiplier.multiply(0, 0, k > 0)
            commit[config.cta_group](stage.empty(), writers)
        stage.advance()
    if cta.leads_mma():
        commit[config.cta_group](cta.accumulator_full(), cta.pair_mask())
    # Drain: this CTA must not exit before the last commits of other CTAs have arrived.
    stage.as_producer().producer_acquire()


@inline(.always)
def kernel5[config: GemmConfig](cta: Cta[config], problem: Problem, tile: Tile):
    """Runs all roles of a CTA between `start` and `finish` (start_and_finish.mojo)."""
    if cta.warp == 0:
        if elect_one_sync():
            load_and_multiply(cta, problem, tile)
        syncwarp()
    write_tile[config](wait_for_accumulator(cta, tile), problem.c)
