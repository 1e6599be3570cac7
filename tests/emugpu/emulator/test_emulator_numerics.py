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

from emugpu.emulator.units import numerics, sums
from emugpu.emulator.units.formats import FORMATS

TYPES = {"bf16": ml_dtypes.bfloat16, "f16": np.float16}


def exact_parts(value: float, smallest: int) -> tuple[Fraction, int]:
    """(significand, exponent) with 1 <= |significand| < 2 unless subnormal."""
    if value == 0:
        return Fraction(0), -126
    exponent = max(math.frexp(value)[1] - 1, smallest)
    return Fraction(value) / Fraction(2) ** exponent, exponent


def slow_dot(a, b, c, input_type) -> float:
    """The bit-level model for one f32 element, in rational numbers."""
    smallest = FORMATS[input_type].smallest_exponent
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
    got = sums.tensor_core_dot(a, b, c, input_type, input_type, "f32", sums.HOPPER).view(np.float32)
    for row, column in itertools.product(range(m), range(n)):
        assert got[row, column] == slow_dot(a[row], b[column], c[row, column], input_type), (row, column)
    if spread:
        assert (got != (a.astype(np.float64) @ b.T.astype(np.float64) + c).astype(np.float32)).any()


def test_bit_level_model_cuts_toward_zero():
    a, b = np.zeros((2, 16), np.float32), np.zeros((1, 16), np.float32)
    a[0, :2], a[1], b[0] = (2.0**-12, 2.0**-11), 2.0**-14, 2.0**-12
    for sign in (1, -1):
        c = np.full((2, 1), sign, np.float32)
        got = sums.tensor_core_dot(a, sign * b, c, "bf16", "bf16", "f32", sums.HOPPER).view(np.float32)
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
    got = sums.tensor_core_dot(a, b, c, "bf16", "bf16", "f32", sums.HOPPER)
    assert got[:4, 0].tolist() == [0x7F800000, 0x7FFFFFFF, 0x7FFFFFFF, 0xFF800000]
    assert got[4, 0] == 0x7F800000 and got[5].view(np.float32)[0] == 16
    got = sums.tensor_core_dot(a[4:5], b * b_large, c[:1], "bf16", "bf16", "f32", sums.HOPPER)
    assert got[0, 0] == 0x7F800000


