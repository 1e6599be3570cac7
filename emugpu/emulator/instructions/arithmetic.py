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
    assign,
    bits_of,
    call,
    instruction,
    is_integer,
    kind_of,
    mask,
    micro,
    micro_of,
    narrowed,
    only,
    only_form,
    read_sources,
    row_bits,
)
from emugpu.emulator.machine.lanes import Value
from emugpu.emulator.machine.poison import in_parts, spreads, upwards
from emugpu.emulator.ptx.ast import Dual, Instruction

# ---- two 16-bit integers in one register (PTX ISA 9.7.1.1, 9.7.1.13, 9.7.1.14) ----

PACKED_KINDS = ("u16x2", "s16x2")


@spreads(lambda name, is_signed, relu, a, b: in_parts(16, a, b))
def packed_operation(name: str, is_signed: bool, relu: bool, a: Value, b: Value) -> Value:
    def half(x: int, y: int) -> int:
        if is_signed:
            x, y = values.signed(x, 16), values.signed(y, 16)
        result = {"add": x + y, "min": min(x, y), "max": max(x, y)}[name]
        return (max(result, 0) if relu else result) & 0xFFFF

    def scalar(x: int, y: int) -> int:
        return half(x & 0xFFFF, y & 0xFFFF) | half(x >> 16, y >> 16) << 16

    return values.lanewise(32, scalar, a, b)


def _packed(i: Instruction, w: Translator) -> Assign:
    forms = {"add": PACKED_KINDS, "min": (*PACKED_KINDS, "relu.s16x2"), "max": (*PACKED_KINDS, "relu.s16x2")}
    only_form(i, *forms.get(i.opcode, ()))
    kind = kind_of(i)
    a, b = read_sources(i, w, kind)
    return assign(i, call(w, packed_operation, repr(i.opcode), kind[0] == "s", i.has("relu"), a, b))


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


def _pairs(i: Instruction, w: Translator, a: str, b: str, carry: str, subtract: bool) -> Assign:
    first, bits = i.operands[0], bits_of(kind_of(i))
    if not isinstance(first, Dual):
        return Assign([(first, call(w, sum_bits, a, b, carry, bits, subtract, False))])
    return Assign(
        [
            (first.first, call(w, sum_bits, a, b, carry, bits, subtract, False)),
            (first.second, call(w, sum_bits, a, b, carry, bits, subtract, True)),
        ]
    )


def _add_with_carry(i: Instruction, w: Translator) -> Assign:
    """Emits add.cc, sub.cc, addc and subc."""
    extended = i.opcode in ("addc", "subc")
    only_form(i, *(f"cc.{kind}" for kind in _CARRY_KINDS), *(_CARRY_KINDS if extended else ()))
    kind = kind_of(i)
    if len(i.operands) != 3 + extended:
        raise Unsupported
    a, b = (w.read(o, kind) for o in i.operands[1:3])
    carry = w.read(i.operands[3], "b32") if extended else "0"
    return _pairs(i, w, a, b, carry, i.opcode.startswith("sub"))


@instruction("addc", "subc", operands=4)
def _addc(i: Instruction, w: Translator) -> Assign:
    return _add_with_carry(i, w)


def _multiply_add_with_carry(i: Instruction, w: Translator) -> Assign:
    """Emits mad.cc and madc: one half of the product, plus c, plus the carry."""
    extended = i.opcode == "madc"
    forms = [f"{half}.{cc}{kind}" for half in ("lo", "hi") for cc in ("cc.", "") for kind in _CARRY_KINDS]
    only_form(i, *(form for form in forms if extended or ".cc." in form))
    kind = kind_of(i)
    if len(i.operands) != 4 + extended:
        raise Unsupported
    a, b, c = (w.read(o, kind) for o in i.operands[1:4])
    bits = bits_of(kind)
    if i.has("hi"):
        product = call(w, values.multiply_high, a, b, bits, kind[0] == "s")
    else:
        product = f"({a} * {b}) & {(1 << bits) - 1}"
    return _pairs(i, w, product, c, w.read(i.operands[4], "b32") if extended else "0", False)


