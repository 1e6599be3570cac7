"""Two 16-bit integers in one register: add, min and max (PTX ISA 9.7.1.1, 9.7.1.13, 9.7.1.14)."""

from __future__ import annotations

from harness.emulator.instructions import values
from harness.emulator.instructions.table import Assign, Translator, call, kind_of, only_form
from harness.emulator.machine.lanes import Value
from harness.emulator.ptx.ast import Instruction

KINDS = ("u16x2", "s16x2")


def packed_operation(name: str, is_signed: bool, relu: bool, a: Value, b: Value) -> Value:
    def half(x: int, y: int) -> int:
        if is_signed:
            x, y = values.signed(x, 16), values.signed(y, 16)
        result = {"add": x + y, "min": min(x, y), "max": max(x, y)}[name]
        return (max(result, 0) if relu else result) & 0xFFFF

    def scalar(x: int, y: int) -> int:
        return half(x & 0xFFFF, y & 0xFFFF) | half(x >> 16, y >> 16) << 16

    return values.lanewise(32, scalar, a, b)


def operation(i: Instruction, w: Translator) -> Assign:
    forms = {"add": KINDS, "min": (*KINDS, "relu.s16x2"), "max": (*KINDS, "relu.s16x2")}
    only_form(i, *forms.get(i.opcode, ()))
    kind = kind_of(i)
    a, b = (w.read(o, kind) for o in i.operands[1:])
    return Assign([(i.operands[0], call(w, packed_operation, repr(i.opcode), kind[0] == "s", i.has("relu"), a, b))])
