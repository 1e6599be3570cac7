"""The floating-point formats of PTX: decoding of bits, and rounding of numbers to a format (PTX ISA 5.2.3, 9.7.9.21).

Numbers are float64, which holds every value of the formats up to f32 exactly. A result that float64 does not hold
exactly must be *rounded to odd* (see `float_math`). Then rounding it once more, in any direction, is correct.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Format:
    """A binary floating-point format.

    Attributes:
        bits: size of the storage. exponent, fraction: sizes of these fields. bias: of the exponent.
        infinite: whether the largest exponent encodes infinities and NaNs, as in IEEE 754.
        nan: the NaN that results have, or None if the format has none.
        signed: whether there is a sign bit.
        shift: unused low bits of the storage (tf32 lies in the upper bits of an f32).
    """

    name: str
    bits: int
    exponent: int
    fraction: int
    bias: int
    infinite: bool
    nan: int | None
    signed: bool = True
    shift: int = 0

    @property
    def smallest_exponent(self) -> int:
        """The exponent of the smallest normal number and of subnormal ones (ue8m0 has no subnormals)."""
        return (1 if self.fraction else 0) - self.bias

    @property
    def largest(self) -> float:
        """The largest finite value."""
        return float(decode(np.array([self.largest_bits], np.uint32), self)[0])

    @property
    def largest_bits(self) -> int:
        ones = ((1 << (self.exponent + self.fraction)) - 1) << self.shift
        if self.infinite:
            return ones - (1 << (self.fraction + self.shift))
        return ones - 1 if self.nan is not None else ones

    @property
    def sign(self) -> int:
        """The sign bit, or 0."""
        return 1 << (self.exponent + self.fraction + self.shift) if self.signed else 0


F16 = Format("f16", 16, 5, 10, 15, True, 0x7FFF)
BF16 = Format("bf16", 16, 8, 7, 127, True, 0x7FFF)
TF32 = Format("tf32", 32, 8, 10, 127, True, 0x7FFFE000, shift=13)
F32 = Format("f32", 32, 8, 23, 127, True, 0x7FFFFFFF)
F64 = Format("f64", 64, 11, 52, 1023, True, 0x7FFFFFFFFFFFFFFF)
E4M3 = Format("e4m3", 8, 4, 3, 7, False, 0x7F)
E5M2 = Format("e5m2", 8, 5, 2, 15, True, 0x7F)
E2M3 = Format("e2m3", 6, 2, 3, 1, False, None)
E3M2 = Format("e3m2", 6, 3, 2, 3, False, None)
E2M1 = Format("e2m1", 4, 2, 1, 1, False, None)
UE4M3 = Format("ue4m3", 8, 4, 3, 7, False, 0x7F, signed=False)
UE8M0 = Format("ue8m0", 8, 8, 0, 127, False, 0xFF, signed=False)
"""The format of power-of-two scale factors."""

FORMATS = {f.name: f for f in (F16, BF16, TF32, F32, F64, E4M3, E5M2, E2M3, E3M2, E2M1, UE4M3, UE8M0)}
ELEMENT_BITS = {
    **{name: form.bits for name, form in FORMATS.items()},
    **{name: int(name[1:]) for name in ("s32", "s8", "u8", "s4", "u4", "b1")},
}
"""The size in bits of each type that tensor cores multiply or add to."""


@np.errstate(invalid="ignore")
def decode(bits: NDArray[Any], form: Format) -> Numbers:
    """Returns the numbers that bit patterns encode. Higher bits of small formats are ignored."""
    if form is F64:
        return np.asarray(bits, np.uint64).view(np.float64)
    if form is F32:
        return np.asarray(bits).astype(np.uint32).view(np.float32).astype(np.float64)
    if form is TF32:
        return (np.asarray(bits).astype(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64)
    if form is BF16:
        return (np.asarray(bits).astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)
    if form is F16:
        return np.asarray(bits).astype(np.uint16).view(np.float16).astype(np.float64)
    numbers: Numbers = _table(form)[np.asarray(bits).astype(np.intp) & ((1 << form.bits) - 1)]
    return numbers


@cache
def _table(form: Format) -> Numbers:
    """Returns every value of a format with at most 8 bits."""
    bits = np.arange(1 << form.bits)
    fraction = bits & ((1 << form.fraction) - 1)
    exponent = bits >> form.fraction & ((1 << form.exponent) - 1)
    numbers: Numbers
    if form is UE8M0:
        numbers = np.ldexp(1.0, exponent - form.bias)
    else:
        normal = np.where(exponent > 0, 1 << form.fraction, 0)
        numbers = np.ldexp((fraction + normal) * 1.0, np.maximum(exponent, 1) - form.bias - form.fraction)
    if form.infinite:
        special = exponent == (1 << form.exponent) - 1
        numbers = np.where(special, np.where(fraction == 0, np.inf, np.nan), numbers)
    elif form.nan is not None:
        magnitude = bits & ((1 << (form.exponent + form.fraction)) - 1)
        numbers = np.where(magnitude == form.nan, np.nan, numbers)
    return np.where(bits & form.sign != 0, np.negative(numbers), numbers)


def round_to_integral(numbers: Numbers, mode: str) -> Numbers:
    """Rounds to integers. mode: "rn" (ties to even), "rz", "rm" (down), "rp" (up) or "rna" (ties away from zero)."""
    if mode == "rna":
        return np.copysign(np.floor(np.abs(numbers) + 0.5), numbers)
    whole: Numbers = {"rn": np.rint, "rz": np.trunc, "rm": np.floor, "rp": np.ceil}[mode](numbers)
    return whole


def _quantum(numbers: Numbers, form: Format) -> NDArray[Any]:
    """Returns the exponent of the last place that the format has for each number."""
    quantum: NDArray[Any] = np.maximum(np.frexp(numbers)[1] - 1, form.smallest_exponent) - form.fraction
    return quantum


def encode(
    numbers: Numbers, form: Format, mode: str = "rn", saturate: bool = False, random: NDArray[Any] | None = None
) -> NDArray[Any]:
    """Returns the bit patterns of numbers rounded to a format.

    saturate: numbers beyond the largest finite value, infinities too, become that value (``.satfinite``). Formats
    without infinities and NaNs must saturate. random: for stochastic rounding (mode "rs"), the fraction of the last
    place that is added before rounding toward zero.
    """
    if form is UE8M0:
        return _encode_scale(numbers, mode, saturate)
    with np.errstate(all="ignore"):
        place = _quantum(numbers, form)
        # Subnormal float64 numbers cannot be scaled in one step. They are far below all formats but f64.
        scaled = np.ldexp(numbers, -place)
        if mode == "rs":
            assert random is not None
            whole = np.copysign(np.floor(np.abs(scaled) + random), scaled)
        else:
            whole = round_to_integral(scaled, mode)
        rounded = np.ldexp(whole, place)
    negative = np.signbit(numbers)
    magnitude = np.abs(rounded)
    over = magnitude > form.largest
    if form.infinite and not saturate:
        # Directed rounding toward zero stops at the largest finite value. Only an infinity stays infinite.
        stops = (mode in ("rz", "rs")) | ((mode == "rm") & ~negative) | ((mode == "rp") & negative)
        over_to_infinity = over & (~stops | np.isinf(numbers))
        magnitude = np.where(over_to_infinity, np.inf, np.where(over, form.largest, magnitude))
    else:
        magnitude = np.where(over, form.largest, magnitude)
    bits = _pattern(magnitude, form)
    bits = np.where(negative, bits | form.sign, bits)
    # Formats without a NaN turn it into the largest value (PTX ISA 9.7.9.21).
    nan = form.nan if form.nan is not None else form.largest_bits
    return np.where(np.isnan(numbers), nan, bits).astype(np.uint64 if form.bits == 64 else np.uint32)


def _pattern(magnitude: Numbers, form: Format) -> NDArray[Any]:
    """Returns the bits of non-negative numbers that the format holds exactly."""
    if form is F32 or form is TF32:
        return magnitude.astype(np.float32).view(np.uint32)
    if form is F64:
        return magnitude.view(np.uint64)
    finite = np.isfinite(magnitude)
    lowest = form.smallest_exponent
    exponent = np.where(finite & (magnitude > 0), np.maximum(np.frexp(magnitude)[1] - 1, lowest), lowest)
    whole = np.ldexp(np.where(finite, magnitude, 0), form.fraction - exponent).astype(np.int64)
    # The implicit bit of a normal number raises the exponent field by one.
    bits = ((exponent - lowest) << form.fraction) + whole
    infinity = ((1 << form.exponent) - 1) << form.fraction
    return np.where(finite, bits, infinity).astype(np.uint32)


def _encode_scale(numbers: Numbers, mode: str, saturate: bool) -> NDArray[Any]:
    """Encodes ue8m0: the exponent of the magnitude, rounded toward zero or up. The sign is ignored."""
    magnitude = np.abs(numbers)
    fraction, exponent = np.frexp(np.where(np.isfinite(magnitude), magnitude, 1.0))
    code = np.where(magnitude == 0, 0, np.maximum(exponent - 1 + UE8M0.bias, 0))
    if mode == "rp":
        code = code + ((fraction > 0.5) & (magnitude > 2.0**-127))
    code = np.where(np.isinf(magnitude), 0xFF, np.minimum(code, 0xFF))
    if saturate:
        code = np.minimum(code, 0xFE)
    return np.where(np.isnan(numbers), 0xFF, code).astype(np.uint32)
