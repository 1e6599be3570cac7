"""Extended-precision arithmetic: with a carry in or out (PTX ISA 9.7.2). The carry is the last operand read.

Of a subtraction the carry flag holds the borrow.
"""

from __future__ import annotations

from harness.emulator.instructions import values
from harness.emulator.instructions.table import (
    Assign,
    Translator,
    Unsupported,
    bits_of,
    call,
    instruction,
    kind_of,
    only_form,
)
from harness.emulator.machine.lanes import Value
from harness.emulator.ptx.ast import Dual, Instruction

_KINDS = ("u32", "s32", "u64", "s64")


def sum_bits(a: Value, b: Value, carry: Value, bits: int, subtract: bool, flag: bool) -> Value:
    """a + b + carry or a - (b + carry): the result, or the carry out of it."""

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


def add(i: Instruction, w: Translator) -> Assign:
    """add.cc and sub.cc, which `arithmetic` passes on, and addc and subc."""
    extended = i.opcode in ("addc", "subc")
    only_form(i, *(f"cc.{kind}" for kind in _KINDS), *(_KINDS if extended else ()))
    kind = kind_of(i)
    if len(i.operands) != 3 + extended:
        raise Unsupported
    a, b = (w.read(o, kind) for o in i.operands[1:3])
    carry = w.read(i.operands[3], "b32") if extended else "0"
    return _pairs(i, w, a, b, carry, i.opcode.startswith("sub"))


@instruction("addc", "subc", operands=4)
def _addc(i: Instruction, w: Translator) -> Assign:
    return add(i, w)


def multiply_add(i: Instruction, w: Translator) -> Assign:
    """mad.cc and madc: one half of the product, plus c, plus the carry."""
    extended = i.opcode == "madc"
    forms = [f"{half}.{cc}{kind}" for half in ("lo", "hi") for cc in ("cc.", "") for kind in _KINDS]
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
    return multiply_add(i, w)
