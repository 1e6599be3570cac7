"""Arithmetic on register values: Python scalars if the lanes agree, 32-lane arrays if they may differ.

Integers are unsigned bit patterns: ``int``, uint32 arrays (for 8, 16 and 32 bits) or uint64 arrays. Floats are their
bit patterns. Predicates are ``bool`` or bool arrays. ``None`` marks a register in which a wgmma accumulates; arithmetic
on it raises TypeError, which the machine reports with the register's name.

Emitters write the common integer operations inline. The other operations are here.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Any

import ml_dtypes
import numpy as np

from emugpu.emulator.machine.lanes import WARP_SIZE
from emugpu.emulator.machine.poison import Poison, choose, joined, moves, of_operators, spreads, upwards
from emugpu.emulator.units import float_math
from emugpu.emulator.units.numerics import pack_halves

Value = Any
M32 = 0xFFFFFFFF
M64 = 0xFFFFFFFFFFFFFFFF
CANONICAL_NAN = 0x7FFFFFFF
"""The only NaN that f32 arithmetic returns."""


def dtype_for(bits: int) -> Any:
    return np.uint64 if bits == 64 else np.uint32


def lanewise(bits: int, function: Callable[..., int], *values: Value) -> Value:
    """Applies a scalar function lane by lane, for operations too rare to vectorise."""
    if not any(isinstance(v, np.ndarray) for v in values):
        return function(*values)
    columns = [v.tolist() if isinstance(v, np.ndarray) else [v] * WARP_SIZE for v in values]
    return np.array([function(*lane) for lane in zip(*columns, strict=True)], dtype_for(bits))


def signed(value: int, bits: int) -> int:
    return value - (1 << bits) if value >> (bits - 1) else value


def limits(bits: int, is_signed: bool) -> tuple[int, int]:
    """Returns the smallest and the largest integer of so many bits."""
    return (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if is_signed else (0, (1 << bits) - 1)


# ---- selection ----


@of_operators
def select(predicate: Value, yes: Value, no: Value, bits: int = 32) -> Value:
    """Computes ``selp`` and guarded writes. If one side is None, the result is the other side."""
    if predicate is True:
        return yes
    if predicate is False:
        return no
    if yes is None or no is None:
        return yes if no is None else no
    if isinstance(predicate, Poison) or isinstance(yes, Poison) or isinstance(no, Poison):
        is_predicate = any(isinstance(v, bool) or getattr(v, "dtype", None) == np.bool_ for v in (yes, no))
        return choose(predicate, yes, no, np.bool_ if is_predicate else dtype_for(bits))
    chosen: Any = np.where(predicate, yes, no)
    return chosen if chosen.dtype == np.bool_ else chosen.astype(dtype_for(bits), copy=False)


@of_operators
def widen(value: Value) -> Value:
    """Returns a 32-bit value as the value of a 64-bit register."""
    return value if isinstance(value, int) else value.astype(np.uint64)


@of_operators
def narrow(value: Value, bits: int) -> Value:
    """Returns the low bits of a 64-bit (or narrower) value."""
    low = value & ((1 << bits) - 1)
    return low if isinstance(low, int) else low.astype(dtype_for(bits))


@moves(1)
def sign_extend(value: Value, source_bits: int, bits: int) -> Value:
    """Returns the value sign-extended to ``bits`` bits."""
    high, mask = 1 << (source_bits - 1), (1 << bits) - 1
    if isinstance(value, int):
        return ((value ^ high) - high) & mask
    wide = value.astype(dtype_for(bits))
    return ((wide ^ high) - high) & mask


# ---- integers ----


def add_offset(pointer: Value, offset: int, bits: int) -> Value:
    """Returns an address plus a constant, wrapped around."""
    return (pointer + offset) & ((1 << bits) - 1) if isinstance(pointer, int) else pointer + offset


@moves(1)
def shift_left(value: Value, amount: Value, bits: int) -> Value:
    """Computes ``shl``. Amounts not below the width give zero (PTX ISA 9.7.8.9)."""
    if isinstance(amount, int):
        return (value << amount) & ((1 << bits) - 1) if amount < bits else value & 0
    return lanewise(bits, lambda v, n: (v << n) & ((1 << bits) - 1) if n < bits else 0, value, amount)


@moves(1)
def shift_right(value: Value, amount: Value, bits: int) -> Value:
    if isinstance(amount, int):
        return value >> amount if amount < bits else value & 0
    return lanewise(bits, lambda v, n: v >> n if n < bits else 0, value, amount)


@moves(1)
def shift_right_signed(value: Value, amount: Value, bits: int) -> Value:
    mask = (1 << bits) - 1
    return lanewise(bits, lambda v, n: (signed(v, bits) >> min(n, bits - 1)) & mask, value, amount)


def minimum(a: Value, b: Value, high: int) -> Value:
    """Returns the unsigned minimum after flipping ``high`` (the sign bit, or 0)."""
    if isinstance(a, int) and isinstance(b, int):
        return a if (a ^ high) < (b ^ high) else b
    return np.where((a ^ high) < (b ^ high), a, b)


def maximum(a: Value, b: Value, high: int) -> Value:
    if isinstance(a, int) and isinstance(b, int):
        return a if (a ^ high) > (b ^ high) else b
    return np.where((a ^ high) > (b ^ high), a, b)


@spreads(lambda a, b, bits, is_signed: upwards(a, b))
def multiply_wide(a: Value, b: Value, bits: int, is_signed: bool) -> Value:
    """Computes ``mul.wide``: the full product of two values of ``bits`` bits."""
    if is_signed:
        a, b = sign_extend(a, bits, 2 * bits), sign_extend(b, bits, 2 * bits)
    mask = (1 << 2 * bits) - 1
    if isinstance(a, int) and isinstance(b, int):
        return (a * b) & mask
    dtype = dtype_for(2 * bits)
    a = a if isinstance(a, int) else a.astype(dtype)
    b = b if isinstance(b, int) else b.astype(dtype)
    return (a * b) & mask


def multiply_high(a: Value, b: Value, bits: int, is_signed: bool) -> Value:
    mask = (1 << bits) - 1

    def scalar(x: int, y: int) -> int:
        if is_signed:
            x, y = signed(x, bits), signed(y, bits)
        return (x * y >> bits) & mask

    return lanewise(bits, scalar, a, b)


def divide(a: Value, b: Value, bits: int, is_signed: bool, remainder: bool) -> Value:
    """Computes ``div`` or ``rem``, rounding toward zero. The quotient by zero is all ones, as on NVIDIA's GPUs."""
    mask = (1 << bits) - 1

    def scalar(x: int, y: int) -> int:
        if y == 0:
            return x if remainder else mask
        if is_signed:
            x, y = signed(x, bits), signed(y, bits)
        quotient = abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)
        return (x - quotient * y if remainder else quotient) & mask

    return lanewise(bits, scalar, a, b)


