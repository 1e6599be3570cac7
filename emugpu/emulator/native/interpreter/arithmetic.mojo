"""Operations on lanes that need more than an expression."""

from std.math import ceil, floor, sqrt, trunc
from .lanes import *


@inline(.always)
def bit_field(a: Lanes, position: Lanes, length: Lanes) -> Lanes:
    var shifted = position.lt(32).select(a >> (position & 31), Lanes(0))
    return length.lt(32).select(shifted & ((Lanes(1) << (length & 31)) - 1), shifted)


@inline(.always)
def truth_table(a: Lanes, b: Lanes, c: Lanes, table: UInt32) -> Lanes:
    """Returns the bits of a table that three inputs choose, bit by bit."""
    var found = Lanes(0)
    comptime for row in range(8):
        var x = a if row & 4 else ~a
        var y = b if row & 2 else ~b
        var z = c if row & 1 else ~c
        found |= x & y & z & (0 - ((table >> UInt32(row)) & 1))
    return found


@inline(.always)
def permute_bytes(a: Lanes, b: Lanes, selector: Lanes) -> Lanes:
    var pool = a.cast[DType.uint64]() | (b.cast[DType.uint64]() << 32)
    var found = Lanes(0)
    comptime for place in range(4):
        var chosen = (selector >> UInt32(4 * place)) & 15
        var byte = ((pool >> ((chosen & 7) * 8).cast[DType.uint64]()) & 255).cast[DType.uint32]()
        found |= chosen.lt(8).select(byte, (byte >> 7) * 255) << UInt32(8 * place)
    return found


@inline(.always)
def truncated[t: DType](a: SIMD[t, 32], b: SIMD[t, 32]) -> SIMD[t, 32]:
    """Returns the quotient of unsigned numbers, or all ones for a division by zero."""
    var nowhere = b.eq(0)
    var divisor = nowhere.select(SIMD[t, 32](1), b)
    var found: SIMD[t, 32]
    comptime if t == DType.uint32:
        # For such numbers the quotient in float64 is rounded to an integer only if it is exactly that integer.
        found = (a.cast[DType.float64]() / divisor.cast[DType.float64]()).cast[t]()
    else:
        found = a // divisor
    return nowhere.select(~SIMD[t, 32](0), found)


@inline(.always)
def magnitude[t: DType](a: SIMD[t, 32], negative: SIMD[DType.bool, 32]) -> SIMD[t, 32]:
    return negative.select(0 - a, a)


@inline(.always)
def is_below_zero[t: DType](a: SIMD[t, 32]) -> SIMD[DType.bool, 32]:
    """Returns whether the bits are those of a negative integer."""
    comptime if t == DType.uint32:
        return a.ge(1 << 31)
    else:
        return a.ge(1 << 63)


@inline(.never)
def whole_quotient[is_signed: Bool, t: DType](a: SIMD[t, 32], b: SIMD[t, 32]) -> SIMD[t, 32]:
    """Returns the quotient of integers, rounded toward zero, or all ones for a division by zero."""
    comptime if is_signed:
        var down = is_below_zero(a)
        var by = is_below_zero(b)
        var found = truncated(magnitude(a, down), magnitude(b, by))
        return b.eq(0).select(found, magnitude(found, down ^ by))
    return truncated(a, b)


@inline(.always)
def whole_remainder[is_signed: Bool, t: DType](a: SIMD[t, 32], b: SIMD[t, 32]) -> SIMD[t, 32]:
    """Returns the remainder of a division, or the dividend for a division by zero."""
    return a - whole_quotient[is_signed](a, b) * b


@inline(.always)
def byte_of[is_signed: Bool](a: Lanes, place: Int) -> Lanes:
    comptime if is_signed:
        return ((a << UInt32(24 - 8 * place)).cast[DType.int32]() >> 24).cast[DType.uint32]()
    return (a >> UInt32(8 * place)) & 255


@inline(.always)
def dot_of_bytes[a_signed: Bool, b_signed: Bool](a: Lanes, b: Lanes, c: Lanes) -> Lanes:
    var sum = c
    comptime for place in range(4):
        sum += byte_of[a_signed](a, place) * byte_of[b_signed](b, place)
    return sum


