"""Quantises C to a block-scaled format, which kernel 9 takes as A: each block of neighbours in a row has a scale
factor, and the factors lie in atoms (block_scaling.mojo).

    nvfp4           factor = e4m3(c_scale * largest / 6)       C = e2m1(c_scale * value / factor)
    mxfp8, mxfp4    factor = 2^(exponent of largest - that of the format's maximum), at least 2^-127  C = value / factor

Four neighbouring lanes hold a row of an accumulator in registers, so a block takes two shuffles and no shared memory.
"""
from ..common.block_scaling import ATOM_BLOCKS, ATOM_BYTES, ATOM_ROWS, BlockScaling
from ..common.cta import Cta, Problem
from ..common.global_memory import store_bytes
from ..common.layer import Layer
from ..common.layer_config import LayerConfig
from ..common.pack_narrow import pack_four
from ..common.layer_box import LayerRows
from .epilogue import Epilogue
from max.gpu.primitives.warp import shuffle_xor
from std.math import ceildiv
from std.memory import bitcast


comptime LayerEpilogue[config: LayerConfig] = Epilogue[config.gemm, LayerRows[config]]


@inline(.always)
def encode_factor[format: BlockScaling](largest: Float32) -> UInt32:
    """Returns the byte of the scale factor of a block, from the largest magnitude in the block."""
    comptime if format.factors_are_powers_of_two():
        comptime exponent = Int32(8 if format.bits == 8 else 2)
        return UInt32(max(Int32(bitcast[DType.uint32](largest) >> 23) - exponent, 0))
    else:
        return pack_four(largest / 6, 0, 0, 0)


@inline(.always)
def divide_by_factor[format: BlockScaling](value: Float32, code: UInt32) -> Float32:
    """Returns value / factor. `code` is the byte of the factor; 0 (nvfp4) acts as 1, so the value rounds to 0."""
    comptime if format.factors_are_powers_of_two():
        return value * bitcast[DType.float32]((254 - code) << 23)
    else:
        comptime two_to_120 = bitcast[DType.float32](UInt32(247) << 23)  # from f32's bias of 127 to e4m3's of 7
        var factor = bitcast[DType.float32](code << 20) * two_to_120
        return value / (factor if code > 0 else 1)


@inline(.always)
def quantise[
    config: LayerConfig, //, step: Int
](
    cta: Cta[config.gemm],
    epilogue: LayerEpilogue[config],
    values: LayerEpilogue[config].Values,
    problem: Problem,
    layer: Layer,
) -> LayerEpilogue[config].Values:
    """Divides one step of a tile by its scale factors, and stores the factors: each of four lanes those of one row."""
    comptime E = LayerEpilogue[config]
    comptime format = config.out_scaling
    comptime blocks = config.blocks_in_step()
    comptime each = format.block() // 2  # values of two rows that a thread holds in a block
    comptime of_product = UInt32(format.block() * 8 // config.fusion().results)  # columns of the product for a block
    var found = values
    comptime if not format.factors_are_powers_of_two():
        found *= layer.operands.c_scale
    var block = (epilogue.values_column + UInt32(step * E.width)) // of_product
    var end = problem.n // of_product
    var own: UInt32 = 0
    comptime for number in range(2 * E.halves):  # the rows of a thread, 8 apart
        comptime first = number // 2 * blocks * each + number % 2 * 2
        var codes: UInt32 = 0
        comptime for i in range(blocks):
            var largest: Float32 = 0
            comptime for at in range(first + i * each, first + (i + 1) * each, 4):
                largest = max(largest, max(abs(found[at]), abs(found[at + 1])))
            comptime for lanes in [1, 2]:
                largest = max(largest, shuffle_xor(largest, UInt32(lanes)))
            var code = encode_factor[format](largest)
            comptime for at in range(first + i * each, first + (i + 1) * each, 4):
                comptime for column in range(2):
                    found[at + column] = divide_by_factor[format](found[at + column], code)
            if block + UInt32(i) < end:  # factors behind the last column of C stay 0: the next B has zeros there
                codes |= code << UInt32(8 * i)
        if cta.lane % 4 == UInt32(number):
            own = codes
    var row = epilogue.values_row + 8 * (cta.lane % 4)
    var across = ceildiv(end, UInt32(ATOM_BLOCKS))
    comptime rows = UInt32(2 * E.halves)
    if cta.lane % 4 < rows and row < UInt32(epilogue.end) and block < across * UInt32(ATOM_BLOCKS):
        var atom = UInt64(row // UInt32(ATOM_ROWS)) * UInt64(across) + UInt64(block // UInt32(ATOM_BLOCKS))
        var inside = row % 32 * 16 + row % UInt32(ATOM_ROWS) // 32 * 4 + block % UInt32(ATOM_BLOCKS)
        store_bytes[blocks](layer.operands.factors + atom * UInt64(ATOM_BYTES) + UInt64(inside), own)
    return found
