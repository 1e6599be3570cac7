"""Boxes of C in shared memory: what a TMA store reads, and how a warp fills its part of one from registers.

On sm_90a and sm_100a, a warp holds 16 rows of the accumulator in the same layout: register 4j + i of thread t has row
t / 4 + 8 * (i / 2) and column 8j + 2 * (t % 4) + i % 2 (PTX ISA 9.7.15.5.1.1, 9.7.16.2.3.1). For 16-bit elements
stmatrix stores this layout as 8x8 matrices. Plain stores write f32.

A box is swizzled: the number of a 16-byte chunk in its row is XORed with the number of the 128-byte line."""
from .config import GemmConfig
from .ptx import pinned
from .tile import element_bytes
from .tma import tma_store
from std.memory import bitcast
from std.sys._assembly import inlined_assembly


trait BoxRows(TrivialRegisterPassable):
    """The 16 rows of a box of C that one warp writes."""

    comptime values: Int
    """Accumulator values in a 32-bit word of C."""
    comptime words: Int
    """Words of a thread in one step."""

    def __init__(out self, box: UInt32, row: UInt32, lane: UInt32):
        """`row` is the first of the 16, a multiple of 16, so that it does not shift the swizzle pattern."""
        ...

    @staticmethod
    def pack(values: SIMD[DType.float32, Self.values]) -> UInt32:
        """Packs accumulator values into a word. It stays behind the wait for the values."""
        ...

    def write[offset: Int, block: Int = 0](self, words: SIMD[DType.uint32, Self.words]):
        """Stores the words of adjacent columns, `offset` bytes and `block` times 16 rows further."""
        ...

    @staticmethod
    def store(box: UInt32, c_map: UInt64, column: Int32, row: Int32, end: Int32):
        """Starts the TMA store of a box: the rows of the accumulator from `row` up to `end`. One thread calls this."""
        ...


struct PlainRows[config: GemmConfig](BoxRows):
    """Rows of a box whose elements are those of the accumulator, rounded to 16 bits or as f32."""

    comptime element = element_bytes(Self.config.out_dtype)
    comptime pitch = Self.config.step_row_bytes
    comptime values = 4 // Self.element
    comptime words = Self.config.epilogue_width * Self.element // 8

    var address: UInt32  # where this lane stores: its row of a matrix, or its first elements

    @inline(.always)
    def __init__(out self, box: UInt32, row: UInt32, lane: UInt32):
        var lane_row = lane % 16 if Self.element == 2 else lane // 4
        var byte = lane // 16 * 16 if Self.element == 2 else lane % 4 * 8
        self.address = box + (row + lane_row) * UInt32(Self.pitch) + (byte ^ swizzle[Self.pitch](lane_row))

    @staticmethod
    @inline(.always)
    def pack(values: SIMD[DType.float32, Self.values]) -> UInt32:
        return pack_wide[Self.config.out_dtype](values)

    @inline(.always)
    def write[offset: Int, block: Int = 0](self, words: SIMD[DType.uint32, Self.words]):
        write_wide[Self.element, Self.pitch, offset + block * 16 * Self.pitch](self.address, words)

    @staticmethod
    @inline(.always)
    def store(box: UInt32, c_map: UInt64, column: Int32, row: Int32, end: Int32):
        tma_store(box, c_map, column, row)


@inline(.always)
def pack_wide[count: SIMDLength, //, dtype: DType](values: SIMD[DType.float32, count]) -> UInt32:
    """Packs one f32, or two adjacent columns as 16-bit floats, into a word."""
    comptime if dtype == DType.float32:
        return pinned(bitcast[DType.uint32](values[0]))
    else:
        return pack_pair[dtype](values[0], values[1])


@inline(.always)
def write_wide[
    count: SIMDLength, //, element: Int, pitch: Int, offset: Int
](address: UInt32, words: SIMD[DType.uint32, count]):
    """Stores elements of 2 or 4 bytes. A group is 32 bytes of 16 rows: four matrices (rows 0-7 and 8-15 of the left 8
    columns, then of the right 8), or 8 columns of f32 (rows 0-7, then 8-15)."""
    comptime for group in range(Int(count) // 4):
        # The swizzle is an XOR, so the step of 32 bytes is one too: nothing else sets these address bits.
        var place = address ^ UInt32(group * 32)
        comptime first = 4 * group
        comptime if element == 4:
            store_pair[offset](place, words[first], words[first + 1])
            store_pair[offset + 8 * pitch](place, words[first + 2], words[first + 3])
        else:
            store_matrices[offset](place, words.slice[4, offset=first]())


@inline(.always)
def swizzle[pitch: Int](row: UInt32) -> UInt32:
    """Returns the value to XOR with the byte offset in this row."""
    return row * UInt32(pitch) // 128 % UInt32(pitch // 16) * 16


# ---- instructions ----------------------------------------------------------------------------------------------------
@inline(.always)
def pack_pair[dtype: DType](low: Float32, high: Float32) -> UInt32:
    """Rounds two f32 values to 16-bit floats, to nearest even, and packs them, `low` in the lower half. The compiler
    takes this for a side effect, so it stays behind the wait for asynchronously written registers."""
    comptime assert dtype == DType.bfloat16 or dtype == DType.float16, "a pair is two 16-bit floats"
    comptime type = "bf16x2" if dtype == DType.bfloat16 else "f16x2"
    return inlined_assembly[String("cvt.rn.", type, ".f32 $0, $1, $2;"), UInt32, constraints="=r,f,f"](high, low)


@inline(.always)
def store_matrices[
    count: SIMDLength, //, offset: Int, transposed: Bool = False
](address: UInt32, matrices: SIMD[DType.uint32, count]):
    """Stores two or four 8x8 matrices of 16-bit elements, or their transposes, to shared memory. Lane l passes the
    address of row l % 8 of matrix l / 8 as it is stored (PTX ISA 9.7.14.5.16)."""
    comptime trans = ".trans" if transposed else ""
    comptime text = String("stmatrix.sync.aligned.m8n8.x", Int(count), trans, ".shared.b16 [$0+", offset, "], ")
    comptime if count == 2:
        inlined_assembly[text + "{$1, $2};", NoneType, constraints="r,r,r,~{memory}"](address, matrices[0], matrices[1])
    else:
        inlined_assembly[text + "{$1, $2, $3, $4};", NoneType, constraints="r,r,r,r,r,~{memory}"](
            address, matrices[0], matrices[1], matrices[2], matrices[3]
        )


@inline(.always)
def store_pair[offset: Int](address: UInt32, low: UInt32, high: UInt32):
    """Stores two words side by side to shared memory."""
    inlined_assembly[String("st.shared.v2.b32 [$0+", offset, "], {$1, $2};"), NoneType, constraints="r,r,r,~{memory}"](
        address, low, high
    )
