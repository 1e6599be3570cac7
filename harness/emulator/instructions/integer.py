"""Integer and logic instructions (PTX ISA 9.7.1, 9.7.2, 9.7.8). Those that floats have, too, are in `arithmetic`."""

from __future__ import annotations

from harness.emulator.instructions import values
from harness.emulator.instructions.table import (
    Assign,
    Translator,
    bits_of,
    call,
    instruction,
    kind_of,
    mask,
    only,
    only_form,
)
from harness.emulator.machine.lanes import Value
from harness.emulator.ptx.ast import Instruction


@instruction("and", "or", "xor", operands=3)
def _logic(i: Instruction, w: Translator) -> Assign:
    only(i)
    kind = kind_of(i)
    a, b = w.read(i.operands[1], kind), w.read(i.operands[2], kind)
    sign = {"and": "&", "or": "|", "xor": "^"}[i.opcode]
    return Assign([(i.operands[0], f"{a} {sign} {b}")])


@instruction("not", operands=2)
def _not(i: Instruction, w: Translator) -> Assign:
    kind = kind_of(i)
    only(i)
    flip = "True" if kind == "pred" else str(mask(kind))
    return Assign([(i.operands[0], f"{w.read(i.operands[1], kind)} ^ {flip}")])


@instruction("shl", "shr", operands=3)
def _shift(i: Instruction, w: Translator) -> Assign:
    kind = kind_of(i)
    only(i)
    value, amount = w.read(i.operands[1], kind), w.read(i.operands[2], "u32")
    bits = bits_of(kind)
    if i.opcode == "shr" and kind[0] == "s":
        result = call(w, values.shift_right_signed, value, amount, bits)
    elif amount.isdigit():
        by = min(int(amount), bits)  # which leaves nothing
        result = f"({value} << {by}) & {mask(kind)}" if i.opcode == "shl" else f"{value} >> {by}"
    else:
        result = call(w, values.shift_left if i.opcode == "shl" else values.shift_right, value, amount, bits)
    return Assign([(i.operands[0], result)])


@instruction("shf", operands=4)
def _funnel(i: Instruction, w: Translator) -> Assign:
    only(i, "l", "r", "clamp", "wrap")
    low, high, amount = (w.read(o, "b32") for o in i.operands[1:])
    return Assign([(i.operands[0], call(w, values.funnel_shift, low, high, amount, i.has("l"), i.has("wrap")))])


@instruction("lop3", operands=5)
def _lop3(i: Instruction, w: Translator) -> Assign:
    only(i)
    return Assign([(i.operands[0], call(w, values.lop3, *(w.read(o, "b32") for o in i.operands[1:])))])


@instruction("prmt", operands=4)
def _prmt(i: Instruction, w: Translator) -> Assign:
    only(i)
    return Assign([(i.operands[0], call(w, values.prmt, *(w.read(o, "b32") for o in i.operands[1:])))])


@instruction("bfe", operands=4)
def _bfe(i: Instruction, w: Translator) -> Assign:
    kind = kind_of(i)
    only(i)
    value = w.read(i.operands[1], kind)
    position, length = w.read(i.operands[2], "u32"), w.read(i.operands[3], "u32")
    result = call(w, values.bit_field_extract, value, position, length, bits_of(kind), kind[0] == "s")
    return Assign([(i.operands[0], result)])


@instruction("bfi", operands=5)
def _bfi(i: Instruction, w: Translator) -> Assign:
    kind = kind_of(i)
    only(i)
    field, value = w.read(i.operands[1], kind), w.read(i.operands[2], kind)
    position, length = w.read(i.operands[3], "u32"), w.read(i.operands[4], "u32")
    return Assign([(i.operands[0], call(w, values.bit_field_insert, field, value, position, length, bits_of(kind)))])


@instruction("popc", "clz", "brev", operands=2)
def _count(i: Instruction, w: Translator) -> Assign:
    kind = kind_of(i)
    only(i)
    value, bits = w.read(i.operands[1], kind), bits_of(kind)
    function = {"popc": values.popcount, "clz": values.count_leading_zeros, "brev": values.bit_reverse}[i.opcode]
    return Assign([(i.operands[0], call(w, function, value, bits))])


def bit_mask(position: Value, width: Value, clamp: bool) -> Value:
    """``bmsk``: ones from a position on (PTX ISA 9.7.1.24). Clamped, what lies past the end is cut off."""

    def scalar(a: int, b: int) -> int:
        start, count = (min(a, 32), b) if clamp else (a & 31, b & 31)
        end = min(start + count, 32)
        return ((1 << end) - 1) & ~((1 << start) - 1)

    return values.lanewise(32, scalar, position, width)


@instruction("bmsk", operands=3)
def _bmsk(i: Instruction, w: Translator) -> Assign:
    only_form(i, "clamp.b32", "wrap.b32")
    position, width = w.read(i.operands[1], "u32"), w.read(i.operands[2], "u32")
    return Assign([(i.operands[0], call(w, bit_mask, position, width, i.has("clamp")))])