def add_saturated(a: Value, b: Value, subtract: bool) -> Value:
    """Computes ``add.sat.s32`` or ``sub.sat.s32``."""
    low, high = limits(32, True)

    def scalar(x: int, y: int) -> int:
        x, y = signed(x, 32), signed(y, 32)
        return max(low, min(high, x - y if subtract else x + y)) & M32

    return lanewise(32, scalar, a, b)


@of_operators
def lop3(a: Value, b: Value, c: Value, table: int) -> Value:
    """Computes any bitwise function of three inputs from its truth table (PTX ISA 9.7.8.6)."""
    result: Value = 0
    for row in range(8):
        if table >> row & 1:
            x = a if row & 4 else a ^ M32
            y = b if row & 2 else b ^ M32
            z = c if row & 1 else c ^ M32
            result = result | (x & y & z)
    return result


@moves(2)
def prmt(a: Value, b: Value, selector: Value, mode: str = "") -> Value:
    """Computes ``prmt.b32``: picks four bytes of {b, a} (PTX ISA 9.7.9.9). mode: "" or one of `PERMUTATIONS`."""

    def scalar(x: int, y: int, s: int) -> int:
        pool = (y << 32 | x).to_bytes(8, "little")
        nibbles = [s >> 4 * i & 15 for i in range(4)] if not mode else PERMUTATIONS[mode](s & 3)
        out = 0
        for i, nibble in enumerate(nibbles):
            byte = pool[nibble & 7]
            if nibble & 8:
                byte = 0xFF if byte & 0x80 else 0
            out |= byte << 8 * i
        return out

    return lanewise(32, scalar, a, b, selector)


PERMUTATIONS: dict[str, Callable[[int], list[int]]] = {
    "f4e": lambda n: [n, n + 1, n + 2, n + 3],
    "b4e": lambda n: [n, (n - 1) & 7, (n - 2) & 7, (n - 3) & 7],
    "rc8": lambda n: [n] * 4,
    "ecl": lambda n: [max(i, n) for i in range(4)],
    "ecr": lambda n: [min(i, n) for i in range(4)],
    "rc16": lambda n: [2 * (n & 1), 2 * (n & 1) + 1] * 2,
}


@moves(2)
def funnel_shift(low: Value, high: Value, amount: Value, left: bool, wrap: bool) -> Value:
    """Computes ``shf``: shifts the 64-bit value {high, low} and keeps one half."""

    def scalar(lo: int, hi: int, n: int) -> int:
        n = n & 31 if wrap else min(n, 32)
        both = hi << 32 | lo
        return (both << n >> 32 if left else both >> n) & M32

    return lanewise(32, scalar, low, high, amount)


@moves(1)
def bit_field_extract(value: Value, position: Value, length: Value, bits: int, is_signed: bool) -> Value:
    mask = (1 << bits) - 1

    def scalar(v: int, pos: int, count: int) -> int:
        pos, count = pos & 255, count & 255
        if count == 0:
            return 0
        field = (v >> pos) & ((1 << count) - 1) if pos < bits else 0
        if is_signed:
            top = min(pos + count - 1, bits - 1)
            if v >> top & 1:
                field |= mask & ~((1 << max(0, min(count, bits - pos))) - 1)
        return field & mask

    return lanewise(bits, scalar, value, position, length)


