"""Quantises C to e4m3: in each row, the largest magnitude of 128 columns of C becomes 448, the largest e4m3 number.

    factor[block, row] = largest magnitude / 448, or 1 where all are 0        C[row, column] = e4m3(value / factor)

The next product takes elements and factors as A with `scales` block (promotion.mojo). Four neighbouring lanes hold a
row of a tile in registers, so a block takes two shuffles and no shared memory."""
from ..common.block_scaling import F32_BLOCK
from ..common.config import GemmConfig
from ..common.cta import Cta, Problem, Tile
from ..common.global_memory import store_global
from ..common.layer import Layer
from ..common.layer_config import LayerConfig
from ..common.ptx import pinned
from .epilogue import WARP_ROWS
from .warpgroup import warp_of_group, warpgroup
from .wgmma import MMA_M, Accumulator, mul_after_wait
from max.gpu.primitives.warp import shuffle_xor
from std.math import align_up

comptime LARGEST_E4M3 = Float32(448)
comptime BLOCK_REGISTERS = F32_BLOCK // 2
"""Registers of a thread for a block: 32 columns of two rows."""


@inline(.always)
def quantise[
    config: LayerConfig
](cta: Cta[config.gemm], tile: Tile, values: Accumulator[config.gemm], problem: Problem, layer: Layer) -> Accumulator[
    config.gemm
]:
    """Multiplies a finished tile by alpha if A and B have `scales`, divides it by its factors, and stores
    the factors."""
    var found = values
    comptime if config.scales != "none":
        comptime for block in range(values.blocks):
            comptime for i in range(values.registers):
                found.values[block][i] = mul_after_wait(values.values[block][i], layer.operands.alpha)
    var columns = config.c_column(Int32(problem.n))
    var lane_row = first_row_of_thread(cta, tile)
    comptime for block in range(values.blocks):
        comptime for first in range(0, config.results * values.registers // 8, BLOCK_REGISTERS):
            var column = config.c_column(tile.column) + Int32(2 * first)
            var largest = SIMD[DType.float32, 2](0)
            comptime for at in range(first, first + BLOCK_REGISTERS, 4):
                if column + Int32(2 * (at - first)) < columns:  # an epilogue may give nonzero values beyond C
                    comptime for i in range(4):
                        largest[i // 2] = max(largest[i // 2], abs(pinned(found.values[block][at + i])))
            comptime for i in range(2):
                comptime for lanes in [1, 2]:
                    largest[i] = max(largest[i], shuffle_xor(largest[i], UInt32(lanes)))
                var factor = largest[i] / LARGEST_E4M3 if largest[i] > 0 else Float32(1)
                var row = lane_row + UInt32(block * MMA_M + 8 * i)
                if cta.lane % 4 == 0 and row < UInt32(tile.end) and column < columns:
                    var place = UInt64(column // F32_BLOCK) * UInt64(align_up(problem.m, 4)) + UInt64(row)
                    store_global(layer.operands.factors + 4 * place, factor)
                comptime for at in range(first + 2 * i, first + BLOCK_REGISTERS, 4):
                    comptime for c in range(2):
                        found.values[block][at + c] = found.values[block][at + c] / factor
    return found


@inline(.always)
def first_row_of_thread[config: GemmConfig](cta: Cta[config], tile: Tile) -> UInt32:
    """Returns the first row of the product that this thread's registers hold."""
    var part = warpgroup(cta) % UInt32(config.consumers_of_tile)
    return (
        UInt32(tile.row) + part * UInt32(config.consumer_m()) + warp_of_group(cta) * UInt32(WARP_ROWS) + cta.lane // 4
    )