@instruction("madc", operands=5)
def _madc(i: Instruction, w: Translator) -> Assign:
    return _multiply_add_with_carry(i, w)


# ---- integers and floats ----

_FLOATS = ("f32", "f64")
_FLOAT_OPERATIONS = {"add": "np.add", "sub": "np.subtract", "mul": "np.multiply", "div": "np.divide"}


def _integers(i: Instruction, w: Translator, kind: str) -> list[str]:
    """Returns the sources of an instruction that has no modifiers but its integer type."""
    if not is_integer(kind):
        raise Unsupported
    only(i)
    return read_sources(i, w, kind)


def _is_plain(i: Instruction, kind: str) -> bool:
    """Returns whether the instruction is f32 or f64, rounded to nearest even, with no other modifier."""
    return kind in _FLOATS and i.modifiers in ((kind,), ("rn", kind))


def _float(i: Instruction, w: Translator, kind: str) -> Assign:
    """Emits add, sub, mul or div of f32 or f64, rounded to nearest even."""
    a, b = read_sources(i, w, kind)
    value = call(w, values.float_binary, _FLOAT_OPERATIONS[i.opcode], a, b, bits_of(kind))
    return assign(i, value, micro_of(i, f"{i.opcode}.{kind}", kind))


@instruction("add", "sub", operands=3)
def _add(i: Instruction, w: Translator) -> Assign:
    kind = kind_of(i)
    if _is_plain(i, kind):
        return _float(i, w, kind)
    if kind in floats.KINDS:
        return floats.sum_or_product(i, w, kind)
    if i.has("cc") or i.has("sat"):
        return _add_with_carry(i, w) if i.has("cc") else _saturated(i, w)
    if kind in PACKED_KINDS:
        return _packed(i, w)
    a, b = _integers(i, w, kind)
    native = narrowed([micro_of(i, f"{i.opcode}.{row_bits(kind)}", kind)], kind)
    return assign(i, f"({a} {'+' if i.opcode == 'add' else '-'} {b}) & {mask(kind)}", *native)


def _saturated(i: Instruction, w: Translator) -> Assign:
    """Emits add.sat or sub.sat, which exist only for s32."""
    only_form(i, "sat.s32")
    a, b = read_sources(i, w, "s32")
    return assign(i, call(w, values.add_saturated, a, b, i.opcode == "sub"))


@instruction("mul", operands=3)
def _mul(i: Instruction, w: Translator) -> Assign:
    kind = kind_of(i)
    if _is_plain(i, kind):
        return _float(i, w, kind)
    if kind in floats.KINDS:
        return floats.sum_or_product(i, w, kind)
    return assign(i, _product(i, w, kind), *_native_product(i, "mul", kind))


def _native_product(i: Instruction, name: str, kind: str) -> tuple[Micro, ...]:
    """Returns mul or mad as micro-operations."""
    bits, destination, factors = bits_of(kind), i.operands[0], tuple((o, kind) for o in i.operands[1:3])
    addend = tuple((o, f"u{2 * bits}" if i.has("wide") else kind) for o in i.operands[3:])
    if i.has("wide") or i.has("hi"):
        form = f"{'wide' if i.has('wide') else 'hi'}.{'s' if kind[0] == 's' else 'u'}32"
        if kind == "u16" and i.has("wide"):
            return (Micro(f"{name}.32", destination, factors + addend),)
        return (Micro(f"{name}.{form}", destination, factors + addend),) if bits == 32 else ()
    return narrowed([Micro(f"{name}.{row_bits(kind)}", destination, factors + addend)], kind)


def _product(i: Instruction, w: Translator, kind: str) -> str:
    if not is_integer(kind):
        raise Unsupported
    only(i, "lo", "hi", "wide")
    a, b = w.read(i.operands[1], kind), w.read(i.operands[2], kind)
    if i.has("wide"):
        return call(w, values.multiply_wide, a, b, bits_of(kind), kind[0] == "s")
    if i.has("hi"):
        return call(w, values.multiply_high, a, b, bits_of(kind), kind[0] == "s")
    return f"({a} * {b}) & {mask(kind)}"


