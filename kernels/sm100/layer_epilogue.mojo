"""The epilogue of kernel 8 if C is not the product itself: split-K, fused epilogues, and quantisation.

Each step of a tile goes the same way. Its values come from the accumulator or, with split-K, from the parts of all
CTAs. A fused epilogue changes them, quantisation divides them by scale factors, then the store takes them."""
from ..common.cta import Cta, Problem
from ..common.epilogue_store import finish_stores, write_step
from ..common.epilogues import EPILOGUES
from ..common.fragment import Fragment
from ..common.layer import EpilogueOperands, Layer
from ..common.layer_box import LayerRows
from ..common.layer_config import LayerConfig
from ..common.layer_order import LayerTiles
from ..common.pipeline import CONSUMER
from ..common.split_k import Partial
from .epilogue import release_accumulator, wait_for_accumulator
from .quantise import LayerEpilogue, quantise


@inline(.always)
def store_partial_tile[config: LayerConfig](epilogue: LayerEpilogue[config], partial: Partial[config]) -> Bool:
    """Stores the partial sums of a tile for split-K, and releases its accumulator. Returns whether it is last."""
    comptime E = LayerEpilogue[config]
    comptime for step in range(config.gemm.epilogue_steps()):
        var values = epilogue.load[step]()
        comptime for i in range(0, E.count, 4):
            partial.store[step * E.count + i](values.slice[4, offset=i]())
    release_accumulator(epilogue)  # consumer release
    epilogue.barrier()
    partial.arrive(epilogue.leads())
    epilogue.barrier()
    return partial.is_last()


@inline(.always)
def sum_of_parts[
    config: LayerConfig, //, step: Int
](epilogue: LayerEpilogue[config], partial: Partial[config]) -> LayerEpilogue[config].Values:
    """Returns the sum of all parts of one step."""
    comptime E = LayerEpilogue[config]
    var sums = partial.load[step * E.count, E.count](0)
    for part in range(UInt32(1), UInt32(config.split_k)):
        sums += partial.load[step * E.count, E.count](part)
    return sums


@inline(.always)
def apply_epilogue[
    config: LayerConfig, //, step: Int
](epilogue: LayerEpilogue[config], product: LayerEpilogue[config].Values, operands: EpilogueOperands) -> LayerEpilogue[
    config
].Values:
    """Applies the fused epilogue to one step. If C has fewer columns, the last values are unused."""
    comptime E = EPILOGUES[config.epilogue - 1]
    comptime width = config.gemm.epilogue_width
    var results = LayerEpilogue[config].Values()
    comptime for first in range(0, LayerEpilogue[config].count, 8):
        comptime down = first // (width // 2) * 16
        comptime right = step * width + first % (width // 2) * 2
        var row = epilogue.values_row + UInt32(down)
        var column = epilogue.values_column + UInt32(right)
        comptime if config.swapped:
            swap(row, column)
        var values = product.slice[8, offset=first]()
        var fragment = Fragment[config.gemm.dtype, config.swapped](values, row, column, operands)
        results = results.insert[offset=first * E.results // 8](E.apply(fragment))
    return results


@inline(.always)
def write_results[
    config: LayerConfig
](cta: Cta[config.gemm], problem: Problem, layer: Layer, var tiles: LayerTiles[config]):
    """Writes tile after tile like `write_tiles`, or its part with split-K. Four warps call this."""
    comptime last = config.gemm.epilogue_steps() - 1
    var accumulators = cta.accumulators(CONSUMER)
    while tiles.has_tile():
        var epilogue = wait_for_accumulator[Rows=LayerRows[config]](
            cta, tiles.tile, accumulators.stage, accumulators.parity
        )
        var partial = Partial[config](cta, problem, tiles, 0, cta.warp * 32 + cta.lane)
        var is_whole = True
        comptime if config.splits_k():
            is_whole = store_partial_tile(epilogue, partial)
        if is_whole:
            comptime for step in range(config.gemm.epilogue_steps()):
                var values: LayerEpilogue[config].Values
                comptime if config.splits_k():
                    values = sum_of_parts[step](epilogue, partial)
                else:
                    values = epilogue.load[step]()
                    comptime if step == last:
                        release_accumulator(epilogue)  # consumer release
                comptime if config.is_fused():
                    values = apply_epilogue[step](epilogue, values, layer.operands_of(tiles.tile))
                comptime if config.quantises():
                    values = quantise[step](cta, epilogue, values, problem, layer)
                write_step[config.gemm, step](epilogue, epilogue.pack_words(values), problem.c)
        accumulators.advance()
        tiles.wait_for_next_tile[whole_warp=True](cta)
        if not tiles.has_tile():
            finish_stores(epilogue.leads())
