"""Kernel 8: kernel 7 as a persistent kernel, with two accumulators.

    warps 0-3  epilogue   wait for a finished accumulator, write its tile, release it after the last load from TMEM
    warp 4     producer   one thread fills stages by TMA, and runs ahead into the next tile
    warp 5     MMA        one thread of the even CTA of a pair: waits for an empty accumulator, then for full stages
    warp 6     scheduler  with cluster launch control: one thread requests the next tile, ahead of all others

The pipeline of stages is that of kernel 6, and continues across tiles. While the epilogue warps read one accumulator,
the MMA thread fills the other. Before it fills one again, it waits for the epilogue warps of both CTAs of the pair,
because its MMAs write into the TMEM of both.

Every role has its own TileScheduler; all give the same tiles."""
from ..common.config import GemmConfig
from ..common.cta import Cta, Problem
from ..common.epilogue_store import finish_stores, write_step
from ..common.pipeline import CONSUMER
from ..common.producer import produce
from ..common.scheduler import TileScheduler, request_tiles
from ..common.split_k import Partial
from .epilogue import EPILOGUE_WARPS, Epilogue, wait_for_accumulator
from .mainloop import multiply
from .quantise import quantise
from .tcgen05 import fence_before_thread_sync
from max.gpu.primitives.cluster import elect_one_sync
from max.gpu.sync import syncwarp

comptime PRODUCER_WARP = EPILOGUE_WARPS
comptime MMA_WARP = PRODUCER_WARP + 1


@inline(.always)
def release[config: GemmConfig](epilogue: Epilogue[config]):
    """Arrives at the empty barrier of the accumulator, which this warp has read (consumer release)."""
    fence_before_thread_sync()
    syncwarp()
    if elect_one_sync():
        epilogue.empty.arrive()
    syncwarp()


@inline(.always)
def store_partial_tile[config: GemmConfig](epilogue: Epilogue[config], partial: Partial[config]) -> Bool:
    """Stores the partial sums of a tile for split-K, and releases its accumulator. Returns whether it is last."""
    comptime E = Epilogue[config]
    comptime for step in range(config.epilogue_steps()):
        var values = epilogue.load[step]()
        comptime for i in range(0, E.count, 4):
            partial.store[step * E.count + i](values.slice[4, offset=i]())
    release(epilogue)
    epilogue.barrier()
    partial.arrive(epilogue.leads())
    epilogue.barrier()
    return partial.is_last()


@inline(.always)
def sum_of_parts[
    config: GemmConfig, //, step: Int
](epilogue: Epilogue[config], partial: Partial[config]) -> Epilogue[config].Values:
    """Returns the sum of all parts of one step."""
    comptime E = Epilogue[config]
    var sums = partial.load[step * E.count, E.count](0)
    for part in range(UInt32(1), UInt32(config.split_k)):
        sums += partial.load[step * E.count, E.count](part)
    return sums


@inline(.always)
def write_tiles[config: GemmConfig](cta: Cta[config], problem: Problem, var tiles: TileScheduler[config]):
    """Writes tile after tile, accumulator after accumulator. Four warps call this."""
    comptime last = config.epilogue_steps() - 1
    comptime E = Epilogue[config]
    var accumulators = cta.accumulators(CONSUMER)
    while tiles.has_tile():
        var epilogue = wait_for_accumulator(cta, tiles.tile, accumulators.stage, accumulators.parity)
        var partial = Partial[config](cta, problem, tiles, 0, cta.warp * 32 + cta.lane)
        var is_whole = True
        comptime if config.splits_k():
            is_whole = store_partial_tile(epilogue, partial)
        if is_whole:
            comptime for step in range(config.epilogue_steps()):
                var values: E.Values
                comptime if config.splits_k():
                    values = sum_of_parts[step](epilogue, partial)
                else:
                    values = epilogue.load[step]()
                    comptime if step == last:
                        release(epilogue)
                comptime if config.is_fused():
                    values = epilogue.apply_epilogue[step](values, problem.operands_of(tiles.tile))
                comptime if config.quantises():
                    values = quantise[step](cta, epilogue, values, problem)
                write_step[config, step](epilogue, epilogue.pack_words(values), problem.c)
        accumulators.advance()
        tiles.wait_for_next_tile[whole_warp=True](cta)
        if not tiles.has_tile():
            finish_stores(epilogue.leads())


@inline(.always)
def kernel8[config: GemmConfig](cta: Cta[config], problem: Problem, tiles: TileScheduler[config]):
    """Runs all roles of a CTA between `start` and `finish`."""
    if cta.warp < EPILOGUE_WARPS:
        write_tiles(cta, problem, tiles)
    elif cta.warp == PRODUCER_WARP:
        if elect_one_sync():
            produce(cta, problem, tiles)
    elif cta.warp == MMA_WARP:
        multiply(cta, problem, tiles)
    else:
        comptime if config.fetches_tiles():
            if elect_one_sync():
                request_tiles(cta, tiles)
