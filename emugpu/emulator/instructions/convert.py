"""cvt: conversion between number formats (PTX ISA 9.7.9.21).

The frequent conversions of a kernel's epilogue, f32 to bf16 and f16 rounded to nearest, have a faster path.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from emugpu.emulator.instructions import values
from emugpu.emulator.instructions.floats import ROUNDINGS
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
    is_integer,
    micro,
    micro_of,
)
from emugpu.emulator.machine.lanes import Value
from emugpu.emulator.machine.poison import joined, spreads
from emugpu.emulator.ptx.ast import TYPE_BYTES, Immediate, Instruction, Operand, Register
from emugpu.emulator.units import float_math, formats
from emugpu.emulator.units.formats import BF16, F16, F32, F64, FORMATS, TF32, Format, encode

INTEGRAL = {"rni": "rn", "rzi": "rz", "rmi": "rm", "rpi": "rp"}
"""Roundings to an integer."""
_SCALARS = {"f16": F16, "bf16": BF16, "f32": F32, "f64": F64, "tf32": TF32}
_PAIRS = {
    "f16x2": F16,
    "bf16x2": BF16,
    **{f"{n}x2": FORMATS[n] for n in ("e4m3", "e5m2", "e2m3", "e3m2", "e2m1", "ue8m0")},
}


def _half_bits(kind: str) -> int:
    """Returns the distance in bits of the two numbers of a packed type."""
    return {"f16x2": 16, "bf16x2": 16, "e2m1x2": 4}.get(kind, 8)


def _array(value: Value, bits: int = 32) -> NDArray[Any]:
    return np.asarray(value, np.uint64 if bits == 64 else np.uint32)


def _value(bits: NDArray[Any], width: int = 32) -> Value:
    return bits.astype(np.uint64 if width == 64 else np.uint32) if bits.ndim else int(bits)


# ---- packed ----


def _pair_spreads(kind: str, source: str, mode: str, relu: bool, saturate: bool, *masks: Value) -> Value:
    [high, low] = masks if len(masks) == 2 else (masks[0] >> np.uint32(16), masks[0] & np.uint32(0xFFFF))
    return joined(_half_bits(kind), high, low)


@spreads(_pair_spreads)
def pack_pair(kind: str, source: str, mode: str, relu: bool, saturate: bool, *sources: Value) -> Value:
    """Converts two numbers to a packed type: of two registers (the first is the upper one), or of one's halves."""
    form, width = _PAIRS[kind], _half_bits(kind)
    if len(sources) == 1:
        bits = _array(sources[0])
        pair = [bits >> np.uint32(16), bits & np.uint32(0xFFFF)]
        source = source[:-2]
    else:
        pair = [_array(s) for s in sources]
    high, low = (
        encode(float_math.rectified(formats.decode(x, FORMATS[source]), relu), form, mode, saturate) for x in pair
    )
    return _value(high << width | low)


_ONES = 0x7F7F
"""Two scale factors of 1, as ue8m0."""


def _unpacked_spreads(kind: str, source: str, relu: bool, saturate: bool, mask: Value, scale: Value = 0) -> Value:
    width = _half_bits(source)
    return joined(16, mask >> width | scale >> 8, mask & ((1 << width) - 1) | scale & 0xFF)


@spreads(_unpacked_spreads)
def unpack_pair(kind: str, source: str, relu: bool, saturate: bool, value: Value, scale: Value = _ONES) -> Value:
    """Converts a packed type to f16x2 or bf16x2, which hold all of its values. scale: two factors, as ue8m0."""
    bits, width = _array(value), np.uint32(_half_bits(source))
    mask = np.uint32((1 << int(width)) - 1)
    packed = []
    for number, factor in ((bits >> width, _array(scale) >> np.uint32(8)), (bits, _array(scale))):
        product = formats.decode(number & mask, _PAIRS[source]) * formats.decode(
            factor & np.uint32(0xFF), formats.UE8M0
        )
        packed.append(encode(float_math.rectified(product, relu), _PAIRS[kind], "rn", saturate))
    return _value(packed[0] << 16 | packed[1])


# ---- between scalar types ----


def float_to_float(
    to: str, source: str, mode: str, integral: str, ftz: bool, clamp: bool, relu: bool, saturate: bool, value: Value
) -> Value:
    """Converts between float types. integral: a rounding to an integer, or ""."""
    form, origin = _SCALARS[to], _SCALARS[source]
    bits = _array(value, origin.bits)
    numbers = float_math.inputs(bits, origin, ftz and origin is F32)
    if integral:
        numbers = np.copysign(formats.round_to_integral(numbers, integral), numbers)
    if saturate:
        return _value(encode(float_math.rectified(numbers, relu), form, mode, saturate=True))
    result = float_math.finish(numbers, form, mode, ftz=ftz and form is F32, clamp=clamp, relu=relu)
    if F64 in (form, origin) and not clamp and np.isnan(numbers).any():
        result = np.where(np.isnan(numbers), float_math.convert_nan(bits, origin, form), result)
    if mode == "rna" and np.isnan(numbers).any():
        # An H200 only truncates, so that some NaNs become infinity.
        result = np.where(np.isnan(numbers), bits & np.uint32(0xFFFFE000), result)
    return _value(result, form.bits)


