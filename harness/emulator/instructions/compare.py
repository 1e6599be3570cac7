"""Comparison and selection (PTX ISA 9.7.6)."""

from __future__ import annotations

from typing import Any

import numpy as np

from harness.emulator.instructions import values
from harness.emulator.instructions.table import (
    Assign,
    Translator,
    Unsupported,
    bits_of,
    call,
    instruction,
    is_integer,
    kind_of,
    only,
)
from harness.emulator.machine.lanes import Value
from harness.emulator.ptx.ast import Dual, Instruction, Sink

_COMPARE = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_UNSIGNED = {"lo": "<", "ls": "<=", "hi": ">", "hs": ">="}
_COMBINE = {"and": "&", "or": "|", "xor": "^"}
_FLOAT_COMPARE = {
    **{name: f"({{a}} {sign} {{b}})" for name, sign in _COMPARE.items() if name != "ne"},
    "ne": "(({a} < {b}) | ({a} > {b}))",
    "equ": "((({a} < {b}) | ({a} > {b})) ^ True)",
    "neu": "({a} != {b})",
    "ltu": "(({a} >= {b}) ^ True)",
    "leu": "(({a} > {b}) ^ True)",
    "gtu": "(({a} <= {b}) ^ True)",
    "geu": "(({a} < {b}) ^ True)",
    "num": "(({a} == {a}) & ({b} == {b}))",
    "nan": "(({a} != {a}) | ({b} != {b}))",
}
"""With a NaN the plain comparisons are false and those that end in u true (PTX ISA 9.7.3 and 9.7.6)."""


def truth(test: Any) -> Value:
    """NumPy's scalar comparison gives np.bool_; predicates are Python bools."""
    return test if isinstance(test, np.ndarray) else bool(test)


def select_constant(predicate: Value, yes: int, no: int, bits: int) -> Value:
    """One of two constants; an array only where the predicate is one, of the register's width."""
    if predicate is True:
        return yes
    if predicate is False:
        return no
    return np.where(predicate, yes, no).astype(values.dtype_for(bits))


@instruction("setp", operands=range(3, 5))
def _setp(i: Instruction, w: Translator) -> Assign:
    comparison, kind = i.modifiers[0], kind_of(i)
    only(i, _FLOAT_COMPARE, _UNSIGNED, _COMBINE)
    combine = next((_COMBINE[m] for m in i.modifiers[1:-1] if m in _COMBINE), None)
    if len(i.operands) != (4 if combine else 3):
        raise Unsupported
    test = _test(w, comparison, kind, w.read(i.operands[1], kind), w.read(i.operands[2], kind))
    destination = i.operands[0]
    if isinstance(destination, Dual):
        pair = [(destination.first, test), (destination.second, f"({test} ^ True)")]
    else:
        pair = [(destination, test)]
    other = w.read(i.operands[3], "pred") if combine else None
    return Assign([(d, f"{t} {combine} {other}" if combine else t) for d, t in pair if not isinstance(d, Sink)])


def _test(w: Translator, comparison: str, kind: str, a: str, b: str) -> str:
    if kind in ("f32", "f64", "f16", "bf16"):
        if comparison not in _FLOAT_COMPARE:
            raise Unsupported
        if kind in ("f16", "bf16"):
            a, b = (call(w, values.half_to_float, x, repr(kind)) for x in (a, b))
        bits = max(32, bits_of(kind))
        a, b = (call(w, values.to_float, x, bits) for x in (a, b))
        return call(w, truth, _FLOAT_COMPARE[comparison].format(a=a, b=b))
    if not is_integer(kind):
        raise Unsupported
    if comparison in _UNSIGNED:
        return f"({a} {_UNSIGNED[comparison]} {b})"
    if comparison not in _COMPARE:
        raise Unsupported
    if comparison in ("eq", "ne") or kind[0] != "s":
        return f"({a} {_COMPARE[comparison]} {b})"
    high = 1 << (bits_of(kind) - 1)
    return f"(({a} ^ {high}) {_COMPARE[comparison]} ({b} ^ {high}))"


@instruction("selp", operands=4)
def _selp(i: Instruction, w: Translator) -> Assign:
    kind = kind_of(i)
    only(i)
    a, b, p = w.read(i.operands[1], kind), w.read(i.operands[2], kind), w.read(i.operands[3], "pred")
    bits = bits_of(kind)
    if a.isdigit() and b.isdigit():
        return Assign([(i.operands[0], call(w, select_constant, p, a, b, bits))])
    choice = call(w, values.select, p, a, b, bits)
    yes, no, predicate = i.operands[1:]
    result = f"({a} if {p} is True else {b} if {p} is False else {choice})"
    return Assign([(i.operands[0], result)], selects=(predicate, yes, no))
