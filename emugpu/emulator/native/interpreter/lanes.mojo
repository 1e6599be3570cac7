"""Rows of 32 lanes, a fragment's tables of 8-byte fields, and the numbers that the interpreter and Python share.

A register is a row of 256 bytes, with the lanes at its start. For each row there are a mark, which says whether all
lanes are equal and whether some are undefined, the undefined lanes, the number of their origin, and a bit that
says whether it has changed since Python looked.
"""

from .layout import *


comptime Bytes = Pointer[UInt8, MutUntrackedOrigin]
comptime Function = def (Bytes, Int) thin abi("C") -> Int
comptime Lanes = SIMD[DType.uint32, 32]
comptime FULL = UInt32(0xFFFFFFFF)
comptime NONE = 0xFFFF
comptime ROW = 256
comptime STORED = 1
comptime MANY_LOADS = 1 << 16
comptime Floats = SIMD[DType.float32, 32]
comptime Doubles = SIMD[DType.float64, 32]
comptime Pairs = SIMD[DType.uint64, 32]


@inline(.always)
def load[t: DType](p: Bytes) -> SIMD[t, 32]:
    return p.unsafe_bitcast[Scalar[t]]().unsafe_load[width=32, alignment=32]()


@inline(.always)
def put[t: DType](p: Bytes, v: SIMD[t, 32]):
    p.unsafe_bitcast[Scalar[t]]().unsafe_store[alignment=32](v)


@inline(.always)
def get[t: DType](p: Bytes, at: Int = 0) -> Scalar[t]:
    return p.unsafe_offset(at).unsafe_bitcast[Scalar[t]]().unsafe_load[alignment=1]()


@inline(.always)
def set[t: DType](p: Bytes, at: Int, v: Scalar[t]):
    p.unsafe_offset(at).unsafe_bitcast[Scalar[t]]().unsafe_store[alignment=1](v)


@inline(.always)
def half(p: Bytes, at: Int) -> Int:
    return Int(get[DType.uint16](p, at))


@inline(.always)
def field(c: Bytes, number: Int) -> UInt64:
    return get[DType.uint64](c, 8 * number)


@inline(.always)
def pointer(c: Bytes, number: Int) -> Bytes:
    return c.unsafe_offset(8 * number).unsafe_bitcast[Bytes]()[]


@inline(.always)
def look(table: Bytes, number: Int) -> Int:
    """Returns one of a table's 8-byte fields."""
    return Int(get[DType.int64](table, 8 * number))


@inline(.always)
def note(table: Bytes, number: Int, value: Int):
    set[DType.int64](table, 8 * number, Int64(value))


@inline(.always)
def fragment(c: Bytes, number: Int) -> Bytes:
    return pointer(c, FRAGMENTS).unsafe_offset(8 * FRAGMENT_FIELDS * number)


@inline(.always)
def lane_bits() -> SIMD[DType.uint32, 32]:
    return SIMD[DType.uint32, 32](
        1 << 0, 1 << 1, 1 << 2, 1 << 3, 1 << 4, 1 << 5, 1 << 6, 1 << 7,
        1 << 8, 1 << 9, 1 << 10, 1 << 11, 1 << 12, 1 << 13, 1 << 14, 1 << 15,
        1 << 16, 1 << 17, 1 << 18, 1 << 19, 1 << 20, 1 << 21, 1 << 22, 1 << 23,
        1 << 24, 1 << 25, 1 << 26, 1 << 27, 1 << 28, 1 << 29, 1 << 30, 1 << 31,
    )


@inline(.always)
def mask_of(p: Bytes) -> UInt32:
    """Returns the lanes in which a predicate holds."""
    return load[DType.uint32](p).ne(0).select(lane_bits(), SIMD[DType.uint32, 32](0)).reduce_or()


@inline(.always)
def ramp[t: DType](step: Int) -> SIMD[t, 32]:
    comptime lanes = SIMD[t, 32](
        0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15,
        16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31,
    )
    return lanes * SIMD[t, 32](Scalar[t](step))
