"""Kernel 9: kernel 8 with block-scaled A and B (block_scaling.mojo). The differences:

    producer   a stage also holds scale factors, and its full barrier counts their bytes too
    MMA        one thread copies the scale factors of a stage to a slot of tensor memory. It first waits until the MMAs
               that used the slot are done, because nothing else orders a copy after them; later MMAs observe the copy
    epilogue   next to the slots, two accumulators of 256 columns overlap. The warps read and release the shared columns
               first. One pair of barriers serves both; the parity of a tile's phase selects the accumulator
"""
from ..common.block_scaling import SCALE_SLOTS, SCALES_EMPTY
from ..common.cta import Cta, Problem
from ..common.epilogue_store import finish_stores, write_step
from ..common.layer import Layer
from ..common.layer_box import LayerRows
from ..common.layer_config import LayerConfig
from ..common.layer_order import LayerTiles
from ..common.pipeline import CONSUMER, PRODUCER, Pipeline
from ..common.schedule import *
from ..common.scheduler import request_tiles
from ..common.series import find_kernel
from ..common.tile_producer import produce_tiles
from .block_scaled import ScaledMultiplier
from .epilogue import EPILOGUE_WARPS, Epilogue, release_accumulator, wait_for_accumulator
from .kernel8 import MMA_WARP, PRODUCER_WARP
from .quantise import quantise
from .tcgen05 import commit
from max.gpu.primitives.cluster import elect_one_sync

comptime KERNEL = find_kernel("kernel9")


__extension Epilogue:
    @inline(.always)
    def shifted_right(self, columns: Int32) -> Self:
        """Returns the epilogue of the columns this far to the right, in TMEM and in C."""
        var other = self
        other.tmem += UInt32(columns)
        other.column += columns
        other.values_column += UInt32(columns)
        return other


@inline(.always)
def multiply_scaled[config: LayerConfig](cta: Cta[config.gemm], problem: Problem, var tiles: LayerTiles[config]):
    """Multiplies the stages of each tile. One thread of the CTA that leads the MMA calls this."""
    var multiplier = ScaledMultiplier[config](cta)
    var stages = cta.stages(CONSUMER)
    # Copies into a slot and MMAs run in the order of issue, so the pipeline of slots needs no full barrier.
    var empty = cta.barrier[KERNEL, SCALES_EMPTY]()
    var slots = Pipeline[SCALE_SLOTS](empty, empty, PRODUCER)
    var accumulators = cta.accumulators(PRODUCER)
    while tiles.has_tile():
        accumulators.producer_acquire()
        var accumulator = (accumulators.parity ^ 1) % UInt32(config.accumulators)
        for k_step in range(problem.k_iterations):
            stages.consumer_wait()
            slots.producer_acquire()
            multiplier.copy_scales(stages.stage, slots.stage)
            multiplier.multiply(stages.stage, slots.stage, accumulator, k_step > 0)
            commit[config.gemm.cta_group](stages.empty(), cta.writer_mask())  # consumer release
            commit[config.gemm.cta_group](slots.empty(), UInt32(1) << cta.rank)  # the slot has been read
            stages.advance()
            slots.advance()
        commit[config.gemm.cta_group](accumulators.full(), cta.pair_mask())  # producer commit
        accumulators.advance()
        tiles.wait_for_next_tile(cta)
    slots.producer_tail()


@inline(.always)
def write_overlapping[
    config: LayerConfig
](cta: Cta[config.gemm], problem: Problem, layer: Layer, var tiles: LayerTiles[config]):
    """Writes tile after tile: accumulator 0 from right to left, 1 from left to right. Four warps call this."""
    var accumulators = cta.accumulators(CONSUMER)
    while tiles.has_tile():
        var accumulator = accumulators.parity % UInt32(config.accumulators)
        var epilogue = wait_for_accumulator[Rows=LayerRows[config]](cta, tiles.tile, accumulator, accumulators.parity)
        comptime for step in range(config.gemm.epilogue_steps()):
            comptime mirrored = Int32((config.gemm.epilogue_steps() - 1 - 2 * step) * config.gemm.epilogue_width)
            var part = epilogue.shifted_right(mirrored if accumulator == 0 else 0)
            var values = part.load[step]() * layer.operands.alpha
            comptime if step == config.shared_steps() - 1:  # consumer release of the columns read so far
                release_accumulator(epilogue)
            comptime if config.quantises():
                values = quantise[step](cta, part, values, problem, layer)
            write_step[config.gemm, step](part, part.pack_words(values), problem.c)
        accumulators.advance()
        tiles.wait_for_next_tile[whole_warp=True](cta)
    finish_stores(cta.warp == 0)


@inline(.always)
def kernel9[config: LayerConfig](cta: Cta[config.gemm], problem: Problem, layer: Layer, tiles: LayerTiles[config]):
    """Runs all roles of a CTA between `start` and `finish` (start_and_finish.mojo)."""
    if cta.warp < EPILOGUE_WARPS:
        write_overlapping(cta, problem, layer, tiles)
    elif cta.warp == PRODUCER_WARP:
        if elect_one_sync():
            produce_tiles(cta, problem, layer, tiles)
    elif cta.warp == MMA_WARP:
        if cta.leads_mma() and elect_one_sync():
            multiply_scaled(cta, problem, tiles)
    else:
        comptime if config.gemm.fetches_tiles():
            if elect_one_sync():
                request_tiles(cta, tiles)