# One element of D = A . B^T + C each: type, 16 values of A's row and of B's column, C, and the D that an
# H200's wgmma gave. All as bits.
MEASURED = {
    "no C": ("bf16", "c004be883da3bf30bfe63f283e2dbef0be0f3eadbf8d4002c0b73eadbf863f2a",
        "bd5b3e31bfcf3c14409ebf454047bc593e693f6d3f083ec2bdd93fc0beac3f86", 0x00000000, 0xC0C94FAA),
    "products only": ("bf16", "3e23be9cbd0e3d64c15ebccc401ebe5d40ba3f8dbe11bdbf411bc00d3ef2c142",
        "3fb33df2bf49be6e402fbdf63fc1bd3740493f573e0abf443e0bbd1e40cfbd1e", 0x80000000, 0xC11D892B),
    "wide exponents": ("bf16", "42ff408bbc26bd674056c13e40e3c1a2c1ed3d5dc0db3d833f9ebe85c0243fb1",
        "4246be553e893a4b3f39c193c202badfba4d3fbfbcad42383d69bf40c1044377", 0xC59D3056, 0x44CC91E8),
    "subnormal A": ("bf16", "807b804f0008804f800500628015806500620003801d001c002e8046005c0074",
        "be55bf0bbe5abf0d3f3fbeccbee2bf9abd4bbf65be393f853ebb3f013eb63d72", 0x00000000, 0x00F62C20),
    "all subnormal": ("bf16", "80048022001180070005805c0079004500378017807380008011003a80080059",
        "00558033005f807e801800628034804b800880310074001c0013800e8060804f", 0x00000000, 0x00000000),
    "subnormal result": ("bf16", "1c9f9acc1cb81b291ab29c6c9b941c479ca81c261bb21b8e9d0d9ad31c269c43",
        "a02a9f119f11a09620c99f0aa0b1208da04020029d8b1f801f2fa0131e282102", 0x8003D625, 0x800423EC),
    "overflow": ("bf16", "de2d5c215ddc5f82de9e5e6f5ebadef45dc25da7de715e915f045f11ddc45dc2",
        "df0fdea8dea5db895de65d8bde9c5cfbdf2adfb6dbdfdf4edee8df155eabdf16", 0x7D46B04F, 0xFF800000),
    "infinity": ("bf16", "3aa13e99be8c7f80bee9bf7e3d763facbefcbf1f3efb3eb73dd8bf6ebcf03f32",
        "c003bf783fccbf873f27bfb03e99bea4bd753f123fe13e473dffbf793f15be7c", 0xBE965B1A, 0xFF800000),
    "inf - inf": ("bf16", "bfacbeeabff37f80bfecff80bfa23e8b3e21be3fc021bf0abd473de8bfc4bef5",
        "3f5f3f94bf3fbf74bde1bfcd3fbcc01abf8ebe8abe693e2a3e8bbe5b3f92c009", 0xC022F6FF, 0x7FFFFFFF),
    "zeros": ("bf16", "0000000000000000000000000000000000000000000000000000000000000000",
        "3f55bd333fdfbffebe983f62beb4bf4bbe88bfb13df4401c3f93bf8ebf60becf", 0x00000000, 0x00000000),
    "f16": ("f16", "21cba8c744ee338928aac08babe39e83b670caf231c8b09a2e68b3c12d37279b",
        "9b832925ae6bc48e3baebc083330c1a9b181ae54cf2b4410cc14c4efcc03b112", 0x80000000, 0xC0A9F4FC),
    "subnormal f16": ("f16", "80a2824703310095814b825b012d83f88369823a01070184813c81e680010218",
        "2bdfb9aebd3bbd10b7d8bf69bd64be8a31d536874004bdfdb9703b4db2f0b53b", 0x00000000, 0x38505E5F),
}  # fmt: skip


@pytest.mark.parametrize(("kind", "a", "b", "c", "d"), MEASURED.values(), ids=MEASURED)
def test_bit_level_model_agrees_with_an_h200(kind, a, b, c, d):
    row, column = (
        np.frombuffer(bytes.fromhex(x), ">u2").astype(np.uint16).view(TYPES[kind]).astype(np.float32)[None]
        for x in (a, b)
    )
    start = np.array([[c]], np.uint32).view(np.float32)
    assert sums.tensor_core_dot(row, column, start, kind, kind, "f32", sums.HOPPER)[0, 0] == d


def test_tf32_rounding_as_seen_on_an_h200():
    pairs = {
        0x3F801000: 0x3F800000, 0x3F803000: 0x3F804000, 0x3F801001: 0x3F802000, 0x3F802FFF: 0x3F802000,
        0xBF803000: 0xBF804000, 0x7F800000: 0x7F800000, 0xFF800000: 0xFF800000, 0x7F800001: 0x7FFFE000,
        0xFFC12345: 0x7FFFE000, 0x7F7FFFFF: 0x7F800000, 0xFF7FFFFF: 0xFF800000, 0x7F7FEFFF: 0x7F7FE000,
        0x00001000: 0x00000000, 0x00003000: 0x00004000, 0x007FFFFF: 0x00800000, 0x80000FFF: 0x80000000,
    }  # fmt: skip
    given_bits, expected = (np.array(list(x), np.uint32) for x in (pairs, pairs.values()))
    assert [hex(x) for x in numerics.round_to_tf32(given_bits)] == [hex(x) for x in expected]


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
    for dtype, reference in ((ml_dtypes.bfloat16, bf16_reference), (np.float16, f16_reference)):
        expected = np.array([reference(w) for w in words], np.uint32)
        assert (numerics.pack_halves(dtype, bits, bits[::-1].copy()) == expected << 16 | expected[::-1]).all()
        assert (numerics.pack_halves(dtype, words[0], bits) == expected[0] << 16 | expected).all()
