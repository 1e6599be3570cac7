"""Boxes of C in shared memory: what a TMA store reads, and how a warp fills its part of one from registers.

Both tensor cores leave a 16-row part of the accumulator in a warp's registers the same way: register 4j + i of thread
t is row t / 4 + 8 * (i / 2) and column 8j + 2 * (t % 4) + i % 2 (PTX ISA 9.7.15.5.1.1, 9.7.16.2.3.1). Of 16-bit elements
that is what stmatrix stores as 8x8 matrices, as they are or transposed; f32, e4m3 and e2m1, of which a byte holds two, are
stored in pairs, or one by one.
"""
from .ptx import (
    pack_eight,
    pack_four,
    pack_pair,
    pinned,
    store_halves,
    store_matrices,
    store_pair,
    store_quarters,
    store_shared,
)
from std.memory import bitcast


def words_of(dtype: DType, registers: Int) -> Int:
    """Words that so many accumulators take in the type of C."""
    return registers * size_of(dtype) // 4


def size_of(dtype: DType) -> Int:
    """Bytes of an element of C."""
    if dtype == DType.float32:
        return 4
    return 1 if dtype == DType.float8_e4m3fn or dtype == DType.uint8 else 2


def values_in_word(dtype: DType) -> Int:
    return 8 if dtype == DType.uint8 else 4 // size_of(dtype)


@inline(.always)
def word[count: SIMDLength, //, dtype: DType](values: SIMD[DType.float32, count]) -> UInt32:
    """An f32 as it is, two adjacent columns rounded to 16 bits, or to e4m3 those of a row and of the one 8 rows
    further, or to e2m1 those and the same 8 columns further.
    Stays below the wait for them, for the compiler."""
    comptime if dtype == DType.float32:
        return pinned(bitcast[DType.uint32](values[0]))
    elif dtype == DType.float8_e4m3fn:
        return pack_four(values[0], values[1], values[2], values[3])
    elif dtype == DType.uint8:
        return pack_eight(values.slice[8]())
    else:
        return pack_pair[dtype](values[0], values[1])


struct BoxRows[dtype: DType, width: Int, pitch: Int, transposed: Bool = False, results: Int = 8](
    TrivialRegisterPassable
):
    """What one warp writes of a box of C that is `width` columns wide, its rows `pitch` bytes apart: 16 rows. `transposed`,
    where C has the accumulator's rows as columns: 16 columns, or 8 where a fused epilogue makes 4 `results` of 8 values; if
    128 bytes do not hold those of all warps, they fill two boxes.

    A box is swizzled over its whole row: the 16-byte chunk number is XORed with the number of the 128-byte line.
    """

    comptime element = size_of(Self.dtype)
    comptime is_f32 = Self.element == 4
    comptime words = words_of(Self.dtype, Self.width // 2)

    var address: UInt32  # where this lane's matrix row goes, or its first pair of f32 or e4m3

    @inline(.always)
    def __init__(out self, box: UInt32, row: UInt32, lane: UInt32):
        """`row`, the first of the 16, is a multiple of 16: it leaves the swizzle pattern as it is."""
        comptime if Self.transposed:
            comptime across = UInt32(Self.results // 4)  # matrices side by side, of 8 columns of C
            var c_row = lane % 4 * 2 if Self.is_f32 else lane // (8 * across) * 8 + lane % 8
            var column = row // 16 * (8 * across) + (lane // 4 if Self.is_f32 else lane // 8 % across * 8)
            var byte = column * UInt32(Self.element)
            self.address = box + byte // UInt32(Self.pitch) * UInt32(Self.width * 8 // Self.results * Self.pitch)
            self.address += c_row * UInt32(Self.pitch) + (byte % UInt32(Self.pitch) ^ swizzle[Self.pitch](c_row))
            return
        var lane_row = lane % 16 if Self.element == 2 else lane // 4
        var byte = lane // 16 * 16 if Self.element == 2 else lane % 4 * UInt32(8 // values_in_word(Self.dtype))
        self.address = box + (row + lane_row) * UInt32(Self.pitch) + (byte ^ swizzle[Self.pitch](lane_row))

    @inline(.always)
    def write_half[offset: Int, half: Int](self, words: SIMD[DType.uint32, Self.words]):
        """As `write`, of rows 16 further with half 1. Transposed they are columns, whose place no other address bits have: the
        first rows are a multiple of 32 then."""
        comptime if Self.transposed:
            var rows = self
            rows.address ^= UInt32(half * 2 * Self.results * Self.element)
            rows.write[offset](words)
        else:
            self.write[offset + half * 16 * Self.pitch](words)

    @inline(.always)
    def write[offset: Int](self, words: SIMD[DType.uint32, Self.words]):
        """Stores the words of adjacent columns; `offset` bytes further is a box or a multiple of 16 rows further."""
        comptime if Self.transposed:
            self.write_transposed[offset](words)
            return
        comptime if Self.dtype == DType.uint8:
            comptime for i in range(Self.words):  # 16 columns
                store_quarters[offset, offset + 8 * Self.pitch](self.address ^ UInt32(8 * i), words[i])
            return
        comptime if Self.element == 1:
            comptime for i in range(Self.words):  # 8 columns
                store_halves[offset, offset + 8 * Self.pitch](self.address ^ UInt32(8 * i), words[i])
            return
        comptime for group in range(Self.words // 4):
            # 32 bytes of 16 rows: 16 columns as four matrices, rows 0-7 and 8-15 of the left 8 columns, then of the right
            # 8; or 8 columns of f32, rows 0-7, then 8-15. 32 bytes further is an XOR, as the swizzle is one, of address
            # bits that nothing else contributes to.
            var address = self.address ^ UInt32(group * 32)
            comptime first = 4 * group
            comptime if Self.is_f32:
                store_pair[offset](address, words[first], words[first + 1])
                store_pair[offset + 8 * Self.pitch](address, words[first + 2], words[first + 3])
            else:
                store_matrices[offset](address, words.slice[4, offset=first]())

    @inline(.always)
    def write_transposed[offset: Int](self, words: SIMD[DType.uint32, Self.words]):
        """Matrices side by side, then those 8 rows of C further, where the swizzle is the same."""
        comptime across = Self.results // 4
        comptime if Self.is_f32:
            comptime for i in range(Self.words):
                comptime down = i // (2 * across) * 8 + i % 2
                var address = self.address ^ UInt32(i % 2 * 16) ^ UInt32(i // 2 % across * 32)
                store_shared[offset + down * Self.pitch](address, words[i])
        else:
            comptime count = min(4, Self.words)
            comptime for first in range(0, Self.words, count):
                comptime down = first // across * 8
                store_matrices[offset + down * Self.pitch, True](self.address, words.slice[count, offset=first]())


@inline(.always)
def swizzle[pitch: Int](row: UInt32) -> UInt32:
    """What the byte in a row is XORed with."""
    return row * UInt32(pitch) // 128 % UInt32(pitch // 16) * 16
