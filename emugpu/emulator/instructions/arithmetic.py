"""Arithmetic that integers and floats share, from add to abs; packed, and with carry (PTX ISA 9.7.1 to 9.7.3).

The carry is the last operand read. For a subtraction, the carry flag holds the borrow.
"""

from __future__ import annotations

from emugpu.emulator.instructions import floats, values
from emugpu.emulator.instructions.table import (
    Assign,
    Micro,
    Temporary,
    Translator,
    Unsupported,
    apart,
    bits_of,
    calculated,
    computed,
    instruction,
    is_integer,
    kind_of,
    micro,
    micro_of,
    narrowed,
    only,
    only_form,
    row_bits,
)
from emugpu.emulator.machine.lanes import Value
from emugpu.emulator.machine.poison import in_parts, spreads, upwards
from emugpu.emulator.ptx.ast import Dual, Immediate, Instruction, Operand

# ---- several integers in one register, and sums that saturate (PTX ISA 9.7.1) ----

PACKED_KINDS = ("u16x2", "s16x2", "u8x4", "s8x4")
_PACKED_FORMS = {
    "add": (*PACKED_KINDS, *(f"sat.{kind}" for kind in (*PACKED_KINDS, "u32"))),
    "sub": ("u8x4", "s8x4", "sat.u8x4", "sat.s8x4"),
    "neg": ("s8x4",),
    "min": (*PACKED_KINDS, "relu.s16x2", "relu.s8x4"),
    "max": (*PACKED_KINDS, "relu.s16x2", "relu.s8x4"),
}


def _bits_of_part(kind: str) -> int:
    return int(kind[1:].partition("x")[0])


@spreads(lambda name, kind, words, a, b: in_parts(_bits_of_part(kind), a, b))
def packed_operation(name: str, kind: str, words: tuple[str, ...], a: Value, b: Value) -> Value:
    """Computes an operation on each part of a register. words: its other modifiers, sat or relu."""
    is_signed, bits = kind[0] == "s", _bits_of_part(kind)
    low, high = values.limits(bits, is_signed)
    low = 0 if "relu" in words else low

    def part(x: int, y: int) -> int:
        if is_signed:
            x, y = values.signed(x, bits), values.signed(y, bits)
        result = {"add": x + y, "sub": x - y, "min": min(x, y), "max": max(x, y)}[name]
        return (max(low, min(high, result)) if words else result) & ((1 << bits) - 1)

    def scalar(x: int, y: int) -> int:
        mask = (1 << bits) - 1
        return sum(part(x >> n & mask, y >> n & mask) << n for n in range(0, 32, bits))

    return values.lanewise(32, scalar, a, b)


def _packed(i: Instruction) -> Assign:
    only_form(i, *_PACKED_FORMS.get(i.opcode, ()))
    destination, *sources = i.operands
    if i.opcode == "neg":
        sources = [Immediate(0), *sources]
    if len(sources) != 2:
        raise Unsupported
    before = ("sub" if i.opcode == "neg" else i.opcode, kind_of(i), i.modifiers[:-1])
    return Assign(calculated(packed_operation, destination, tuple((s, "b32") for s in sources), before=before))


# ---- with a carry in or out (PTX ISA 9.7.2) ----

_CARRY_KINDS = ("u32", "s32", "u64", "s64")


def _sum_spreads(a: Value, b: Value, carry: Value, bits: int, subtract: bool, flag: bool) -> Value:
    mask = upwards(a, b, carry)
    return (mask != 0) * 1 if flag else mask


@spreads(_sum_spreads)
def sum_bits(a: Value, b: Value, carry: Value, bits: int, subtract: bool, flag: bool) -> Value:
    """Returns a + b + carry or a - (b + carry): the result, or its carry."""

    def scalar(x: int, y: int, c: int) -> int:
        total = x - (y + c) if subtract else x + y + c
        return total >> bits & 1 if flag else total & ((1 << bits) - 1)

    return values.lanewise(32 if flag else bits, scalar, a, b, carry)


def _sums(i: Instruction, subtract: bool, *sources: tuple[Operand | Temporary, str]) -> tuple[Micro, ...]:
    """Returns the sum or difference of two sources and a carry, and its carry if the instruction writes it."""
    to, bits = i.operands[0], bits_of(kind_of(i))
    if not isinstance(to, Dual):
        return (calculated(sum_bits, to, sources, bits, subtract, False),)
    both = ((to.first, False), (to.second, True))
    return apart([calculated(sum_bits, part, sources, bits, subtract, flag) for part, flag in both])


