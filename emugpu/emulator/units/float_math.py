"""Floating-point arithmetic of PTX in every format and rounding mode (PTX ISA 9.7.3, 9.7.4, 9.7.5).

Operands are decoded to float64, and the exact result is rounded there *to odd*: toward zero, with the last bit set if
anything was lost. If a number has at least two more bits than the format, rounding it again to the format is correct.
For f64 itself there is no wider type, so roundings other than to nearest are computed with fractions.

The approximate functions (``.approx``) give the correctly rounded result, which is within the error that the ISA
allows. sin and cos first reduce their argument as hardware does, which loses a large argument completely.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emugpu.emulator.units.formats import F64, Format, Numbers, decode, encode

NAN64 = np.uint64(0xFFF8000000000000)
QUIET64 = np.uint64(1 << 51)
_CANONICAL64 = np.uint64(0x7FFFFFFFFFFFFFFF).view(np.float64)
"""The result of f64 min and max for two NaNs (PTX ISA 9.7.3.11)."""


def _to_odd(total: Numbers, error: Numbers) -> Numbers:
    """Returns ``total + error``, which float64 cannot hold, rounded to odd. total: the nearest float64 of the sum."""
    with np.errstate(all="ignore"):
        bits = np.asarray(total).view(np.uint64)
        inexact = np.isfinite(total) & (error != 0) & ((bits & 1) == 0)
        toward = np.where(error > 0, np.inf, -np.inf)
        return np.where(inexact, np.nextafter(total, toward), total)


def _sum(a: Numbers, b: Numbers) -> tuple[Numbers, Numbers]:
    """Returns the nearest float64 of a sum, and its rounding error (Knuth)."""
    total = np.asarray(a + b)
    back = total - a
    error = (a - (total - back)) + (b - back)
    return total, np.where(np.isfinite(total), error, 0.0)


def add(a: Numbers, b: Numbers) -> Numbers:
    """Returns a + b, rounded to odd."""
    with np.errstate(all="ignore"):
        return _to_odd(*_sum(a, b))


def multiply(a: Numbers, b: Numbers) -> Numbers:
    """Returns a * b, which is exact for factors with at most 24 bits each."""
    with np.errstate(all="ignore"):
        return np.asarray(a * b)


def fused(a: Numbers, b: Numbers, c: Numbers) -> Numbers:
    """Returns a * b + c, rounded to odd. a and b have at most 24 bits."""
    return add(multiply(a, b), c)


def divide(a: Numbers, b: Numbers) -> Numbers:
    """Returns a / b of numbers with at most 24 bits, rounded to odd."""
    with np.errstate(all="ignore"):
        quotient = np.asarray(a / b)
        # The sign of the remainder says on which side of the quotient the exact value lies. The products of b with 24
        # bits of each part of the quotient are exact.
        high = np.asarray((quotient.view(np.uint64) & np.uint64(0xFFFFFFFFE0000000)).view(np.float64))
        remainder = (a - high * b) - (quotient - high) * b
        error = np.where(np.isfinite(quotient) & np.isfinite(b), remainder * np.sign(b), 0.0)
        return _to_odd(quotient, error)


def square_root(a: Numbers) -> Numbers:
    """Returns the square root of a number with at most 24 bits, rounded to odd."""
    with np.errstate(all="ignore"):
        root = np.asarray(np.sqrt(a))
        high = np.asarray((root.view(np.uint64) & np.uint64(0xFFFFFFFFF8000000)).view(np.float64))
        low = root - high
        remainder = ((a - high * high) - 2 * high * low) - low * low
        return _to_odd(root, np.where(np.isfinite(root), remainder, 0.0))


# ---- f64 ----


def fused64(a: Numbers, b: Numbers, c: Numbers) -> Numbers:
    """Returns a * b + c of float64 numbers, rounded once to nearest even (Boldo and Melquiond)."""
    with np.errstate(all="ignore"):
        exponents = [np.frexp(np.where(np.isfinite(x) & (x != 0), x, 1.0))[1] for x in (a, b, c)]
        finite = np.isfinite(a) & np.isfinite(b) & np.isfinite(c)
        inner = np.abs(exponents[0] + exponents[1]) < 800
        safe = finite & inner & (np.abs(exponents[0]) < 900) & (np.abs(exponents[1]) < 900) & (abs(exponents[2]) < 900)
        high, low = _product(a, b)
        middle, tail = _sum(c, low)
        total, rest = _sum(high, middle)
        result = total + _to_odd(*_sum(tail, rest))
        # The product of finite numbers is finite, however large it is.
        plain = np.where(np.isinf(c) & np.isfinite(a) & np.isfinite(b), c, np.asarray(a * b + c))
        # A sum that is exactly zero has the sign that its terms give it.
        result = np.where(result == 0, plain, result)
    if np.all(safe | ~finite):
        return np.where(safe, result, plain)
    careful = exactly(lambda x, y, z: x * y + z, "rn", a, b, c, plain)
    return np.where(safe, result, careful)


def _product(a: Numbers, b: Numbers) -> tuple[Numbers, Numbers]:
    """Returns the nearest float64 of a product, and its rounding error (Dekker)."""
    product = np.asarray(a * b)
    (a_high, a_low), (b_high, b_low) = _halves(a), _halves(b)
    return product, ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low


def _halves(a: Numbers) -> tuple[Numbers, Numbers]:
    scaled = a * 134217729.0
    high = scaled - (scaled - a)
    return high, a - high


def exactly(function: Callable[..., Fraction], mode: str, *operands: Numbers) -> Numbers:
    """Computes a rational function of float64 numbers one by one, rounded to float64 in any direction.

    The last operand is the float64 result that is kept if another operand is not finite or the result is zero.
    """
    *inputs, plain = np.broadcast_arrays(*operands)
    out = np.array(plain, np.float64)
    for index in np.ndindex(out.shape):
        numbers = [float(x[index]) for x in inputs]
        if not all(map(math.isfinite, numbers)):
            continue
        try:
            exact = function(*(Fraction(n) for n in numbers))
        except ZeroDivisionError:
            continue
        if exact:
            out[index] = round_fraction(exact, mode)
    return out


_TO_INTEGER: dict[str, Callable[[Fraction], int]] = {"rn": round, "rz": math.trunc, "rm": math.floor, "rp": math.ceil}


def round_fraction(exact: Fraction, mode: str) -> float:
    """Returns the neighbouring float64 of a number that is not zero, in a rounding direction."""
    magnitude, sign = abs(exact), -1 if exact < 0 else 1
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    if Fraction(2) ** exponent > magnitude:
        exponent -= 1
    place = max(exponent, -1022) - 52
    scaled = exact / Fraction(2) ** place
    whole = _TO_INTEGER[mode](scaled)
    if abs(whole).bit_length() + place > 1024:
        goes_on = mode == "rn" or (mode == "rm" and exact < 0) or (mode == "rp" and exact > 0)
        return math.copysign(math.inf if goes_on else float.fromhex("0x1.fffffffffffffp1023"), sign)
    return math.copysign(math.ldexp(whole, place), sign)


def _square_root64(a: Numbers, mode: str) -> Numbers:
    with np.errstate(all="ignore"):
        nearest = np.asarray(np.sqrt(a))
    if mode == "rn":
        return nearest
    out = np.array(nearest)
    for index in np.ndindex(out.shape):
        root = float(out[index])
        if not math.isfinite(root) or not root:
            continue
        difference = Fraction(float(np.asarray(a)[index])) - Fraction(root) ** 2
        if difference > 0 and mode == "rp":
            out[index] = math.nextafter(root, math.inf)
        elif difference < 0 and mode in ("rz", "rm"):
            out[index] = math.nextafter(root, 0.0)
    return out


_EXACT64: dict[str, Callable[..., Fraction]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "rcp": lambda a: 1 / a,
    "fma": lambda a, b, c: a * b + c,
}
_PLAIN64: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "rcp": lambda a: np.divide(1.0, a),
    "fma": fused64,
    "rsqrt": lambda a: np.divide(1.0, np.sqrt(a)),
}


def compute64(operation: str, mode: str, *operands: Numbers) -> Numbers:
    """Computes add, sub, mul, div, rcp, sqrt and fma of f64 in any rounding, and rsqrt within 1 ulp."""
    if operation == "sqrt":
        return with_nan64(_square_root64(operands[0], mode), *operands)
    with np.errstate(all="ignore"):
        plain = np.asarray(_PLAIN64[operation](*operands))
    if mode != "rn":
        plain = _zero_sum(operation, mode, operands, exactly(_EXACT64[operation], mode, *operands, plain))
    return with_nan64(plain, *operands)


def with_nan64(result: Numbers, *operands: Numbers) -> Numbers:
    """Returns the result with the hardware's NaNs: the first operand that is a NaN, made quiet, or else fff8 and zeros.

    This was seen on an H200 for sums.
    """
    if not np.isnan(result).any():
        return result
    bits = np.full(result.shape, NAN64, np.uint64)
    for operand in reversed(operands):
        given = np.broadcast_to(operand, result.shape)
        bits = np.where(np.isnan(given), np.array(given).view(np.uint64) | QUIET64, bits)
    return np.where(np.isnan(result), bits, np.asarray(result).view(np.uint64)).view(np.float64)


def convert_nan(bits: NDArray[Any], origin: Format, form: Format) -> NDArray[Any]:
    """Converts a NaN to another format: it keeps the sign and as much of the fraction as fits, and becomes quiet.

    An H200 does so if f64 is one of the two formats. All other conversions give one NaN only.
    """
    wide = bits.astype(np.uint64)
    sign = (wide & np.uint64(origin.sign)) != 0
    fraction = wide & np.uint64((1 << origin.fraction) - 1)
    shift = form.fraction - origin.fraction
    fraction = fraction << np.uint64(shift) if shift >= 0 else fraction >> np.uint64(-shift)
    quiet = ((1 << form.exponent) - 1) << form.fraction | 1 << (form.fraction - 1)
    return fraction | np.uint64(quiet) | np.where(sign, np.uint64(form.sign), np.uint64(0))


# ---- approximate functions ----

_TURNS = float(np.float32(1 / (2 * math.pi)))


def _of_turns(function: Callable[[Any], Any], factor: float = _TURNS) -> Callable[[Numbers], Numbers]:
    """Wraps sin or cos for a number of turns: the argument times a factor in f32, cut. Tiny turns become zero."""

    def compute(a: Numbers) -> Numbers:
        with np.errstate(all="ignore"):
            exact = a * factor
            turns = exact.astype(np.float32).astype(np.float64)
            turns = np.where(
                np.abs(turns) > np.abs(exact), np.nextafter(turns.astype(np.float32), np.float32(0)), turns
            )
            turns = np.where(np.abs(turns) < 2.0**-126, np.copysign(0.0, a), turns).astype(np.float64)
            return np.asarray(function(2 * math.pi * np.fmod(turns, 1.0)))

    return compute


def _approximate_quotient(a: Numbers, b: Numbers) -> Numbers:
    """Computes ``div.approx.f32``: if |b| is above 2^126, a finite a gives zero, an infinity NaN (PTX ISA 9.7.3.8)."""
    quotient = divide(a, b)
    huge = (np.abs(b) > 2.0**126) & np.isfinite(b)
    with np.errstate(all="ignore"):
        return np.where(huge, a * 0.0 * np.sign(b), quotient)


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "add": add,
    "sub": lambda a, b: add(a, -b),
    "mul": multiply,
    "fma": fused,
    "div": divide,
    "div.approx": _approximate_quotient,
    "rcp": lambda a: divide(np.ones_like(a), a),
    "sqrt": square_root,
    "rsqrt": lambda a: np.divide(1.0, np.sqrt(a)),
    "ex2": np.exp2,
    "lg2": np.log2,
    "sin": _of_turns(np.sin),
    "cos": _of_turns(np.cos),
    "sin.2pi": _of_turns(np.sin, 1.0),
    "cos.2pi": _of_turns(np.cos, 1.0),
    "tanh": np.tanh,
}


def compute(operation: str, mode: str, *operands: Numbers) -> Numbers:
    """Computes a function for formats up to f32: exactly or rounded to odd; transcendental ones to float64."""
    with np.errstate(all="ignore"):
        return _zero_sum(operation, mode, operands, np.asarray(_FUNCTIONS[operation](*operands)))


def of_format(form: Format, operation: str, mode: str, *operands: Numbers) -> Numbers:
    """Computes an operation on numbers of a format, for `finish` to round to that format."""
    return (compute64 if form is F64 else compute)(operation, mode, *operands)


def _zero_sum(operation: str, mode: str, operands: tuple[Numbers, ...], total: Numbers) -> Numbers:
    """Makes an exactly zero sum -0 when rounding down, unless both of its terms are +0 (IEEE 754, 6.3)."""
    if mode != "rm" or operation not in ("add", "sub", "fma"):
        return total
    first = operands[0] * operands[1] if operation == "fma" else operands[0]
    last = -operands[-1] if operation == "sub" else operands[-1]
    return np.where((total == 0) & (np.signbit(first) | np.signbit(last)), -0.0, total)


# ---- minimum and maximum ----


def extremum(operation: str, operands: list[Numbers], nan: bool, magnitudes: bool, xor_sign: bool) -> Numbers:
    """Computes ``min`` or ``max``. A number wins against a NaN, unless ``.NaN`` is given; -0 is less than +0.

    magnitudes: ``.abs``. xor_sign: the result's sign is the product of the operands' (``.xorsign``).
    """
    signs = [np.signbit(x) for x in operands]
    if magnitudes:
        operands = [np.abs(x) for x in operands]
    result = operands[0]
    for other in operands[1:]:
        less = (other < result) | ((other == result) & np.signbit(other) & ~np.signbit(result))
        greater = (other > result) | ((other == result) & ~np.signbit(other) & np.signbit(result))
        chosen = np.where(less if operation == "min" else greater, other, result)
        either = np.isnan(result) | np.isnan(other)
        instead = np.full_like(chosen, np.nan) if nan else np.where(np.isnan(result), other, result)
        result = np.where(either, instead, chosen)
    result = np.where(np.isnan(result), _CANONICAL64, result)
    if xor_sign:
        negative = signs[0] ^ signs[1]
        result = np.where(np.isnan(result), result, np.where(negative, -np.abs(result), np.abs(result)))
    return result


# ---- bits to bits ----


def flush(bits: NDArray[Any], form: Format) -> NDArray[Any]:
    """Replaces subnormal numbers by zeros of their sign (``.ftz``)."""
    exponent = ((1 << form.exponent) - 1) << form.fraction
    return np.where(bits & exponent == 0, bits & form.sign, bits)


def rectified(numbers: Numbers, relu: bool) -> Numbers:
    """Applies ``.relu`` if it is given: negative numbers become +0, NaN stays."""
    return np.where(numbers > 0, numbers, np.where(np.isnan(numbers), numbers, 0.0)) if relu else numbers


def finish(
    numbers: Numbers, form: Format, mode: str, *, ftz: bool = False, clamp: bool = False, relu: bool = False
) -> NDArray[Any]:
    """Rounds a result and applies ``.sat`` (clamp: to 0 .. 1, NaN to 0), ``.relu`` and ``.ftz``."""
    if clamp:
        numbers = np.where(np.isnan(numbers), 0.0, np.clip(numbers, 0.0, 1.0)) + 0.0
    numbers = rectified(numbers, relu)
    bits = np.asarray(numbers, np.float64).view(np.uint64) if form is F64 else encode(numbers, form, mode)
    return flush(bits, form) if ftz else bits


def inputs(bits: NDArray[Any], form: Format, ftz: bool) -> Numbers:
    """Returns operands as numbers."""
    return decode(flush(bits, form) if ftz else bits, form)
