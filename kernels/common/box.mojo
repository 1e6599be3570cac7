"""Boxes of C in shared memory: what a TMA store reads, and how a warp fills its part of one from registers.

On sm_90a and sm_100a, a warp holds 16 rows of the accumulator in the same layout: register 4j + i of thread t has row
t / 4 + 8 * (i / 2) and column 8j + 2 * (t % 4) + i % 2 (PTX ISA 9.7.15.5.1.1, 9.7.16.2.3.1). For 16-bit elements
stmatrix stores this layout as 8x8 matrices, transposed if need be. Plain stores write f32, e4m3 and e2m1 (two in a
byte)."""
from .pack import pack_eight, pack_four, pack_pair, store_halves, store_matrices, store_pair, store_quarters
from .ptx import pinned, store_shared
from std.memory import bitcast


def words_for(dtype: DType, registers: Int) -> Int:
    """Returns how many 32-bit words this many accumulator registers become in the type of C."""
    return registers * element_bytes(dtype) // 4


def element_bytes(dtype: DType) -> Int:
    """Returns the bytes of an element of C; 1 for e2m1, of which a byte holds two."""
    if dtype == DType.float32:
        return 4
    return 1 if dtype == DType.float8_e4m3fn or dtype == DType.uint8 else 2


def values_per_word(dtype: DType) -> Int:
    return 8 if dtype == DType.uint8 else 4 // element_bytes(dtype)


@inline(.always)
def pack_word[count: SIMDLength, //, dtype: DType](values: SIMD[DType.float32, count]) -> UInt32:
    """Packs accumulator values into a word of the type of C: one f32; two adjacent columns as 16-bit floats; for e4m3
    also those 8 rows further; for e2m1 also all these 8 columns further. It stays behind the wait for the values."""
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
    """The 16 rows of a box of C that one warp writes. The box is `width` columns wide and its rows are `pitch` bytes
    apart. If `transposed`, the rows of the accumulator are columns of C: the warp writes 16 columns, or 8 where a fused
    epilogue makes 4 `results` of 8 values. Two boxes hold the columns of all warps if a row would exceed 128 bytes.

    A box is swizzled: the number of a 16-byte chunk in its row is XORed with the number of the 128-byte line."""

    comptime element = element_bytes(Self.dtype)
    comptime is_f32 = Self.element == 4
    comptime words = words_for(Self.dtype, Self.width // 2)

    var address: UInt32  # where this lane stores: its row of a matrix, or its first elements

    @inline(.always)
    def __init__(out self, box: UInt32, row: UInt32, lane: UInt32):
        """`row` is the first of the 16, a multiple of 16, so that it does not shift the swizzle pattern."""
        comptime if Self.transposed:
            comptime across = UInt32(Self.results // 4)  # 8-column matrices side by side in C
            var c_row = lane % 4 * 2 if Self.is_f32 else lane // (8 * across) * 8 + lane % 8
            var column = row // 16 * (8 * across) + (lane // 4 if Self.is_f32 else lane // 8 % across * 8)
            var byte = column * UInt32(Self.element)
            self.address = box + byte // UInt32(Self.pitch) * UInt32(Self.width * 8 // Self.results * Self.pitch)
            self.address += c_row * UInt32(Self.pitch) + (byte % UInt32(Self.pitch) ^ swizzle[Self.pitch](c_row))
            return
        var lane_row = lane % 16 if Self.element == 2 else lane // 4
        var byte = lane // 16 * 16 if Self.element == 2 else lane % 4 * UInt32(8 // values_per_word(Self.dtype))
        self.address = box + (row + lane_row) * UInt32(Self.pitch) + (byte ^ swizzle[Self.pitch](lane_row))

    @inline(.always)
    def write_half[offset: Int, half: Int](self, words: SIMD[DType.uint32, Self.words]):
        """Writes like `write`; half 1 goes 16 rows further. Transposed, these are 16 columns further, an XOR of address
        bits that nothing else sets, because the first row is then a multiple of 32."""
        comptime if Self.transposed:
            var rows = self
            rows.address ^= UInt32(half * 2 * Self.results * Self.element)
            rows.write[offset](words)
        else:
            self.write[offset + half * 16 * Self.pitch](words)

    @inline(.always)
    def write[offset: Int](self, words: SIMD[DType.uint32, Self.words]):
        """Stores the words of adjacent columns, `offset` bytes further: a number of boxes or of 16 rows."""
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
            # A group is 32 bytes of 16 rows: four matrices (rows 0-7 and 8-15 of the left 8 columns, then of the right
            # 8), or 8 columns of f32 (rows 0-7, then 8-15). The swizzle is an XOR, so the step of 32 bytes is one too:
            # nothing else sets these address bits.
            var address = self.address ^ UInt32(group * 32)
            comptime first = 4 * group
            comptime if Self.is_f32:
                store_pair[offset](address, words[first], words[first + 1])
                store_pair[offset + 8 * Self.pitch](address, words[first + 2], words[first + 3])
            else:
                store_matrices[offset](address, words.slice[4, offset=first]())

    @inline(.always)
    def write_transposed[offset: Int](self, words: SIMD[DType.uint32, Self.words]):
        """Stores the matrices that lie side by side, then those 8 rows of C further, which have the same swizzle."""
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
    """Returns the value to XOR with the byte offset in this row."""
    return row * UInt32(pitch) // 128 % UInt32(pitch // 16) * 16