def float_to_integer(to: str, source: str, register_bits: int, mode: str, ftz: bool, value: Value) -> Value:
    """Converts a float to an integer, with saturation, and extends the result to the register.

    NaN gives 0. From f64, and to 64 bits, it gives the integer with only the highest bit set (PTX ISA 9.7.9.21).
    """
    origin = _SCALARS[source]
    numbers = float_math.inputs(_array(value, origin.bits), origin, ftz)
    whole = formats.round_to_integral(numbers, mode)
    bits = bits_of(to)
    low, high = values.limits(bits, to[0] == "s")
    of_nan = 1 << (bits - 1) if origin is F64 or bits == 64 else 0

    def scalar(x: float) -> int:
        if x != x:
            return of_nan
        return (low if x <= low else high if x >= high else int(x)) & ((1 << register_bits) - 1)

    dtype = np.uint64 if register_bits == 64 else np.uint32
    if not whole.ndim:
        return scalar(float(whole))
    return np.array([scalar(x) for x in whole.tolist()], dtype)


def integer_to_float(to: str, source: str, mode: str, clamp: bool, value: Value) -> Value:
    """Converts an integer to a float, rounded once: the upper and the lower half of the integer are added exactly."""
    form, bits = _SCALARS[to], bits_of(source)
    number = _array(value, 64).astype(np.uint64)
    if source[0] == "s":
        sign = np.uint64(1 << (bits - 1))
        with np.errstate(over="ignore"):
            number = (number ^ sign) - sign
        upper = (number.view(np.int64) >> 32).astype(np.float64)
    else:
        upper = (number >> np.uint64(32)).astype(np.float64)
    upper, lower = np.asarray(upper * 2.0**32), np.asarray((number & np.uint64(0xFFFFFFFF)).astype(np.float64))
    total = float_math.of_format(form, "add", mode, upper, lower)
    return _value(float_math.finish(total, form, mode, clamp=clamp), form.bits)


def saturate_integer(to: str, source: str, register_bits: int, value: Value) -> Value:
    """Computes ``cvt.sat`` between integers."""
    source_bits = bits_of(source)
    low, high = values.limits(bits_of(to), to[0] == "s")

    def scalar(v: int) -> int:
        v &= (1 << source_bits) - 1
        number = values.signed(v, source_bits) if source[0] == "s" else v
        return max(low, min(high, number)) & ((1 << register_bits) - 1)

    return values.lanewise(register_bits, scalar, value)


def _packed_spreads(to: str, a: Value, b: Value, c: Value) -> Value:
    width = bits_of(to)
    return joined(width, a, b) | (np.asarray(c, np.uint64) << np.uint64(2 * width)).astype(np.uint32)


@spreads(_packed_spreads)
def pack_integers(to: str, a: Value, b: Value, c: Value) -> Value:
    """Computes ``cvt.pack.sat``: a above b, both saturated, and above them the low bits of c."""
    bits = int(to[1:])
    low, high = values.limits(bits, to[0] == "s")

    def scalar(x: int, y: int, rest: int) -> int:
        first, second = (max(low, min(high, values.signed(v, 32))) & ((1 << bits) - 1) for v in (x, y))
        return (rest << 2 * bits | first << bits | second) & values.M32

    return values.lanewise(32, scalar, a, b, c)


# ---- the table ----


def _register_bits(operand: Operand, kind: str) -> int:
    return bits_of(operand.type) if isinstance(operand, Register) else bits_of(kind)


@instruction("cvt.pack", operands=range(3, 5))
def _cvt_pack(i: Instruction, w: Translator) -> Assign:
    words = i.modifiers[1:]
    wide = words in (("sat", "u16", "s32"), ("sat", "s16", "s32"))
    narrow = words[:1] == ("sat",) and words[2:] == ("s32", "b32") and words[1] in (
        "u8", "s8", "u4", "s4", "u2", "s2",
    )  # fmt: skip
    if not (wide and len(i.operands) == 3) and not (narrow and len(i.operands) == 4):
        raise Unsupported
    sources = tuple((o, "b32") for o in (*i.operands[1:], Immediate(0))[:3])
    return Assign(calculated(pack_integers, i.operands[0], sources, before=(words[1],)))


