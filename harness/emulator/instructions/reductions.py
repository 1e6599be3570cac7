"""What atomics and reducing copies do to memory: one operation on bit patterns of any type (PTX ISA 9.7.13.5)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.emulator.ptx.ast import TYPE_BYTES
from harness.emulator.units import float_math
from harness.emulator.units.formats import BF16, F16, F32, F64, Format

FLOATS: dict[str, Format] = {"f16": F16, "bf16": BF16, "f32": F32, "f64": F64, "f16x2": F16, "bf16x2": BF16}
F64_INFINITY = 0x7FF0000000000000
Bits = NDArray[Any]


def _increment(old: Bits, limit: Bits) -> Bits:
    return np.where(old >= limit, 0, old + old.dtype.type(1)).astype(old.dtype)


def _decrement(old: Bits, limit: Bits) -> Bits:
    return np.where((old == 0) | (old > limit), limit, old - old.dtype.type(1)).astype(old.dtype)


_UNSIGNED: dict[str, Callable[[Bits, Bits], Bits]] = {
    "add": lambda old, new: old + new,
    "and": lambda old, new: old & new,
    "or": lambda old, new: old | new,
    "xor": lambda old, new: old ^ new,
    "exch": lambda old, new: new,
    "inc": _increment,
    "dec": _decrement,
    "min": np.minimum,
    "max": np.maximum,
}


def combine(operation: str, kind: str, old: Bits, new: Bits, flush: bool = False) -> Bits:
    """Elementwise on unsigned arrays that hold bits of a kind: what is in memory afterwards.

    Floats are rounded to nearest even. flush: subnormal f32 numbers, given and computed, become zero, as in sums in
    global memory.
    """
    if kind in FLOATS and operation in ("add", "min", "max"):
        form = FLOATS[kind]
        if kind.endswith("x2"):
            halves = [combine(operation, kind[:-2], old >> s & 0xFFFF, new >> s & 0xFFFF) for s in (0, 16)]
            return (halves[0] | halves[1].astype(np.uint32) << 16).astype(old.dtype)
        a, b = (float_math.inputs(x, form, flush) for x in (old, new))
        if operation != "add":
            result = float_math.extremum(operation, [a, b], False, False, False)
        elif form is F64:
            result = float_math.compute64("add", "rn", a, b)
        else:
            result = float_math.compute("add", "rn", a, b)
        return float_math.finish(result, form, "rn", ftz=flush).astype(old.dtype)
    if kind[0] == "s" and operation in ("min", "max"):
        signed = f"i{old.dtype.itemsize}"
        return _UNSIGNED[operation](old.view(signed), new.view(signed)).view(old.dtype)
    return _UNSIGNED[operation](old, new)


def add_float(kind: str, old: int, new: int, in_global: bool) -> int:
    """``atom.add`` and ``red.add`` of f32 and f64.

    In global memory f32 flushes subnormal numbers to zeros of their sign (PTX ISA 9.7.13.5), and a NaN of f64 is not
    made quiet, as an H200 showed.
    """
    if kind == "f64" and in_global:
        for bits in (old, new):
            if bits & ((1 << 63) - 1) > F64_INFINITY:
                return bits
    dtype = np.dtype(f"u{TYPE_BYTES[kind]}")
    flush = kind == "f32" and in_global
    return int(combine("add", kind, np.array([old], dtype), np.array([new], dtype), flush)[0])


def combine_one(operation: str, kind: str, old: int, new: int, nbytes: int) -> int:
    """The same of one item."""
    dtype = np.dtype(f"u{nbytes}")
    with np.errstate(all="ignore"):
        return int(combine(operation, kind, np.array([old], dtype), np.array([new], dtype))[0])
