"""Floating-point arithmetic in all formats, rounding modes and variants (PTX ISA 9.7.3, 9.7.4, 9.7.5).

The most frequent operations, f32 and f64 rounded to nearest with no other modifier, are in `arithmetic`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emugpu.emulator.instructions.table import (
    Assign,
    Micro,
    Temporary,
    Translator,
    Unsupported,
    bits_of,
    calculated,
    computed,
    instruction,
    kind_of,
    mask,
    micro,
    only_form,
    row_bits,
)
from emugpu.emulator.machine.lanes import Value
from emugpu.emulator.machine.poison import in_parts, spreads
from emugpu.emulator.ptx.ast import Instruction, Operand
from emugpu.emulator.units import float_math
from emugpu.emulator.units.formats import BF16, F16, F32, F64, Numbers

ROUNDINGS = ("rn", "rz", "rm", "rp")
_FORMATS = {"f16": F16, "f16x2": F16, "bf16": BF16, "bf16x2": BF16, "f32": F32, "f32x2": F32, "f64": F64}
KINDS = tuple(_FORMATS)


def unpack(value: Value, kind: str) -> NDArray[Any]:
    """Returns the bits of the one or two numbers of a register: [..], or [2, ..] for a packed type, low half first."""
    bits: NDArray[Any] = np.asarray(value, np.uint64 if bits_of(kind) == 64 else np.uint32)
    if not kind.endswith("x2"):
        return bits
    half = bits_of(kind) // 2
    number = bits.dtype.type
    return np.stack([np.bitwise_and(bits, number((1 << half) - 1)), np.right_shift(bits, number(half))])


def numbers_of(values: Sequence[Value], kind: str, ftz: bool) -> list[Numbers]:
    """Returns operands as numbers with shapes that can be broadcast: some may be scalars and others arrays of lanes."""
    found = [float_math.inputs(unpack(v, kind), _FORMATS[kind], ftz) for v in values]
    if kind.endswith("x2") and any(x.ndim == 2 for x in found):
        found = [x if x.ndim == 2 else x[:, None] for x in found]
    return found


def pack(bits: NDArray[Any], kind: str) -> Value:
    """Packs bits into a register value, as the inverse of `unpack`; an int if all lanes agree."""
    wide = np.uint64 if bits_of(kind) == 64 else np.uint32
    if kind.endswith("x2"):
        bits = bits.astype(wide)
        bits = bits[0] | bits[1] << wide(bits_of(kind) // 2)
    return bits.astype(wide) if bits.ndim else int(bits)


def _in_numbers(kind: str, *masks: Value) -> Value:
    """Returns the mask of undefined bits of a result: each number is computed from the same one of each source."""
    return in_parts(bits_of(kind) // 2 if kind.endswith("x2") else row_bits(kind), *masks)


@spreads(lambda operation, kind, mode, ftz, clamp, relu, *masks: _in_numbers(kind, *masks))
def float_operation(operation: str, kind: str, mode: str, ftz: bool, clamp: bool, relu: bool, *values: Value) -> Value:
    """Computes one of the functions of `float_math` on register values."""
    form = _FORMATS[kind]
    result = float_math.of_format(form, operation, mode, *numbers_of(values, kind, ftz))
    return pack(float_math.finish(result, form, mode, ftz=ftz, clamp=clamp, relu=relu), kind)


def _modes(i: Instruction) -> tuple[str, bool, bool, bool]:
    mode = next((m for m in ROUNDINGS if i.has(m)), "rn")
    return mode, i.has("ftz"), i.has("sat"), i.has("relu")


def general(i: Instruction, operation: str, kind: str) -> Assign:
    return Assign(*_operation(i, operation, kind, *i.operands[1:]))


def _operation(i: Instruction, operation: str, kind: str, *sources: Operand | Temporary) -> tuple[Micro, ...]:
    """Returns the operation on these sources, of one number or two."""
    destination, mode = i.operands[0], next((f".{m}" for m in ("rz", "rm", "rp") if i.has(m)), "")
    if (
        operation not in _NATIVE.get(kind, ())
        or (mode and (operation, kind, i.has("ftz")) != ("fma", "f32", False))
        or (kind in _HALVES and any(i.has(m) for m in ("ftz", "sat", "relu")))
    ):
        read = tuple((source, kind) for source in sources)
        return (calculated(float_operation, destination, read, before=(operation, kind, *_modes(i))),)
    name = f"{operation}{mode}{'.ftz' if i.has('ftz') else ''}.{kind}"
    clamp = (micro("sat.f32", destination, kind, destination),) if i.has("sat") else ()
    return (micro(name, destination, kind, *sources), *clamp)


_HALVES = ("f16", "bf16", "f16x2", "bf16x2")
_PACKED = ("add", "sub", "mul", "fma")
_NATIVE = {
    "f32": (*_PACKED, "div", "div.approx", "rcp", "sqrt", "rsqrt", "ex2", "lg2"),
    "f32x2": _PACKED,
    "f64": (*_PACKED, "div", "rcp", "sqrt", "rsqrt"),
    **dict.fromkeys(_HALVES, _PACKED),
}


_SUM_MODIFIERS: dict[str, tuple[str, ...]] = {
    "f32": (*ROUNDINGS, "ftz", "sat"),
    "f64": ROUNDINGS,
    "f16": ("rn", "ftz", "sat"),
    "f16x2": ("rn", "ftz", "sat"),
    "bf16": ("rn",),
    "bf16x2": ("rn",),
    "f32x2": (*ROUNDINGS, "ftz"),
}


def sum_or_product(i: Instruction, kind: str) -> Assign:
    """Emits add, sub or mul of any float type."""
    if len(i.modifiers) > 1 and i.modifiers[-2] == "f32" and kind in ("f16", "bf16") and i.opcode != "mul":
        return _mixed(i, kind)
    if kind not in _SUM_MODIFIERS or len(i.operands) != 3:
        raise Unsupported
    _only_modes(i, _SUM_MODIFIERS[kind])
    return general(i, i.opcode, kind)


def _only_modes(i: Instruction, allowed: Sequence[str]) -> None:
    """Refuses all but these modifiers, each at most once, with at most one rounding, and one type."""
    words = i.modifiers[:-1]
    if any(m not in allowed for m in words) or len(set(words)) != len(words):
        raise Unsupported
    if len([m for m in words if m in ROUNDINGS]) > 1:
        raise Unsupported


def _mixed(i: Instruction, kind: str) -> Assign:
    """Emits f32 arithmetic with factors, or a first term, of 16 bits, which become f32 first. That is exact."""
    _only_modes(i, (*ROUNDINGS, "sat", "f32"))
    *narrow, last = i.operands[1:]
    wide = [Temporary(number=n) for n in range(len(narrow))]
    found = [micro(f"f32.from.{kind}", to, kind, o) for o, to in zip(narrow, wide, strict=True)]
    return Assign(*found, *_operation(i, i.opcode, "f32", *wide, last))


_FUSED_MODIFIERS = {
    **_SUM_MODIFIERS,
    "f16": ("rn", "ftz", "sat", "relu"),
    "f16x2": ("rn", "ftz", "sat", "relu"),
    "bf16": ("rn", "relu"),
    "bf16x2": ("rn", "relu"),
}


def fused(i: Instruction, kind: str) -> Assign:
    """Emits fma, or mad of f32 and f64, which is the same."""
    if len(i.modifiers) > 1 and i.modifiers[-2] == "f32" and kind in ("f16", "bf16"):
        return _mixed(i, kind)
    if kind not in _FUSED_MODIFIERS or (i.opcode == "mad" and kind not in ("f32", "f64")):
        raise Unsupported
    _only_modes(i, _FUSED_MODIFIERS[kind])
    if not any(i.has(m) for m in ROUNDINGS) or (i.has("sat") and i.has("relu")):
        raise Unsupported
    return general(i, "fma", kind)


def quotient(i: Instruction, kind: str) -> Assign:
    """Emits div of f32 or f64."""
    words = set(i.modifiers[:-1])
    if kind == "f32" and words <= {"approx", "ftz"} and "approx" in words:
        return general(i, "div.approx", kind)
    if kind == "f32" and words <= {"full", "ftz"} and "full" in words:
        return general(i, "div", kind)
    if kind not in ("f32", "f64"):
        raise Unsupported
    _only_modes(i, (*ROUNDINGS, "ftz") if kind == "f32" else ROUNDINGS)
    return general(i, "div", kind)


@spreads(lambda operation, kind, ftz, nan, magnitudes, xor_sign, *masks: _in_numbers(kind, *masks))
def extremum(
    operation: str, kind: str, ftz: bool, nan: bool, magnitudes: bool, xor_sign: bool, *values: Value
) -> Value:
    """Computes ``min`` or ``max`` of floats. ``.xorsign.abs`` sets both of the last flags."""
    form = _FORMATS[kind]
    numbers = numbers_of(values, kind, ftz)
    result = float_math.extremum(operation, numbers, nan, magnitudes, xor_sign)
    return pack(float_math.finish(result, form, "rn", ftz=ftz), kind)


def minimum_or_maximum(i: Instruction, kind: str) -> Assign:
    if kind not in KINDS or kind == "f32x2":
        raise Unsupported
    three = len(i.operands) == 4
    if three and kind != "f32":
        raise Unsupported
    allowed = {"f64": (), "bf16": ("NaN", "xorsign", "abs"), "bf16x2": ("NaN", "xorsign", "abs")}.get(
        kind, ("ftz", "NaN", "abs") if three else ("ftz", "NaN", "xorsign", "abs")
    )
    _only_modes(i, allowed)
    if i.has("abs") != i.has("xorsign") and not three:
        raise Unsupported
    if i.has("abs") or kind == "f64" or (kind in _HALVES and i.has("ftz")):
        flags = [i.has(m) for m in ("ftz", "NaN", "abs", "xorsign")]
        return Assign(computed(i, extremum, kind, before=(i.opcode, kind, *flags)))
    name = f"{i.opcode}{'.nan' if i.has('NaN') else ''}{'.ftz' if i.has('ftz') else ''}.{kind}"
    destination, first, second, *third = i.operands
    between = Temporary() if third else destination
    found = micro(name, between, kind, first, second)
    return Assign(found, *(micro(name, destination, kind, between, other) for other in third))


@spreads(lambda operation, kind, mask: _in_numbers(kind, mask))
def change_sign(operation: str, kind: str, value: Value) -> Value:
    """Computes ``neg`` or ``abs`` with ``.ftz``; "none" only flushes."""
    form = _FORMATS[kind]
    bits = float_math.flush(unpack(value, kind), form)
    sign = bits.dtype.type(form.sign)
    changed = {"neg": bits ^ sign, "abs": bits & ~sign, "none": bits}
    return pack(changed[operation], kind)


def negate_or_absolute(i: Instruction, kind: str) -> Assign:
    if kind not in KINDS or kind == "f32x2":
        raise Unsupported
    _only_modes(i, ("ftz",) if kind in ("f32", "f16", "f16x2") else ())
    if i.has("ftz"):
        return Assign(computed(i, change_sign, kind, before=(i.opcode, kind)))
    sign = _FORMATS[kind].sign
    if kind.endswith("x2"):
        sign |= sign << 16
    name, constant = ("xor", sign) if i.opcode == "neg" else ("and", mask(kind) & ~sign)
    return Assign(micro(f"{name}.{row_bits(kind)}", i.operands[0], kind, i.operands[1], constant))


# ---- functions of one number ----

_APPROXIMATE = {
    "ex2": ("approx.f32", "approx.ftz.f32", "approx.f16", "approx.f16x2", "approx.ftz.bf16", "approx.ftz.bf16x2"),
    "lg2": ("approx.f32", "approx.ftz.f32"),
    "sin": ("approx.f32", "approx.ftz.f32", "approx.ftz.2pi.f32"),
    "cos": ("approx.f32", "approx.ftz.f32", "approx.ftz.2pi.f32"),
    "rsqrt": ("approx.f32", "approx.ftz.f32"),
    "tanh": ("approx.f32", "approx.f16", "approx.f16x2", "approx.bf16", "approx.bf16x2"),
}


@instruction("ex2", "lg2", "sin", "cos", "tanh", operands=2)
def _function(i: Instruction, w: Translator) -> Assign:
    """With ``.2pi``, the argument is a number of turns. ptxas 13.5 then leaves out the product with 1 / 2 pi."""
    only_form(i, *_APPROXIMATE[i.opcode])
    return general(i, f"{i.opcode}.2pi" if i.has("2pi") else i.opcode, kind_of(i))


@instruction("rcp", "sqrt", operands=2)
def _rcp(i: Instruction, w: Translator) -> Assign:
    if i.opcode == "rcp" and i.modifiers == ("approx", "ftz", "f64"):
        return _gross(i)
    exact = [f"{r}{ftz}.f32" for r in ROUNDINGS for ftz in ("", ".ftz")] + [f"{r}.f64" for r in ROUNDINGS]
    only_form(i, "approx.f32", "approx.ftz.f32", *exact)
    return general(i, i.opcode, kind_of(i))


@instruction("rsqrt", operands=2)
def _rsqrt(i: Instruction, w: Translator) -> Assign:
    if i.modifiers == ("approx", "ftz", "f64"):
        return _gross(i)
    only_form(i, *_APPROXIMATE["rsqrt"], "approx.f64")
    return general(i, "rsqrt", kind_of(i))


NAN_OF_GROSS = np.uint64(0x7FFF_FFFF_0000_0000)


def gross(operation: str, ftz: bool, value: Value) -> Value:
    """Computes ``rcp`` or ``rsqrt`` with ``.approx.ftz.f64``: the upper 32 bits of the result (PTX ISA 9.7.3.14)."""
    bits = unpack(value, "f64")
    upper = np.uint64(0xFFFF_FFFF_0000_0000)
    if ftz:
        bits = float_math.flush(bits & upper, F64)
    numbers = float_math.inputs(bits, F64, False)
    with np.errstate(all="ignore"):
        result = np.asarray(1.0 / (numbers if operation == "rcp" else np.sqrt(numbers)))
    found = float_math.finish(result, F64, "rn", ftz=ftz)
    return pack(np.where(np.isnan(result), NAN_OF_GROSS, found & upper), "f64")


def _gross(i: Instruction) -> Assign:
    return Assign(computed(i, gross, "f64", before=(i.opcode, i.has("ftz"))))


@instruction("copysign", operands=3)
def _copysign(i: Instruction, w: Translator) -> Assign:
    """Emits copysign: the sign of the first operand and the magnitude of the second."""
    only_form(i, "f32", "f64")
    kind = kind_of(i)
    sign = 1 << (bits_of(kind) - 1)
    destination, first, second = i.operands
    bits, between = bits_of(kind), Temporary(kind == "f64")
    return Assign(
        micro(f"and.{bits}", between, kind, first, sign),
        micro(f"and.{bits}", destination, kind, second, sign - 1),
        micro(f"or.{bits}", destination, kind, between, destination),
    )


def classify(what: str, kind: str, value: Value) -> Value:
    """Computes ``testp``: whether a number is of a class."""
    form = _FORMATS[kind]
    bits = unpack(value, kind)
    numbers = float_math.inputs(bits, form, False)
    exponent = bits & bits.dtype.type(((1 << form.exponent) - 1) << form.fraction)
    subnormal = (exponent == 0) & (numbers != 0)
    result = {
        "finite": np.isfinite(numbers),
        "infinite": np.isinf(numbers),
        "number": ~np.isnan(numbers),
        "notanumber": np.isnan(numbers),
        "normal": np.isfinite(numbers) & ~subnormal & (numbers != 0),
        "subnormal": subnormal,
    }[what]
    return np.asarray(result) if np.ndim(result) else bool(result)


_CLASSES = ("finite", "infinite", "number", "notanumber", "normal", "subnormal")


@instruction("testp", operands=2)
def _testp(i: Instruction, w: Translator) -> Assign:
    only_form(i, *(f"{c}.{kind}" for c in _CLASSES for kind in ("f32", "f64")))
    kind = kind_of(i)
    return Assign(computed(i, classify, kind, before=(i.modifiers[0], kind)))