@instruction("cvt", operands=range(2, 4))
def _cvt(i: Instruction, w: Translator) -> Assign:
    if len(i.modifiers) < 2:
        raise Unsupported
    *words, to, source = i.modifiers
    if to in _PAIRS:
        return _pair(i, words, to, source)
    if len(i.operands) != 2 or len(set(words)) != len(words):
        raise Unsupported
    if to in _SCALARS and source in _SCALARS:
        return _between_floats(i, words, to, source)
    if to in TYPE_BYTES and is_integer(to) and source in _SCALARS and source != "tf32":
        return _to_integer(i, words, to, source)
    if source not in TYPE_BYTES or not is_integer(source):
        raise Unsupported
    destination, operand = i.operands
    if to in _SCALARS and to != "tf32":
        return _from_integer(i, words, to, source)
    if to not in TYPE_BYTES or not is_integer(to):
        raise Unsupported
    if words == ["sat"]:
        before = (to, source, _register_bits(destination, to))
        return Assign(computed(i, saturate_integer, source, before=before))
    if words:
        raise Unsupported
    return Assign(*_resize(operand, source, to, destination))


_STRICT_PAIRS = ("e4m3x2", "e5m2x2", "e2m3x2", "e3m2x2", "e2m1x2")


def _pair(i: Instruction, words: list[str], to: str, source: str) -> Assign:
    form = ".".join(words)
    relus = ("", ".relu")
    sources = i.operands[1:]
    if source in _PAIRS and source not in ("f16x2", "bf16x2"):
        # Conversions of fp8 and smaller to bf16x2 exist since PTX ISA 9.2.
        forms = {"f16x2": ("rn", "rn.relu"), "bf16x2": tuple(f"rn{r}{s}" for r in relus for s in ("", ".satfinite"))}
        if source == "ue8m0x2":
            forms = {"bf16x2": ("rn",)}
        scaled = "scaled::n2::ue8m0" in words
        form = form.removesuffix(".scaled::n2::ue8m0")
        if form not in forms.get(to, ()) or len(sources) != 1 + scaled or (scaled and len(forms["bf16x2"]) == 1):
            raise Unsupported
        if scaled and to != "bf16x2":
            raise Unsupported
        kinds = ("b8" if source == "e2m1x2" else "b16", "b16")[: len(sources)]
        return Assign(computed(i, unpack_pair, kinds, before=(to, source, "relu" in words, "satfinite" in words)))
    if to in _STRICT_PAIRS:
        allowed: tuple[str, ...] = tuple(f"rn{r}.satfinite" for r in relus)
        from_halves: tuple[str, ...] = ("f16x2", "bf16x2")
    elif to == "ue8m0x2":
        allowed, from_halves = ("rz.satfinite", "rp.satfinite", "rz", "rp"), ("bf16x2",)
    else:
        allowed = tuple(f"{m}{x}" for m in ("rn", "rz") for x in ("", ".relu", ".satfinite", ".relu.satfinite"))
        from_halves = ()
    if form not in allowed or len(sources) != (2 if source == "f32" else 1) or source not in ("f32", *from_halves):
        raise Unsupported
    if to in ("bf16x2", "f16x2") and form == "rn":
        return Assign(micro_of(i, f"pack.{to}", "b32"))
    return Assign(computed(i, pack_pair, "b32", before=(to, source, words[0], "relu" in words, "satfinite" in words)))


def _between_floats(i: Instruction, words: list[str], to: str, source: str) -> Assign:
    destination, operand = i.operands
    if to in ("bf16", "f16") and source == "f32" and words == ["rn"]:
        return Assign(micro(f"pack.{to}x2", destination, source, 0, operand))
    if source == "bf16" and to == "f32" and len(words) == 1 and words[0] in ROUNDINGS:
        words = []  # The conversion is exact.
    if source in ("bf16", "f16") and to == "f32" and not words:
        return Assign(micro(f"f32.from.{source}", destination, source, operand))
    rounding = [m for m in words if m in (*ROUNDINGS, "rna", *INTEGRAL)]
    rest = [m for m in words if m not in rounding]
    narrows = not _holds(_SCALARS[to], _SCALARS[source])
    integral = bool(rounding) and rounding[0] in INTEGRAL
    if source == "tf32" or len(rounding) > 1 or any(m not in ("ftz", "sat", "relu", "satfinite") for m in rest):
        raise Unsupported
    if "ftz" in rest and "f32" not in (to, source):
        raise Unsupported
    if to == "tf32":
        modes = [m for m in rounding if m in ("rna", "rn", "rz")]
        if source != "f32" or not modes or not set(rest) <= {"relu", "satfinite"}:
            raise Unsupported
    elif "rna" in rounding or (("relu" in rest or "satfinite" in rest) and (source != "f32" or not narrows)):
        raise Unsupported
    elif integral:
        if to != source:
            raise Unsupported
    elif bool(rounding) != narrows and (rounding or {to, source} != {"f16", "bf16"}):
        # Compilers omit .rn between f16 and bf16.
        raise Unsupported
    mode = rounding[0] if rounding and not integral else "rn"
    whole = INTEGRAL[rounding[0]] if integral else ""
    flags = [m in rest for m in ("ftz", "sat", "relu", "satfinite")]
    operations = _plain_between_floats(i, rounding, rest, to, source)
    return Assign(*operations or (computed(i, float_to_float, source, before=(to, source, mode, whole, *flags)),))


