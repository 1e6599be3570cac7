"""What is published of a B200's tcgen05.mma, one sum at a time, in exact integers (sf-tensor/tcgen05, MODEL.md).

It is written from the published rules, and shares nothing with the emulator: formats are decoded here, too. A number is
(mantissa, exponent of its last bit, raw exponent); what is none is "nan", "inf" or "-inf".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

FIELDS = {
    "f32": (8, 23), "tf32": (8, 10), "bf16": (8, 7), "f16": (5, 10), "e5m2": (5, 2), "e4m3": (4, 3), "e3m2": (3, 2),
    "e2m3": (2, 3), "e2m1": (2, 1), "ue4m3": (4, 3), "ue8m0": (8, 0),
}  # fmt: skip
"""Bits of the exponent and of the fraction."""
IEEE = ("f32", "tf32", "bf16", "f16", "e5m2")
"""Their largest exponent stands for infinity and NaN."""

Number = tuple[int, int, int]


@dataclass
class Sum:
    """One sum and its raw codes. absent: positions along K that a sparse A masks."""

    kind: str
    a_type: str
    b_type: str
    d_type: str
    a: Sequence[int]
    b: Sequence[int]
    c: int
    scale_type: str = ""
    scale_a: Sequence[int] = ()
    scale_b: Sequence[int] = ()
    saturate: bool = False
    absent: frozenset[int] = frozenset()


@cache
def number(code: int, element: str) -> Number | str:
    if element == "ue8m0":
        return "nan" if code == 0xFF else (1, code - 127, code - 127)
    exponent_bits, fraction_bits = FIELDS[element]
    bias = 2 ** (exponent_bits - 1) - 1
    fraction = code % 2**fraction_bits
    exponent = code // 2**fraction_bits % 2**exponent_bits
    negative = element != "ue4m3" and code // 2 ** (fraction_bits + exponent_bits) % 2
    last = exponent == 2**exponent_bits - 1
    if element in IEEE and last:
        return "nan" if fraction else "-inf" if negative else "inf"
    if element in ("e4m3", "ue4m3") and last and fraction == 7:
        return "nan"
    mantissa = fraction + (2**fraction_bits if exponent else 0)
    raw = max(exponent, 1) - bias
    return -mantissa if negative else mantissa, raw - fraction_bits, raw


def cut(mantissa: int, exponent: int, quantum: int) -> int:
    """A number as a whole multiple of 2^quantum, toward zero."""
    if exponent >= quantum:
        return mantissa << exponent - quantum
    units = abs(mantissa) >> quantum - exponent
    return units if mantissa > 0 else -units


def to_f32(units: int, quantum: int) -> int:
    """Bits of units * 2^quantum, cut toward zero."""
    if not units:
        return 0
    magnitude = abs(units)
    top = magnitude.bit_length() - 1 + quantum
    if top > 127:
        word = 0xFF << 23
    else:
        # From the smallest normal number down the last place is the same; the implicit bit adds one to the exponent.
        place = max(top, -126) - 23
        word = cut(magnitude, quantum, place) + (place + 149 << 23)
    return word | 1 << 31 if units < 0 and word else word


def to_f16(units: int, quantum: int) -> int:
    """Bits of units * 2^quantum, rounded to nearest even."""
    if not units:
        return 0
    magnitude = abs(units)
    place = max(magnitude.bit_length() - 1 + quantum, -14) - 10
    halves = cut(magnitude, quantum, place - 1)
    exact = cut(halves, place - 1, quantum) == magnitude if place - 1 > quantum else True
    whole = halves // 2 + (halves % 2 and (halves // 2 % 2 or not exact))
    word = min(whole + (place + 24 << 10), 0x1F << 10)
    return word | 1 << 15 if units < 0 and word else word


def published(case: Sum) -> int:
    """The word of D."""
    present = [k for k in range(len(case.a)) if k not in case.absent]
    if case.kind == "i8":
        return _integers(case, present)
    c = number(case.c, case.d_type)
    factors = _factors(case)
    if c == "nan" or "nan" in factors:
        return _special("nan", case.d_type)
    infinite = {c} if isinstance(c, str) else set()
    products: dict[int, tuple[Number, int]] = {}
    for k in present:
        x, y = number(case.a[k], case.a_type), number(case.b[k], case.b_type)
        if isinstance(x, str) or isinstance(y, str):
            sign = _sign(x) * _sign(y)
            if "nan" in (x, y) or sign == 0:
                return _special("nan", case.d_type)
            infinite.add("inf" if sign > 0 else "-inf")
        elif factors:
            (m, e, r) = factors[k * len(factors) // len(case.a)]
            products[k] = (x[0] * y[0] * m, x[1] + y[1] + e, x[2] + y[2] + r), r
        else:
            products[k] = (x[0] * y[0], x[1] + y[1], x[2] + y[2]), 0
    if infinite:
        return _special("nan" if len(infinite) == 2 else infinite.pop(), case.d_type)
    nonzero = {k: p for k, p in products.items() if p[0][0]}
    if not nonzero and factors:
        return case.c
    if case.kind in ("mxf4", "mxf4nvf4"):
        return to_f32(*_of_fp4(case, nonzero, c, len(case.a) // len(factors)))
    terms = [p for p, _ in nonzero.values()] + ([c] if c[0] else [])
    quantum = max((raw for _, _, raw in terms), default=0) - 25
    units = sum(cut(m, e, quantum) for m, e, _ in terms)
    return (to_f16 if case.d_type == "f16" else to_f32)(units, quantum)


def _integers(case: Sum, present: Sequence[int]) -> int:
    def signed(code: int, bits: int) -> int:
        return code - 2**bits if code >= 2 ** (bits - 1) else code

    of = {"u8": int, "s8": lambda code: signed(code, 8)}
    total = signed(case.c, 32) + sum(of[case.a_type](case.a[k]) * of[case.b_type](case.b[k]) for k in present)
    if case.saturate:
        total = min(max(total, -(2**31)), 2**31 - 1)
    return total % 2**32


def _special(what: str, d_type: str) -> int:
    words = {"nan": 0x7FFFFFFF, "inf": 0x7F800000, "-inf": 0xFF800000}
    halves = {"nan": 0x7FFF, "inf": 0x7C00, "-inf": 0xFC00}
    return (halves if d_type == "f16" else words)[what]


def _sign(x: Number | str) -> int:
    if isinstance(x, str):
        return -1 if x == "-inf" else 1
    return (x[0] > 0) - (x[0] < 0)


def _factors(case: Sum) -> list:
    """Of each block, A's factor times B's."""
    found: list = []
    for of_a, of_b in zip(case.scale_a, case.scale_b, strict=True):
        x, y = number(of_a, case.scale_type), number(of_b, case.scale_type)
        found.append("nan" if "nan" in (x, y) else (x[0] * y[0], x[1] + y[1], x[2] + y[2]))
    return found


def _of_fp4(case: Sum, nonzero: dict[int, tuple[Number, int]], c: Number, block: int) -> tuple[int, int]:
    """Units and quantum of a sum of mxf4 or mxf4nvf4."""
    ue8m0 = case.scale_type == "ue8m0"
    largest = max(raw for (_, _, raw), _ in nonzero.values())
    scales = max(scale for _, scale in nonzero.values())
    outranked = bool(c[0]) and c[2] >= largest
    if outranked:
        quantum, size = c[2] - 35, 16 if ue8m0 else block
    elif ue8m0:
        quantum, size = max(largest - 39, c[2] - 39 if c[0] else -1000, scales - 35), 16
    else:
        quantum, size = max(max(largest, c[2] if c[0] else -1000) - 39, scales - 35), 4
    groups = []
    for first in range(0, len(case.a), size):
        inside = [nonzero[k] for k in range(first, first + size) if k in nonzero]
        if not inside:
            continue
        last = min(e for (_, e, _), _ in inside)
        exact = sum(m << e - last for (m, e, _), _ in inside)
        coarse = quantum
        if ue8m0 and c[0] and c[2] >= max(raw for (_, _, raw), _ in inside):
            coarse = max(quantum, c[2] - 35)
        groups.append((cut(exact, last, coarse) << coarse - quantum, max(scale for _, scale in inside)))
    of_c = cut(c[0], c[1], quantum)
    units = of_c + sum(group for group, _ in groups)
    if ue8m0 and not outranked and 0 < to_f32(units, quantum) % 2**31 < 2**23:
        kept = [group for group, scale in groups if scale == scales or abs(group) * 2 ** (quantum + 174) >= 1]
        units = of_c + sum(kept)
    return units, quantum