@inline(.always)
def to_bf16(a: Lanes) -> Lanes:
    var rounded = (a + 0x7FFF + ((a >> 16) & 1)) >> 16
    return (a & 0x7FFFFFFF).gt(0x7F800000).select(Lanes(0x7FFF), rounded)


@inline(.always)
def to_f16(a: Lanes) -> Lanes:
    var numbers = SIMD[DType.float32, 32](from_bits=a)
    var bits = numbers.cast[DType.float16]().to_bits[DType.uint16]().cast[DType.uint32]()
    return (a & 0x7FFFFFFF).gt(0x7F800000).select(Lanes(0x7FFF), bits)


@inline(.always)
def from_f16(a: Lanes) -> SIMD[DType.float32, 32]:
    return SIMD[DType.float16, 32](from_bits=a.cast[DType.uint16]()).cast[DType.float32]()


@inline(.always)
def canonical(a: Floats) -> Lanes:
    """Returns the bits of numbers. Every NaN becomes the same."""
    return a.eq(a).select(a.to_bits[DType.uint32](), Lanes(0x7FFFFFFF))


@inline(.always)
def low_number(a: Pairs) -> Floats:
    return Floats(from_bits=a.cast[DType.uint32]())


@inline(.always)
def high_number(a: Pairs) -> Floats:
    return Floats(from_bits=(a >> 32).cast[DType.uint32]())


@inline(.always)
def pair(low: Floats, high: Floats) -> Pairs:
    return canonical(low).cast[DType.uint64]() | (canonical(high).cast[DType.uint64]() << 32)


@inline(.always)
def flush(a: Floats) -> Floats:
    """Returns numbers with subnormal ones replaced by zeros of their sign."""
    var bits = a.to_bits[DType.uint32]()
    return Floats(from_bits=(bits & 0x7F800000).eq(0).select(bits & 0x80000000, bits))


@inline(.always)
def quotient(a: Floats, b: Floats) -> Floats:
    """Returns the result of div.approx: with a divisor beyond 2**126 it is a zero, or NaN for an infinity."""
    var bits = b.to_bits[DType.uint32]() & 0x7FFFFFFF
    var huge = bits.gt(0x7E800000) & bits.lt(0x7F800000)
    var sign = Floats(from_bits=(b.to_bits[DType.uint32]() & 0x80000000) | 0x3F800000)
    return huge.select(a * 0 * sign, a / b)


@inline(.always)
def root(a: Floats) -> Floats:
    return sqrt(a)


@inline(.always)
def one_by_root(a: Floats) -> Floats:
    return (1 / sqrt(a.cast[DType.float64]())).cast[DType.float32]()


@inline(.always)
def is_negative(a: Floats) -> SIMD[DType.bool, 32]:
    return a.to_bits[DType.uint32]().ge(0x80000000)


@inline(.always)
def least(a: Floats, b: Floats) -> Floats:
    """Returns the smaller of two numbers, with -0 before +0. If one is a NaN, returns the other."""
    var first = a.lt(b) | (a.eq(b) & is_negative(a)) | ~b.eq(b)
    return first.select(a, b)


@inline(.always)
def greatest(a: Floats, b: Floats) -> Floats:
    var first = a.gt(b) | (a.eq(b) & ~is_negative(a)) | ~b.eq(b)
    return first.select(a, b)


@inline(.always)
def or_nan(found: Floats, a: Floats, b: Floats) -> Floats:
    return (a.eq(a) & b.eq(b)).select(found, Floats(from_bits=Lanes(0x7FFFFFFF)))


@inline(.always)
def is_certain(a: Doubles, mask: UInt32) -> Bool:
    """Returns whether numbers with a relative error below 2**-48 round to the same f32 as the exact ones."""
    var low = (a * (1 - 2.0**-48)).cast[DType.float32]().to_bits[DType.uint32]()
    var high = (a * (1 + 2.0**-48)).cast[DType.float32]().to_bits[DType.uint32]()
    return (low.eq(high) | (lane_bits() & Lanes(mask)).eq(0)).reduce_and()