def _plain_between_floats(
    i: Instruction, rounding: list[str], rest: list[str], to: str, source: str
) -> tuple[Micro, ...]:
    """Returns the conversion in operations of the table, which round to nearest or to an integer; empty for others."""
    destination, operand = i.operands
    if not set(rounding) <= {"rn", *INTEGRAL} or not set(rest) <= {"sat"}:
        return ()
    clamp = tuple(micro("sat.f32", destination, "f32", destination) for _ in rest)
    if (to, source) == ("f32", "f32") and (rounding or rest):
        whole = tuple(micro(f"{word}.f32", destination, source, operand) for word in rounding)
        return (*whole, *clamp) if whole else (micro("sat.f32", destination, source, operand),)
    if (to, source) == ("f32", "f64") or ((to, source) == ("f64", "f32") and not rest):
        return (micro(f"{to}.from.{source}", destination, source, operand), *clamp)
    return ()


def _holds(form: Format, other: Format) -> bool:
    """Returns whether a format holds every value of another one."""
    return form.exponent >= other.exponent and form.fraction >= other.fraction


def _to_integer(i: Instruction, words: list[str], to: str, source: str) -> Assign:
    rounding = [m for m in words if m in INTEGRAL]
    rest = [m for m in words if m not in INTEGRAL]
    if len(rounding) != 1 or not set(rest) <= {"sat", "ftz"} or ("ftz" in rest and source != "f32"):
        raise Unsupported
    destination = i.operands[0]
    before = (to, source, _register_bits(destination, to), INTEGRAL[rounding[0]], "ftz" in rest)
    # If the rounding makes a subnormal number zero anyway, flushing makes no difference.
    plain = "ftz" not in rest or rounding[0] in ("rni", "rzi")
    if plain and to in ("s32", "u32") and source in ("f32", "f64") and before[2] == 32:
        return Assign(micro_of(i, f"{to}.from.{source}.{rounding[0]}", source))
    return Assign(computed(i, float_to_integer, source, before=before))


def _from_integer(i: Instruction, words: list[str], to: str, source: str) -> Assign:
    rounding = [m for m in words if m in ROUNDINGS]
    rest = [m for m in words if m not in ROUNDINGS]
    if len(rounding) != 1 or not set(rest) <= {"sat"}:
        raise Unsupported
    sources = {"f32": ("s32", "u32"), "f64": ("s32", "u32", "s64", "u64")}
    if source in sources.get(to, ()) and words == ["rn"]:
        return Assign(micro_of(i, f"{to}.from.{source}", source))
    return Assign(computed(i, integer_to_float, source, before=(to, source, rounding[0], "sat" in rest)))


def _resize(operand: Operand, source: str, to: str, destination: Operand) -> list[Micro]:
    """Converts integer to integer: truncates, or extends by the sign of the source.

    The result is then extended to the register's width by the sign of the destination (PTX ISA 9.7.9.21, the note on
    wider registers).
    """
    bits, held, register = bits_of(to), _register_bits(operand, source), _register_bits(destination, to)
    kept, row = min(bits_of(source), bits), max(32, register)
    if kept == 64:
        return [micro("mov.64", destination, to, operand)]
    if source[0] == "s" if bits > kept else to[0] == "s" and register > bits:
        extended = micro(f"sext{kept}.{row}", destination, "b32", operand)
        limit = register if to[0] == "s" else bits
        cut = [micro(f"and.{row}", destination, f"b{row}", destination, (1 << limit) - 1)] if limit < row else []
        return [extended, *cut]
    low = destination if row == 32 else Temporary()
    if kept < 32 and (held > kept or not isinstance(operand, Register)):
        found = [micro("and.32", low, "b32", operand, (1 << kept) - 1)]
    elif held == 64:
        found = [micro("trunc.32", low, "b64", operand)]
    elif row == 64:
        return [micro("zext.64", destination, "b32", operand)]
    else:
        return [micro("mov.32", low, "b32", operand)]
    return [*found, micro("zext.64", destination, "b32", low)] if row == 64 else found
