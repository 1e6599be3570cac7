"""Number formats: the bit-level model of the tensor core, and the conversions of `cvt`."""

from __future__ import annotations

import itertools
import math
import struct
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from harness.emulator import numerics

TYPES = {"bf16": ml_dtypes.bfloat16, "f16": np.float16}


def exact_parts(value: float, smallest: int) -> tuple[Fraction, int]:
    """(significand, exponent) with 1 <= |significand| < 2 unless subnormal."""
    if value == 0:
        return Fraction(0), -126
    exponent = max(math.frexp(value)[1] - 1, smallest)
    return Fraction(value) / Fraction(2) ** exponent, exponent


def slow_dot(a, b, c, input_type) -> float:
    """The bit-level model for one f32 element, in rational numbers."""
    smallest = numerics.MIN_EXPONENT[input_type]
    terms = []
    for x, y in zip(a, b, strict=True):
        (sx, ex), (sy, ey) = exact_parts(float(x), smallest), exact_parts(float(y), smallest)
        terms.append((sx * sy, ex + ey if sx * sy else -126))
    terms.append(exact_parts(float(c), -126))
    top = max(-126, *(e for _, e in terms))
    unit = Fraction(2) ** (top - 25)
    total = sum(math.trunc(s * Fraction(2) ** e / unit) for s, e in terms) * unit
    if total == 0:
        return 0.0
    exponent = max(math.frexp(float(total))[1] - 1, -126)
    ulp = Fraction(2) ** (exponent - 23)
    return float(math.trunc(total / ulp) * ulp)


@pytest.mark.parametrize("input_type", ["bf16", "f16"])
@pytest.mark.parametrize("spread", [0, 4, 12, 60])
def test_bit_level_model(input_type, spread):
    rng = np.random.default_rng(spread)
    spread = min(spread, 7) if input_type == "f16" else spread
    m, n = 12, 10

    def random(*shape):
        return rng.standard_normal(shape) * 2.0 ** rng.integers(-spread, spread + 1, shape)

    a = random(m, 16).astype(TYPES[input_type]).astype(np.float32)
    b = random(n, 16).astype(TYPES[input_type]).astype(np.float32)
    a[0, :8] = 0
    a[1] = 0
    a[2] = np.float32(TYPES[input_type](1e-39 if input_type == "bf16" else 3e-7))  # subnormal
    c = random(m, n).astype(np.float32)
    c[:, 0] = 0
    got = numerics.tensor_core_dot(a, b, c, input_type, input_type, "f32").view(np.float32)
    for row, column in itertools.product(range(m), range(n)):
        assert got[row, column] == slow_dot(a[row], b[column], c[row, column], input_type), (row, column)
    if spread:
        assert (got != (a.astype(np.float64) @ b.T.astype(np.float64) + c).astype(np.float32)).any()


def test_bit_level_model_cuts_toward_zero():
    a, b = np.zeros((2, 16), np.float32), np.zeros((1, 16), np.float32)
    a[0, :2], a[1], b[0] = (2.0**-12, 2.0**-11), 2.0**-14, 2.0**-12
    for sign in (1, -1):
        c = np.full((2, 1), sign, np.float32)
        got = numerics.tensor_core_dot(a, sign * b, c, "bf16", "bf16", "f32").view(np.float32)
        # Row 0: 1 + 2^-24 + 2^-23 survives the alignment and is cut to f32; nearest would be 1 + 2^-22.
        assert got[0, 0] == sign * (1 + 2.0**-23)
        # Row 1: sixteen products of 2^-26 are each below the 25 fractional bits, though together 2^-22.
        assert got[1, 0] == sign


def test_bit_level_model_special_values():
    a = np.ones((6, 16), np.float32)
    b = np.ones((1, 16), np.float32)
    c = np.zeros((6, 1), np.float32)
    a[0, 3] = np.inf
    a[1, 3], a[1, 4] = np.inf, -np.inf
    a[2, 3] = np.nan
    c[3] = -np.inf
    a[4], b_large = 2.0**127, 2.0**127
    got = numerics.tensor_core_dot(a, b, c, "bf16", "bf16", "f32")
    assert got[:4, 0].tolist() == [0x7F800000, 0x7FFFFFFF, 0x7FFFFFFF, 0xFF800000]
    assert got[4, 0] == 0x7F800000 and got[5].view(np.float32)[0] == 16
    got = numerics.tensor_core_dot(a[4:5], b * b_large, c[:1], "bf16", "bf16", "f32")
    assert got[0, 0] == 0x7F800000


def bf16_reference(bits: int) -> int:
    """Round-to-nearest-even by integer arithmetic."""
    if bits & 0x7FFFFFFF > 0x7F800000:
        return 0x7FFF
    kept, dropped = bits >> 16, bits & 0xFFFF
    return kept + (dropped > 0x8000 or (dropped == 0x8000 and kept & 1))


def f16_reference(bits: int) -> int:
    value = struct.unpack("<f", struct.pack("<I", bits))[0]
    if math.isnan(value):
        return 0x7FFF
    try:
        return struct.unpack("<H", struct.pack("<e", value))[0]
    except OverflowError:
        return 0x7C00 | (0x8000 if value < 0 else 0)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(0, 2**32 - 1), min_size=2, max_size=64))
@example([0x7F800000, 0xFF800000, 0x7F800001, 0xFFC00000, 0x7F7FFFFF, 0x00000001, 0x80000000])
@example([0x3F808000, 0x3F818000, 0x3F808001, 0x477FF000, 0x477FEFFF, 0x33000000, 0x33000001])
def test_conversion_to_16_bits(words):
    bits = np.array(words, np.uint32)
    for convert, single, reference in (
        (numerics.cvt_rn_bf16x2, numerics.cvt_rn_bf16, bf16_reference),
        (numerics.cvt_rn_f16x2, numerics.cvt_rn_f16, f16_reference),
    ):
        expected = np.array([reference(w) for w in words], np.uint32)
        assert (convert(bits, bits[::-1].copy()) == expected << 16 | expected[::-1]).all()
        assert (single(bits) == expected).all()