@inline(.never)
def power_of_two(a: Floats) -> Doubles:
    """Returns 2 to the power of a number. The exponential series gives the fraction's part, to about 2**-52."""
    var x = min(max(a, Floats(-1000)), Floats(1000)).cast[DType.float64]()
    var whole = round(x)
    var f = (x - whole) * 0.6931471805599453
    var sum = Doubles(1)
    comptime for back in range(13):
        sum = 1 + f * sum * (1.0 / Float64(13 - back))
    var scale = Doubles(from_bits=(whole.cast[DType.int64]() + 1023).cast[DType.uint64]() << 52)
    return a.eq(a).select(sum * scale, a.cast[DType.float64]())


@inline(.never)
def logarithm(a: Floats) -> Doubles:
    """Returns the logarithm to base 2: the exponent, plus the inverse hyperbolic tangent's series for the fraction."""
    var bits = a.cast[DType.float64]().to_bits[DType.uint64]()
    var exponent = (bits >> 52).cast[DType.int64]() - 1023
    var m = Doubles(from_bits=(bits & 0xFFFFFFFFFFFFF) | (UInt64(1023) << 52))
    var large = m.gt(1.4142135623730951)
    m = large.select(m * 0.5, m)
    exponent = large.select(exponent + 1, exponent)
    var s = (m - 1) / (m + 1)
    var square = s * s
    var sum = Doubles(0)
    comptime for back in range(14):
        sum = sum * square + 1.0 / Float64(27 - 2 * back)
    var found = exponent.cast[DType.float64]() + s * sum * 2.8853900817779268
    var zero = Doubles(0)
    found = a.eq(0).select(-1 / zero, found)
    found = a.lt(0).select(zero / zero, found)
    return (a.eq(a) & a.ne(Floats(1) / 0)).select(found, a.cast[DType.float64]())


@inline(.always)
def is_nan(a: Doubles) -> SIMD[DType.bool, 32]:
    return ~a.eq(a)


@inline(.always)
def made_quiet(a: Doubles) -> Doubles:
    return Doubles(from_bits=a.to_bits[DType.uint64]() | (UInt64(1) << 51))


@inline(.always)
def with_nan(found: Doubles, a: Doubles) -> Doubles:
    """Returns a result. A NaN is the operand's, made quiet, or the one that hardware generates."""
    var own = is_nan(a).select(made_quiet(a), Doubles(from_bits=Pairs(UInt64(0xFFF8) << 48)))
    return is_nan(found).select(own, found)


@inline(.always)
def with_nan(found: Doubles, a: Doubles, b: Doubles) -> Doubles:
    """Returns a result. The NaN of the first operand that is one takes precedence."""
    return is_nan(a).select(made_quiet(a), with_nan(found, b))


@inline(.always)
def with_nan(found: Doubles, a: Doubles, b: Doubles, c: Doubles) -> Doubles:
    return is_nan(a).select(made_quiet(a), with_nan(found, b, c))


@inline(.always)
def whole_rz(a: Doubles) -> Doubles:
    return trunc(a)


@inline(.always)
def whole_rm(a: Doubles) -> Doubles:
    return floor(a)


@inline(.always)
def whole_rp(a: Doubles) -> Doubles:
    return ceil(a)


@inline(.always)
def whole_rn(a: Doubles) -> Doubles:
    """Rounds to the nearest integer, ties to even; a zero keeps the sign."""
    var bits = a.to_bits[DType.uint64]()
    var sign = bits & (UInt64(1) << 63)
    var size = Doubles(from_bits=bits ^ sign)
    var there = (size + 4503599627370496.0) - 4503599627370496.0
    var found = Doubles(from_bits=there.to_bits[DType.uint64]() | sign)
    return size.lt(4503599627370496.0).select(found, a)