@instruction("mad", "fma", operands=4)
def _mad(i: Instruction, w: Translator) -> Assign:
    kind = kind_of(i)
    if i.modifiers == ("rn", "f32"):
        fused = call(w, values.fused_multiply_add, *read_sources(i, w, kind))
        return assign(i, fused, micro_of(i, "fma.f32", kind))
    if kind in floats.KINDS:
        return floats.fused(i, w, kind)
    if i.has("cc"):
        return _multiply_add_with_carry(i, w)
    if i.modifiers == ("hi", "sat", "s32"):
        high = call(w, values.multiply_high, *read_sources(i, w, kind)[:2], 32, True)
        return assign(i, call(w, values.add_saturated, high, w.read(i.operands[3], kind), False))
    product = _product(i, w, kind)
    wide = f"u{2 * bits_of(kind)}" if i.has("wide") else kind
    value = f"(({product}) + {w.read(i.operands[3], wide)}) & {mask(wide)}"
    return assign(i, value, *_native_product(i, "mad", kind))


@instruction("div", "rem", operands=3)
def _div(i: Instruction, w: Translator) -> Assign:
    kind = kind_of(i)
    if i.opcode == "div" and i.modifiers == ("rn", kind) and kind in _FLOATS:
        return _float(i, w, kind)
    if i.opcode == "div" and kind in floats.KINDS:
        return floats.quotient(i, w, kind)
    a, b = _integers(i, w, kind)
    value = call(w, values.divide, a, b, bits_of(kind), kind[0] == "s", i.opcode == "rem")
    native = (micro_of(i, f"{i.opcode}.{kind}", kind),) if bits_of(kind) >= 32 else ()
    return assign(i, value, *native)


@instruction("min", "max", operands=range(3, 5))
def _minmax(i: Instruction, w: Translator) -> Assign:
    """Emits min or max of two numbers; f32 may have three."""
    kind = kind_of(i)
    if kind in floats.KINDS:
        return floats.minimum_or_maximum(i, w, kind)
    if kind in PACKED_KINDS:
        return _packed(i, w)
    relu = i.modifiers == ("relu", "s32") and len(i.operands) == 3
    if not relu:
        only(i)
    read = read_sources(i, w, kind)
    if not is_integer(kind) or len(read) != 2:
        raise Unsupported
    high = 1 << (bits_of(kind) - 1) if kind[0] == "s" else 0
    function = values.minimum if i.opcode == "min" else values.maximum
    result = call(w, function, *read, high)
    has_operation = not relu and (bits_of(kind) >= 32 or not high)
    name = f"{i.opcode}.{'s' if high else 'u'}{row_bits(kind)}"
    native = (micro_of(i, name, kind),) if has_operation else ()
    return assign(i, call(w, values.maximum, result, 0, high) if relu else result, *native)


@instruction("neg", "abs", operands=2)
def _neg(i: Instruction, w: Translator) -> Assign:
    kind = kind_of(i)
    if kind in floats.KINDS:
        return floats.negate_or_absolute(i, w, kind)
    [a] = read_sources(i, w, kind)
    only(i)
    if not is_integer(kind):
        raise Unsupported
    negative = f"(0 - {a}) & {mask(kind)}"
    destination, source = i.operands
    bits = row_bits(kind)
    if i.opcode == "neg":
        return assign(i, negative, *narrowed([micro(f"sub.{bits}", destination, kind, 0, source)], kind))
    value = call(w, values.maximum, a, negative, 1 << (bits_of(kind) - 1))
    between = Temporary(bits == 64)
    larger = micro(f"max.s{bits}", destination, kind, source, between)
    native = (micro(f"sub.{bits}", between, kind, 0, source), larger) if bits_of(kind) >= 32 else ()
    return assign(i, value, *native)
