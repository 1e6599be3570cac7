"""Packs f32 values as elements of 8 and 4 bits into words, and stores packed words to shared memory."""
from std.sys._assembly import inlined_assembly


@inline(.always)
def pack_four(first: Float32, second: Float32, third: Float32, fourth: Float32) -> UInt32:
    """Rounds four f32 values to the nearest finite e4m3, ties to even, and packs them, `first` in the lowest byte. It
    stays behind the wait, like `pack_pair`."""
    return inlined_assembly[
        (
            "{ .reg .b16 low, high; cvt.rn.satfinite.e4m3x2.f32 low, $2, $1; cvt.rn.satfinite.e4m3x2.f32 high, $4, $3;"
            " mov.b32 $0, {low, high}; }"
        ),
        UInt32,
        constraints="=r,f,f,f,f",
    ](first, second, third, fourth)


@inline(.always)
def pack_eight(values: SIMD[DType.float32, 8]) -> UInt32:
    """Rounds eight f32 values to the nearest finite e2m1 and packs them, the first in the lowest 4 bits. It stays
    behind the wait, like `pack_pair`."""
    return inlined_assembly[
        (
            "{ .reg .b8 a, b, c, d; cvt.rn.satfinite.e2m1x2.f32 a, $2, $1; cvt.rn.satfinite.e2m1x2.f32 b, $4, $3;"
            " cvt.rn.satfinite.e2m1x2.f32 c, $6, $5; cvt.rn.satfinite.e2m1x2.f32 d, $8, $7; mov.b32 $0, {a, b, c, d}; }"
        ),
        UInt32,
        constraints="=r,f,f,f,f,f,f,f,f",
    ](values[0], values[1], values[2], values[3], values[4], values[5], values[6], values[7])


@inline(.always)
def store_halves[low: Int, high: Int](address: UInt32, word: UInt32):
    """Stores the lower 16 bits of a word at offset `low` in shared memory, the upper 16 bits at `high`."""
    inlined_assembly[
        String(
            "{ .reg .b16 low, high; mov.b32 {low, high}, $1; st.shared.b16 [$0+",
            low,
            "], low; st.shared.b16 [$0+",
            high,
            "], high; }",
        ),
        NoneType,
        constraints="r,r,~{memory}",
    ](address, word)


@inline(.always)
def store_quarters[low: Int, high: Int](address: UInt32, word: UInt32):
    """Stores bytes 0 and 1 of a word at offsets `low` and `high` in shared memory, and bytes 2 and 3 at the same
    offsets from the address with bit 2 flipped."""
    inlined_assembly[
        String(
            "{ .reg .b8 a, b, c, d; .reg .b32 next; mov.b32 {a, b, c, d}, $1; xor.b32 next, $0, 4; st.shared.b8 [$0+",
            low,
            "], a; st.shared.b8 [$0+",
            high,
            "], b; st.shared.b8 [next+",
            low,
            "], c; st.shared.b8 [next+",
            high,
            "], d; }",
        ),
        NoneType,
        constraints="r,r,~{memory}",
    ](address, word)