@inline(.always)
def to_s32(a: Doubles, of_nan: UInt32) -> Lanes:
    """Returns a whole number as an integer, limited to the range of s32."""
    var inside = min(max(is_nan(a).select(Doubles(0), a), Doubles(-2147483648.0)), Doubles(2147483647.0))
    return is_nan(a).select(Lanes(of_nan), inside.cast[DType.int32]().cast[DType.uint32]())


@inline(.always)
def to_u32(a: Doubles, of_nan: UInt32) -> Lanes:
    var inside = min(max(is_nan(a).select(Doubles(0), a), Doubles(0)), Doubles(4294967295.0))
    return is_nan(a).select(Lanes(of_nan), inside.cast[DType.int64]().cast[DType.uint32]())


@inline(.never)
def fused_toward[mode: StaticString](a: Floats, b: Floats, c: Floats) -> Floats:
    """Returns a * b + c, rounded toward zero ("rz"), down ("rm") or up ("rp"): the nearest number, or its neighbour
    if that one lies on the wrong side of the exact sum, which is total + error (Knuth).
    """
    var product = a.cast[DType.float64]() * b.cast[DType.float64]()
    var addend = c.cast[DType.float64]()
    var total = product + addend
    var back = total - product
    var error = (product - (total - back)) + (addend - back)
    var nearest = total.cast[DType.float32]()
    var wide = nearest.cast[DType.float64]()
    var above = wide.gt(total) | (wide.eq(total) & error.lt(0))
    var below = wide.lt(total) | (wide.eq(total) & error.gt(0))
    var bits = nearest.to_bits[DType.uint32]()
    var negative = is_negative(nearest)
    var zero = nearest.eq(0)
    comptime if mode == "rm":
        var under = zero.select(Lanes(0x80000001), negative.select(bits + 1, bits - 1))
        var signs = product.to_bits[DType.uint64]() | addend.to_bits[DType.uint64]()
        var sign = (signs >> 32).cast[DType.uint32]() & 0x80000000
        bits = total.eq(0).select(sign, above.select(under, bits))
    elif mode == "rp":
        bits = below.select(zero.select(Lanes(1), negative.select(bits - 1, bits + 1)), bits)
    else:
        bits = ((negative & below) | (~negative & above)).select(bits - 1, bits)
    return Floats(from_bits=bits)


@inline(.always)
def of_half[is_bf16: Bool](a: Lanes) -> Floats:
    """Returns the number in the low 16 bits."""
    comptime if is_bf16:
        return Floats(from_bits=a << 16)
    return from_f16(a)


@inline(.always)
def wide_half[is_bf16: Bool](a: Lanes) -> Doubles:
    return of_half[is_bf16](a).cast[DType.float64]()


@inline(.always)
def half_bits[is_bf16: Bool](a: Floats) -> Lanes:
    var bits = a.to_bits[DType.uint32]()
    comptime if is_bf16:
        return to_bf16(bits)
    return to_f16(bits)


@inline(.never)
def odd_sum(a: Doubles, b: Doubles) -> Doubles:
    """Returns a + b rounded to odd, so that a second rounding to fewer bits is correct: of the two neighbours of
    the exact sum, which is total + error (Knuth), the one whose last bit is set.
    """
    var total = a + b
    var back = total - a
    var error = (a - (total - back)) + (b - back)
    var bits = total.to_bits[DType.uint64]()
    var outward = error.gt(0).eq(total.gt(0)).select(bits + 1, bits - 1)
    var inexact = (error.gt(0) | error.lt(0)) & (bits & 1).eq(0)
    return Doubles(from_bits=inexact.select(outward, bits))


@inline(.never)
def rounded_half[is_bf16: Bool](a: Doubles) -> Lanes:
    """Rounds once. The intermediate f32 is rounded to odd."""
    var nearest = a.cast[DType.float32]()
    var bits = nearest.to_bits[DType.uint32]()
    var there = nearest.cast[DType.float64]()
    var inexact = (there.gt(a) | there.lt(a)) & (bits & 1).eq(0)
    var beyond = abs(there).gt(abs(a))
    return half_bits[is_bf16](Floats(from_bits=inexact.select(beyond.select(bits - 1, bits + 1), bits)))
