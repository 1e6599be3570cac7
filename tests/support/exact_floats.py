"""Floating-point formats in plain integers and fractions: what results must be, worked out without NumPy."""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple


class Form(NamedTuple):
    """Fields of a format. special: "ieee" (infinities and NaNs), "nan" (all ones is a NaN) or "none"."""

    exponent: int
    fraction: int
    special: str = "ieee"

    @property
    def bias(self) -> int:
        return (1 << (self.exponent - 1)) - 1

    @property
    def sign(self) -> int:
        return 1 << (self.exponent + self.fraction)

    @property
    def infinity(self) -> int:
        return ((1 << self.exponent) - 1) << self.fraction

    @property
    def largest(self) -> int:
        return {"ieee": self.infinity - 1, "nan": self.sign - 2, "none": self.sign - 1}[self.special]


FORMS = {
    "f16": Form(5, 10),
    "bf16": Form(8, 7),
    "tf32": Form(8, 10),
    "f32": Form(8, 23),
    "f64": Form(11, 52),
    "e4m3": Form(4, 3, "nan"),
    "e5m2": Form(5, 2),
    "e2m3": Form(2, 3, "none"),
    "e3m2": Form(3, 2, "none"),
    "e2m1": Form(2, 1, "none"),
}
NAN = {
    "f16": 0x7FFF,
    "bf16": 0x7FFF,
    "tf32": 0x3FFFF,
    "f32": 0x7FFFFFFF,
    "f64": (1 << 63) - 1,
    "e4m3": 0x7F,
    "e5m2": 0x7F,
}
"""Results that are not a number have these bits (PTX ISA 9.7.3, 9.7.4, 9.7.9.21)."""

Exact = Fraction | str
""" "nan", "inf", "-inf", "-0" or a number (+0 among them)."""


def value(bits: int, name: str) -> Exact:
    """What a bit pattern stands for."""
    form = FORMS[name]
    magnitude = bits & (form.sign - 1)
    negative = bool(bits & form.sign)
    if form.special == "ieee" and magnitude >= form.infinity:
        return "nan" if magnitude > form.infinity else "-inf" if negative else "inf"
    if form.special == "nan" and magnitude == form.sign - 1:
        return "nan"
    exponent, fraction = magnitude >> form.fraction, magnitude & ((1 << form.fraction) - 1)
    scale = max(exponent, 1) - form.bias - form.fraction
    number = (fraction + ((1 << form.fraction) if exponent else 0)) * Fraction(2) ** scale
    return "-0" if negative and not number else -number if negative else number


def one_nan(bits: int, name: str) -> int:
    """The bits, but one pattern for all NaNs of f64, which keep what they hold; a recording of a GPU holds which."""
    return NAN[name] if name == "f64" and value(bits, name) == "nan" else bits


def rounded(number: Exact, name: str, mode: str = "rn", saturate: bool = False) -> int:
    """The bits of a number in a format."""
    form = FORMS[name]
    if isinstance(number, str):
        if number == "nan":
            return NAN.get(name, form.largest)
        if number == "-0":
            return form.sign
        top = form.largest if saturate or form.special != "ieee" else form.infinity
        return top | (form.sign if number == "-inf" else 0)
    sign, magnitude = (form.sign if number < 0 else 0), abs(number)
    up = {"rn": None, "rna": None, "rz": False, "rm": number < 0, "rp": number > 0}[mode]
    # Bit patterns of one sign are in the order of their magnitudes: find the last one that is not larger.
    low = _pattern_below(magnitude, form)
    if low > form.largest:
        low = form.largest
    below, above = _magnitude(low, form), _magnitude(low + 1, form)
    if below == magnitude:
        return sign | low
    if up is None:
        middle = (below + above) / 2
        up = magnitude > middle or (magnitude == middle and (mode == "rna" or low % 2 == 1))
    found = low + 1 if up else low
    if found > form.largest:
        found = form.largest if saturate or form.special != "ieee" else form.infinity
    return sign | found


def _magnitude(pattern: int, form: Form) -> Fraction:
    exponent, fraction = pattern >> form.fraction, pattern & ((1 << form.fraction) - 1)
    scale = max(exponent, 1) - form.bias - form.fraction
    return (fraction + ((1 << form.fraction) if exponent else 0)) * Fraction(2) ** scale


def _pattern_below(magnitude: Fraction, form: Form) -> int:
    low, high = 0, 1 << (form.exponent + form.fraction + 1)
    while high - low > 1:
        middle = (low + high) // 2
        if _magnitude(middle, form) <= magnitude:
            low = middle
        else:
            high = middle
    return low


def is_subnormal(bits: int, name: str) -> bool:
    form = FORMS[name]
    return not bits & form.infinity and bool(bits & (form.sign - 1))


def flushed(bits: int, name: str) -> int:
    return bits & FORMS[name].sign if is_subnormal(bits, name) else bits