@instruction("addc", "subc", operands=4)
def _add_with_carry(i: Instruction, w: Translator) -> Assign:
    """Emits add.cc, sub.cc, addc and subc."""
    extended = i.opcode in ("addc", "subc")
    only_form(i, *(f"cc.{kind}" for kind in _CARRY_KINDS), *(_CARRY_KINDS if extended else ()))
    kind = kind_of(i)
    if len(i.operands) != 3 + extended:
        raise Unsupported
    _, a, b, carry = (*i.operands, Immediate(0))[:4]
    return Assign(*_sums(i, i.opcode.startswith("sub"), (a, kind), (b, kind), (carry, "b32")))


@instruction("madc", operands=5)
def _multiply_add_with_carry(i: Instruction, w: Translator) -> Assign:
    """Emits mad.cc and madc: one half of the product, plus c, plus the carry."""
    extended = i.opcode == "madc"
    forms = [f"{half}.{cc}{kind}" for half in ("lo", "hi") for cc in ("cc.", "") for kind in _CARRY_KINDS]
    only_form(i, *(form for form in forms if extended or ".cc." in form))
    kind = kind_of(i)
    if len(i.operands) != 4 + extended:
        raise Unsupported
    _, a, b, c, carry = (*i.operands, Immediate(0))[:5]
    product, bits = Temporary(bits_of(kind) == 64), bits_of(kind)
    if i.has("hi"):
        half = calculated(values.multiply_high, product, ((a, kind), (b, kind)), bits, kind[0] == "s")
    else:
        half = micro(f"mul.{bits}", product, kind, a, b)
    return Assign(half, *_sums(i, False, (product, kind), (c, kind), (carry, "b32")))


# ---- integers and floats ----

_FLOATS = ("f32", "f64")


def _only_integers(i: Instruction, kind: str) -> None:
    """Refuses all but an integer type without other modifiers."""
    if not is_integer(kind):
        raise Unsupported
    only(i)


def _is_plain(i: Instruction, kind: str) -> bool:
    """Returns whether the instruction is f32 or f64, rounded to nearest even, with no other modifier."""
    return kind in _FLOATS and i.modifiers in ((kind,), ("rn", kind))


@instruction("add", "sub", operands=3)
def _add(i: Instruction, w: Translator) -> Assign:
    kind = kind_of(i)
    if _is_plain(i, kind):
        return Assign(micro_of(i, f"{i.opcode}.{kind}", kind))
    if kind in floats.KINDS:
        return floats.sum_or_product(i, kind)
    if i.has("cc"):
        return _add_with_carry(i, w)
    if i.modifiers == ("sat", "s32"):
        return Assign(computed(i, values.add_saturated, "s32", i.opcode == "sub"))
    if i.has("sat") or kind in PACKED_KINDS:
        return _packed(i)
    _only_integers(i, kind)
    return Assign(*narrowed([micro_of(i, f"{i.opcode}.{row_bits(kind)}", kind)], kind))


@instruction("mul", operands=3)
def _mul(i: Instruction, w: Translator) -> Assign:
    kind = kind_of(i)
    if _is_plain(i, kind):
        return Assign(micro_of(i, f"mul.{kind}", kind))
    if kind in floats.KINDS:
        return floats.sum_or_product(i, kind)
    return Assign(*_product(i, "mul", kind))


def _product(i: Instruction, name: str, kind: str) -> tuple[Micro, ...]:
    """Returns mul or mad of integers."""
    if not is_integer(kind):
        raise Unsupported
    only(i, "lo", "hi", "wide")
    bits, to = bits_of(kind), i.operands[0]
    wide = f"u{2 * bits}" if i.has("wide") else kind
    kinds = (kind, kind, wide)[: len(i.operands) - 1]
    if not (i.has("wide") or i.has("hi")):
        return narrowed([micro_of(i, f"{name}.{row_bits(kind)}", kind)], kind)
    if bits == 32:
        return (micro_of(i, f"{name}.{'wide' if i.has('wide') else 'hi'}.{'s' if kind[0] == 's' else 'u'}32", *kinds),)
    if kind == "u16" and i.has("wide"):
        return (micro_of(i, f"{name}.32", *kinds),)
    function = values.multiply_wide if i.has("wide") else values.multiply_high
    a, b, *c = i.operands[1:]
    product = Temporary(row_bits(wide) == 64) if c else to
    found = calculated(function, product, ((a, kind), (b, kind)), bits, kind[0] == "s")
    return (found, *(narrowed([micro(f"add.{row_bits(wide)}", to, wide, product, *c)], wide) if c else ()))


