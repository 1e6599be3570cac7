"""Operations on register values against definitions bit by bit, at the edges of their operands."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from ptx_programs import STORE_R1, run

from emugpu.emulator.instructions import values

WORDS = [0, 1, 0x80000000, 0x7FFFFFFF, 0xFFFFFFFF, 0x12345678, 0xC0000003]
LONG_WORDS = [0, 1, 1 << 63, (1 << 63) - 1, (1 << 64) - 1, 0x123456789ABCDEF0]
POSITIONS = [0, 1, 7, 30, 31, 32, 33, 62, 63, 64, 65, 200, 255, 256, 257, 300]


def bit(value: int, n: int) -> int:
    return value >> n & 1


def lanes(items: list[int], dtype) -> list[np.ndarray]:
    """Arrays of 32 lanes that hold all items, the last ones again where it does not come out even."""
    padded = items + [items[-1]] * (-len(items) % 32)
    return [np.array(padded[n : n + 32], dtype) for n in range(0, len(padded), 32)]


def check(function, reference, cases: list[tuple[int, ...]], bits: int, result_bits: int = 0) -> None:
    """Scalars, and arrays of lanes, give what the definition gives."""
    expected = [reference(*case) for case in cases]
    assert [function(*case) for case in cases] == expected
    dtype = np.uint64 if bits == 64 else np.uint32
    columns = [lanes([case[n] for case in cases], dtype) for n in range(len(cases[0]))]
    found = [function(*operands) for operands in zip(*columns, strict=True)]
    assert all(part.dtype == (np.uint64 if (result_bits or bits) == 64 else np.uint32) for part in found)
    assert np.concatenate(found)[: len(cases)].tolist() == expected


@pytest.mark.parametrize(("bits", "words"), [(32, WORDS), (64, LONG_WORDS)])
@pytest.mark.parametrize("is_signed", [False, True])
def test_bit_fields_are_extracted_as_the_isa_defines_it(bits, words, is_signed):
    def reference(a: int, b: int, c: int) -> int:
        position, length, top = b & 255, c & 255, bits - 1
        fill = bit(a, min(position + length - 1, top)) if is_signed and length else 0
        inside = [i < length and position + i <= top for i in range(bits)]
        return sum((bit(a, position + i) if inside[i] else fill) << i for i in range(bits))

    def function(a, b, c):
        return values.bit_field_extract(a, b, c, bits, is_signed)

    check(function, reference, list(itertools.product(words, POSITIONS, POSITIONS)), bits)


@pytest.mark.parametrize(("bits", "words"), [(32, WORDS[3:]), (64, LONG_WORDS[3:])])
def test_bit_fields_are_inserted_as_the_isa_defines_it(bits, words):
    def reference(a: int, b: int, c: int, d: int) -> int:
        position, length = c & 255, d & 255
        result = [bit(b, i) for i in range(bits)]
        for i in range(length):
            if position + i < bits:
                result[position + i] = bit(a, i)
        return sum(item << i for i, item in enumerate(result))

    def function(a, b, c, d):
        return values.bit_field_insert(a, b, c, d, bits)

    cases = list(itertools.product(words, words, POSITIONS, [0, 1, 5, 31, 32, 64, 255, 257]))
    check(function, reference, cases, bits)


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("wrap", [False, True])
def test_funnel_shifts_move_bits_from_one_word_into_the_other(left, wrap):
    def reference(low: int, high: int, amount: int) -> int:
        amount = amount % 32 if wrap else min(amount, 32)
        bits = [bit(low, i) for i in range(32)] + [bit(high, i) for i in range(32)]
        first = 32 - amount if left else amount
        return sum(bits[first + i] << i for i in range(32))

    def function(low, high, amount):
        return values.funnel_shift(low, high, amount, left, wrap)

    check(function, reference, list(itertools.product(WORDS, WORDS, [0, 1, 31, 32, 33, 63, 64, 1 << 31])), 32)


@pytest.mark.parametrize(("bits", "words"), [(32, WORDS), (64, LONG_WORDS)])
def test_shifts_by_more_than_the_width_leave_nothing_but_the_sign(bits, words):
    cases = list(itertools.product(words, [0, 1, bits - 1, bits, bits + 1, 255]))
    full = (1 << bits) - 1

    def filled(a: int, n: int) -> int:
        return sum(bit(a, min(i + n, bits - 1)) << i for i in range(bits))

    check(lambda a, n: values.shift_left(a, n, bits), lambda a, n: (a << n) & full, cases, bits)
    check(lambda a, n: values.shift_right(a, n, bits), lambda a, n: a >> n, cases, bits)
    check(lambda a, n: values.shift_right_signed(a, n, bits), filled, cases, bits)
    for a, n in cases:
        many = np.full(32, a, np.uint64 if bits == 64 else np.uint32)
        assert values.shift_right_signed(many, n, bits).tolist() == [filled(a, n)] * 32
        if n < bits:
            assert (values.shift_left(many, n, bits) == (a << n) & full).all()
        else:
            assert not values.shift_left(many, n, bits).any() and not values.shift_right(many, n, bits).any()


def test_bytes_are_permuted_and_their_signs_spread():
    def reference(a: int, b: int, selector: int) -> int:
        pool = [*a.to_bytes(4, "little"), *b.to_bytes(4, "little")]
        out = []
        for i in range(4):
            control = selector // 16**i % 16
            byte = pool[control % 8]
            out.append(byte if control < 8 else 255 * (byte >= 128))
        return int.from_bytes(bytes(out), "little")

    selectors = [0x3210, 0x7654, 0xFEDC, 0xBA98, 0x0123, 0x8F70, 0x12345]
    check(values.prmt, reference, list(itertools.product([0x80FF0102, 0x7F8081AA], [0x55667788, 0], selectors)), 32)


def f32(x: float) -> int:
    return int(np.float32(x).view(np.uint32))


def nearest(x: Fraction) -> int:
    """The f32 nearest to a number, ties to even."""
    if not x:
        return 0
    exponent = max(math.floor(math.log2(abs(x))) - 23, -149)
    while abs(x) >= Fraction(2) ** (exponent + 24):
        exponent += 1
    return f32(float(round(x / Fraction(2) ** exponent) * Fraction(2) ** exponent))


def test_a_fused_multiply_add_is_rounded_once():
    one = 1 + 2.0**-12
    numbers = [1.0, -1.0, one, 1 + 2.0**-23, -1 - 2.0**-23, 2.0**-24, -(2.0**-24), 2.0**-60, -(2.0**-60), 3.0,
               2.0**-126, 2.0**-149, -(2.0**-140), 2.0**-75, 1 - 2.0**-24, 0.1]  # fmt: skip
    numbers = [float(np.float32(x)) for x in numbers]
    cases = list(itertools.product(numbers, repeat=3))
    expected = [nearest(Fraction(a) * Fraction(b) + Fraction(c)) for a, b, c in cases]
    columns = [np.array([f32(case[n]) for case in cases], np.uint32) for n in range(3)]
    found = values.fused_multiply_add(*columns)
    assert ((found == expected) | ((found == 0x80000000) & (np.array(expected) == 0))).all()
    for case, wanted in list(zip(cases, expected, strict=True))[::7]:
        assert values.fused_multiply_add(*(f32(x) for x in case)) & 0x7FFFFFFF == wanted & 0x7FFFFFFF, case


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_fused_multiply_add_of_infinities():
    infinity, largest = 0x7F800000, 0x7F7FFFFF
    assert values.fused_multiply_add(infinity, f32(1), infinity ^ 1 << 31) == 0x7FFFFFFF
    assert values.fused_multiply_add(largest, f32(2), 0) == infinity
    assert values.fused_multiply_add(largest, f32(1), f32(2.0**103)) == infinity
    assert values.fused_multiply_add(largest, f32(1), f32(2.0**102)) == largest
    assert values.fused_multiply_add(infinity, 0, 0) == 0x7FFFFFFF


@pytest.mark.parametrize(("operation", "reference"), [
    ("add.u32", sum), ("xor.b32", lambda v: v[0] ^ v[1] ^ v[2]), ("or.b32", lambda v: v[0] | v[1] | v[2]),
    ("and.b32", lambda v: v[0] & v[1] & v[2]), ("min.u32", min), ("max.u32", max),
    ("min.s32", lambda v: v[1]), ("max.s32", lambda v: v[2]),
])  # fmt: skip
def test_a_reduction_takes_every_lane_of_its_mask(operation, reference):
    """Lanes 3, 4 and 5 alone have numbers of their own; the first and last of them are positive."""
    three = [0x7000000F, 0xC0000033, 0x70000055]
    body = f"""
    setp.lt.u32 %p1, %r0, 3;
    setp.gt.or.u32 %p1, %r0, 5, %p1;
    mov.b32 %r1, 77;
    @%p1 bra STORE;
    mov.b32 %r2, {three[0]};
    setp.eq.u32 %p2, %r0, 4;
    @%p2 mov.b32 %r2, {three[1]};
    setp.eq.u32 %p2, %r0, 5;
    @%p2 mov.b32 %r2, {three[2]};
    redux.sync.{operation} %r1, %r2, 0x38;
    STORE:
    """
    expected = [77] * 32
    expected[3:6] = [reference(three) % (1 << 32)] * 3
    assert run(body + STORE_R1 + "ret;").tolist() == expected


def test_a_fused_multiply_add_with_a_subnormal_result_is_rounded_once():
    """Just beside the middle between two subnormal numbers, by less than float64 can hold."""
    factors = (2.0**-75 * (1 + 2.0**-16), 2.0**-75 * (1 - 2.0**-16))
    for addend, below, above in ((2.0**-127 + 2.0**-149, 0, 1), (2.0**-127, 0, 1)):
        ulp = 2.0**-149
        # The product is half of the last place but for 2^-182.
        assert values.fused_multiply_add(*map(f32, factors), f32(addend)) == f32(addend + below * ulp)
        more = (factors[0], 2.0**-75 * (1 + 2.0**-16))
        assert values.fused_multiply_add(*map(f32, more), f32(addend)) == f32(addend + above * ulp)
        many = [np.full(32, f32(x), np.uint32) for x in (*factors, addend)]
        assert (values.fused_multiply_add(*many) == f32(addend + below * ulp)).all()