@moves(2)
def bit_field_insert(field: Value, value: Value, position: Value, length: Value, bits: int) -> Value:
    full = (1 << bits) - 1

    def scalar(f: int, v: int, pos: int, count: int) -> int:
        pos, count = pos & 255, count & 255
        mask = ((1 << count) - 1) << pos & full
        return (v & ~mask & full) | (f << pos & mask)

    return lanewise(bits, scalar, field, value, position, length)


def popcount(value: Value, bits: int) -> Value:
    return lanewise(32, int.bit_count, value)


def count_leading_zeros(value: Value, bits: int) -> Value:
    return lanewise(32, lambda v: bits - v.bit_length(), value)


@moves(1)
def bit_reverse(value: Value, bits: int) -> Value:
    return lanewise(bits, lambda v: int(f"{v:0{bits}b}"[::-1], 2), value)


# ---- floating point ----


def to_float(value: Value, bits: int) -> Any:
    """Converts a bit pattern to a NumPy float (scalar or array)."""
    if bits == 64:
        return value.view(np.float64) if isinstance(value, np.ndarray) else np.uint64(value).view(np.float64)
    return value.view(np.float32) if isinstance(value, np.ndarray) else np.uint32(value).view(np.float32)


def from_float(value: Any, bits: int) -> Value:
    """Converts a NumPy float to its bit pattern. An f32 NaN becomes the canonical one (PTX ISA 9.7.3)."""
    if bits == 64:
        found = np.asarray(value, np.float64).view(np.uint64)
        return found if found.ndim else int(found)
    if value.ndim:
        numbers = value.astype(np.float32)
        return np.where(np.isnan(numbers), CANONICAL_NAN, numbers.view(np.uint32)).astype(np.uint32)
    number = np.float32(value)
    return CANONICAL_NAN if np.isnan(number) else int(number.view(np.uint32))


def float_binary(operation: Callable[[Any, Any], Any], a: Value, b: Value, bits: int) -> Value:
    """Computes a binary operation, rounded to nearest."""
    with np.errstate(all="ignore"):
        left, right = to_float(a, bits), to_float(b, bits)
        result = operation(left, right)
        return from_float(float_math.with_nan64(np.asarray(result), left, right) if bits == 64 else result, bits)


def fused_multiply_add(a: Value, b: Value, c: Value) -> Value:
    """Computes ``fma.rn.f32``: the product, exact in float64, plus c, rounded once.

    The sum is rounded to 53 bits and then to 24. That equals rounding once, except if the 53 bits lie half-way between
    two f32 values or the result has fewer bits because it is subnormal. A NaN is special too, because it has only one
    pattern.
    """
    product = _wide(a) * _wide(b)
    addend = _wide(c)
    total = np.asarray(product + addend)
    half_way = np.count_nonzero(total.view(np.uint64) & _F32_TAIL == _HALF_WAY)
    if half_way or not _is_normal_or_zero(total):
        return _fused_multiply_add_with_care(product, addend)
    result = total.astype(np.float32).view(np.uint32)
    return result if result.ndim else int(result)


def _wide(value: Value) -> Any:
    """Returns f32 bits as float64."""
    if isinstance(value, int):
        return _AS_FLOAT.unpack(_AS_BITS.pack(value))[0]
    return value.view(np.float32).astype(np.float64)


def _is_normal_or_zero(numbers: Any) -> bool:
    """Returns whether all of these float64 are normal or zero as f32, or too large for it."""
    magnitude = np.abs(numbers)
    if magnitude.item(magnitude.argmin()) >= _LOWEST_NORMAL:
        return True
    return bool(((magnitude >= _LOWEST_NORMAL) | (magnitude == 0)).all())


_AS_BITS, _AS_FLOAT = Struct("<I"), Struct("<f")
_F32_TAIL = np.uint64((1 << 29) - 1)
"""The bits of a float64 that f32 has no room for."""
_HALF_WAY = np.uint64(1 << 28)
_LOWEST_NORMAL = 2.0**-126


def _fused_multiply_add_with_care(product: Any, addend: Any) -> Value:
    """Computes the sum rounded to odd in float64, and narrows it."""
    odd = float_math.add(np.asarray(product), np.asarray(addend))
    with np.errstate(all="ignore"):
        return from_float(odd.astype(np.float32), 32)


@spreads(lambda kind, high, low: joined(16, high, low))
def pack_nearest(kind: str, high: Value, low: Value) -> Value:
    """Computes ``cvt.rn.f16x2.f32`` or bf16x2: rounds two f32 to nearest even; the first source is the upper half."""
    packed = pack_halves(ml_dtypes.bfloat16 if kind == "bf16" else np.float16, high, low)
    return packed if packed.ndim else int(packed)


def half_to_float(value: Value, kind: str) -> Value:
    """Computes ``cvt.f32.f16`` or ``cvt.f32.bf16`` (exact). A bf16 NaN keeps its bits: the conversion is a shift."""
    if kind == "bf16":
        return value << 16 & M32 if isinstance(value, int) else value.astype(np.uint32) << np.uint32(16)
    halves = np.asarray(value).astype(np.uint16).view(np.float16).astype(np.float32)
    return from_float(halves, 32)
