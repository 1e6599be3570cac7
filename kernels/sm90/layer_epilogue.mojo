"""What kernel 8 of sm_90a makes of a finished tile before it writes it: the sum of all parts of K, a fused epilogue, C
with scale factors, alpha."""
from ..common.cta import Cta, Problem, Tile
from ..common.epilogues import EPILOGUES
from ..common.fragment import Fragment, Values
from ..common.layer import EpilogueOperands, Layer
from ..common.layer_box import LayerRows
from ..common.layer_config import LayerConfig
from ..common.ptx import pinned
from ..common.split_k import Partial
from .epilogue import Epilogue
from .quantise import first_row_of_thread, quantise
from .warpgroup import sync_warpgroup, warp_of_group
from .wgmma import MMA_M, Accumulator, Sums, mul_after_wait

comptime LayerEpilogue[config: LayerConfig] = Epilogue[config.gemm, LayerRows[config]]


@inline(.always)
def store_and_add_parts[
    config: LayerConfig
](cta: Cta[config.gemm], partial: Partial[config], mut accumulator: Accumulator[config.gemm], group: UInt32) -> Bool:
    """Stores the partial sums of a tile for split-K. If this part is last, adds all parts and returns True."""
    comptime A = Accumulator[config.gemm]
    comptime for block in range(A.blocks):
        comptime for i in range(0, A.registers, 4):
            var values = accumulator.values[block]
            partial.store[block * A.registers + i]({values[i], values[i + 1], values[i + 2], values[i + 3]})
    sync_warpgroup(group)
    partial.arrive(warp_of_group(cta) == 0)
    sync_warpgroup(group)
    if not partial.is_last():
        return False
    comptime batch = 32 if A.registers % 32 == 0 else 8
    comptime for first in range(0, A.blocks * A.registers, batch):
        var sums = partial.load[first, batch](0)
        for part in range(UInt32(1), UInt32(config.split_k)):
            sums += partial.load[first, batch](part)
        comptime for i in range(batch):
            accumulator.values[first // A.registers][first % A.registers + i] = sums[i]
    return True


@inline(.always)
def apply_epilogue[
    config: LayerConfig
](cta: Cta[config.gemm], tile: Tile, product: Accumulator[config.gemm], operands: EpilogueOperands) -> Accumulator[
    config.gemm
]:
    """Applies the fused epilogue to a finished tile. If C has fewer columns, the last registers are unused."""
    comptime E = EPILOGUES[config.epilogue - 1]
    var results = Accumulator[config.gemm]()
    var first_column = UInt32(tile.column) + cta.lane % 4 * 2
    comptime for block in range(product.blocks):
        comptime for first in range(0, product.registers, 8):
            var values = Values()
            comptime for i in range(8):
                values[i] = pinned(product.values[block][first + i])  # stays behind the wait for it
            var row = first_row_of_thread(cta, tile) + UInt32(block * MMA_M)
            var column = first_column + UInt32(2 * first)
            comptime if config.swapped:
                swap(row, column)
            var found = E.apply(Fragment[config.gemm.dtype, config.swapped](values, row, column, operands))
            comptime for i in range(E.results):
                results.values[block][first * E.results // 8 + i] = found[i]
    return results


@fieldwise_init
struct ScaledSums[config: LayerConfig](Sums):
    """Finished sums, which become alpha times as large if A and B have `scales`, unless `quantise` has done so."""

    var accumulator: Accumulator[Self.config.gemm]
    var alpha: Float32

    @inline(.always)
    def value[block: Int, register: Int](self) -> Float32:
        var sum = self.accumulator.value[block, register]()
        comptime if Self.config.scales != "none" and not Self.config.quantises():
            return mul_after_wait(sum, self.alpha)
        return sum


@inline(.always)
def finished[
    config: LayerConfig
](
    cta: Cta[config.gemm], tile: Tile, accumulator: Accumulator[config.gemm], problem: Problem, layer: Layer
) -> LayerEpilogue[config]:
    """Returns the tile as it is written, from the sums over all of K."""
    var found = accumulator
    comptime if config.is_fused():
        found = apply_epilogue[config](cta, tile, found, layer.operands_of(tile))
    comptime if config.quantises():
        found = quantise[config](cta, tile, found, problem, layer)
    return LayerEpilogue[config](cta, tile, ScaledSums[config](found, layer.operands.alpha))