@instruction("mad", "fma", operands=4)
def _mad(i: Instruction, w: Translator) -> Assign:
    kind = kind_of(i)
    if i.modifiers == ("rn", "f32"):
        return Assign(micro_of(i, "fma.f32", kind))
    if kind in floats.KINDS:
        return floats.fused(i, kind)
    if i.has("cc"):
        return _multiply_add_with_carry(i, w)
    if i.modifiers == ("hi", "sat", "s32"):
        destination, a, b, c = i.operands
        return Assign(
            micro("mul.hi.s32", Temporary(), kind, a, b),
            calculated(values.add_saturated, destination, ((Temporary(), kind), (c, kind)), False),
        )
    return Assign(*_product(i, "mad", kind))


@spreads(lambda high, a, b, c: in_parts(64, a, b, c) if high else upwards(a, b, c))
def carry_less(high: bool, a: Value, b: Value, c: Value) -> Value:
    """Computes ``clmad``: one half of the product of two polynomials over GF(2), plus c (PTX ISA 9.7.1.5)."""

    def scalar(x: int, y: int, z: int) -> int:
        product = 0
        for n in range(64):
            product ^= (x << n) * (y >> n & 1)
        return (product >> 64 * high & values.M64) ^ z

    return values.lanewise(64, scalar, a, b, c)


@instruction("clmad", operands=4)
def _clmad(i: Instruction, w: Translator) -> Assign:
    only_form(i, "lo.u64", "hi.u64")
    return Assign(computed(i, carry_less, "u64", before=(i.has("hi"),)))


@instruction("div", "rem", operands=3)
def _div(i: Instruction, w: Translator) -> Assign:
    kind = kind_of(i)
    if i.opcode == "div" and i.modifiers == ("rn", kind) and kind in _FLOATS:
        return Assign(micro_of(i, f"div.{kind}", kind))
    if i.opcode == "div" and kind in floats.KINDS:
        return floats.quotient(i, kind)
    _only_integers(i, kind)
    if bits_of(kind) >= 32:
        return Assign(micro_of(i, f"{i.opcode}.{kind}", kind))
    return Assign(computed(i, values.divide, kind, bits_of(kind), kind[0] == "s", i.opcode == "rem"))


@instruction("min", "max", operands=range(3, 5))
def _minmax(i: Instruction, w: Translator) -> Assign:
    """Emits min or max of two numbers; f32 may have three."""
    kind = kind_of(i)
    if kind in floats.KINDS:
        return floats.minimum_or_maximum(i, kind)
    if kind in PACKED_KINDS:
        return _packed(i)
    if not is_integer(kind) or len(i.operands) != 3:
        raise Unsupported
    if i.modifiers == ("relu", "s32"):
        positive = micro("max.s32", i.operands[0], kind, i.operands[0], 0)
        return Assign(micro_of(i, f"{i.opcode}.s32", kind), positive)
    only(i)
    high = 1 << (bits_of(kind) - 1) if kind[0] == "s" else 0
    if high and bits_of(kind) < 32:
        return Assign(computed(i, values.minimum if i.opcode == "min" else values.maximum, kind, high))
    return Assign(micro_of(i, f"{i.opcode}.{'s' if high else 'u'}{row_bits(kind)}", kind))


@instruction("neg", "abs", operands=2)
def _neg(i: Instruction, w: Translator) -> Assign:
    kind = kind_of(i)
    if kind in floats.KINDS:
        return floats.negate_or_absolute(i, kind)
    if kind in PACKED_KINDS:
        return _packed(i)
    _only_integers(i, kind)
    destination, source = i.operands
    bits = row_bits(kind)
    if i.opcode == "neg":
        return Assign(*narrowed([micro(f"sub.{bits}", destination, kind, 0, source)], kind))
    negative = Temporary(bits == 64)
    found = narrowed([micro(f"sub.{bits}", negative, kind, 0, source)], kind)
    if bits_of(kind) >= 32:
        return Assign(*found, micro(f"max.s{bits}", destination, kind, source, negative))
    both = ((source, kind), (negative, kind))
    return Assign(*found, calculated(values.maximum, destination, both, 1 << (bits_of(kind) - 1)))
