"""Kernel 5 of sm_90a: multicast and wgmma without a pipeline. One stage, one or two warpgroups.

One thread loads a stage; all threads wait for it, multiply it, and wait for the result. A CTA never waits for the whole
cluster: the warpgroups that have read a stage arrive only at the CTAs that wrote into it, and a CTA loads again when
all readers of its slices have arrived. At the end each warpgroup writes its rows."""
from ..common.config import GemmConfig
from ..common.cta import Cta, Problem, Tile
from ..common.epilogue_store import write_tile
from ..common.pipeline import CONSUMER
from ..common.producer import Loader
from .warpgroup import sync_warpgroup
from .epilogue import Epilogue
from .mainloop import Consumer
from .wgmma import Accumulator
from max.gpu.primitives.cluster import elect_one_sync
from max.gpu.sync import syncwarp


@inline(.always)
def load_and_multiply[config: GemmConfig](cta: Cta[config], problem: Problem, tile: Tile) -> Accumulator[config]:
    """Runs the K loop. All threads call this. Returns the rows of this thread's warpgroup."""
    var loader = Loader[config](cta, problem, problem.n)
    var consumer = Consumer[config](cta)
    var accumulator = Accumulator[config]()
    var stage = cta.stages(CONSUMER)
    var multiplies = consumer.owns_rows(tile, problem)
    for k in range(problem.k_iterations):
        if cta.warp == 0:
            # The warp elects a thread each time: if ptxas cannot prove that one thread runs, it adds a loop to each
            # load.
            if elect_one_sync():
                stage.as_producer().producer_acquire()
                loader.expect_and_load(cta, tile, 0, Int32(k) * Int32(config.stage_columns()))
            syncwarp()
        stage.consumer_wait()
        if multiplies:
            consumer.multiply(accumulator, 0)
        else:
            sync_warpgroup(consumer.group)  # as a multiplication does (skip_tile)
        accumulator.wait[0]()
        consumer.release(0)
        stage.advance()
    # Drain: this CTA must not exit before the last arrivals of other CTAs.
    if cta.warp == 0:
        if elect_one_sync():
            stage.as_producer().producer_acquire()
        syncwarp()
    return accumulator


@inline(.always)
def kernel5[config: GemmConfig](cta: Cta[config], problem: Problem, tile: Tile):
    """Runs all roles of a CTA after `start` (start.mojo)."""
    var accumulator = load_and_multiply(cta, problem, tile)
    write_tile[config](Epilogue[config](cta, tile, accumulator), problem.c)
