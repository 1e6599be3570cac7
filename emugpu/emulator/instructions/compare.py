"""Comparison and selection (PTX ISA 9.7.6)."""

from __future__ import annotations

from typing import Any

import numpy as np

from emugpu.emulator.instructions import values
from emugpu.emulator.instructions.floats import change_sign
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
    micro,
    only,
    only_form,
)
from emugpu.emulator.machine.lanes import Value
from emugpu.emulator.ptx.ast import Dual, Instruction, Sink

_COMPARE = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_UNSIGNED = {"lo": "<", "ls": "<=", "hi": ">", "hs": ">="}
_COMBINE = {"and": "&", "or": "|", "xor": "^"}
_ORDERED = {
    "eq": ("==",), "ne": ("<", ">"), "lt": ("<",), "le": ("<=",), "gt": (">",), "ge": (">=",), "num": ("<=", ">")
}  # fmt: skip
_OPPOSITE = {"equ": "ne", "neu": "eq", "ltu": "ge", "leu": "gt", "gtu": "le", "geu": "lt", "nan": "num"}
FLOAT_COMPARISONS = {
    **{name: (signs, True) for name, signs in _ORDERED.items()},
    **{name: (_ORDERED[opposite], False) for name, opposite in _OPPOSITE.items()},
}
"""The comparisons of floats (PTX ISA 9.7.3, 9.7.6), of which each engine makes its own code. By name: signs, and the
result if one of them holds. None of these signs holds where an operand is NaN.
"""


def truth(test: Any) -> Value:
    """Converts the np.bool_ of NumPy's scalar comparisons to a bool, because predicates are Python bools."""
    return test if isinstance(test, np.ndarray) else bool(test)


def _comparison(i: Instruction, w: Translator, kind: str, extra: int) -> tuple[tuple[str, ...], str]:
    """Returns the tests of setp or set (two for a packed type), and text like ``& predicate`` to combine them with.

    extra: the number of types at the end.
    """
    words = list(i.modifiers[1:-extra])
    combine = _COMBINE[words.pop(0)] if words and words[0] in _COMBINE else ""
    ftz = words == ["ftz"]
    if (words and not ftz) or (ftz and kind not in ("f32", "f16", "f16x2")) or len(i.operands) != 3 + bool(combine):
        raise Unsupported
    a, b = (w.read(o, kind) for o in i.operands[1:3])
    comparison = i.modifiers[0]
    if kind in ("f16x2", "bf16x2"):
        if comparison not in FLOAT_COMPARISONS:
            raise Unsupported
        halves = [[f"({x} & 0xFFFF)", f"({x} >> 16)"] for x in (a, b)]
        tests = tuple(_test(w, comparison, kind[:-2], x, y, ftz) for x, y in zip(*halves, strict=True))
    else:
        tests = (_test(w, comparison, kind, a, b, ftz),)
    return tests, f" {combine} {w.read(i.operands[3], 'pred')}" if combine else ""


@instruction("setp", operands=range(3, 5))
def _setp(i: Instruction, w: Translator) -> Assign:
    """Emits setp. The second predicate is the upper half's for a packed type, and else the opposite of the first."""
    kind = kind_of(i)
    tests, combined = _comparison(i, w, kind, 1)
    destination = i.operands[0]
    if isinstance(destination, Dual):
        second = tests[1] if len(tests) == 2 else f"({tests[0]} ^ True)"
        pair = [(destination.first, tests[0]), (destination.second, second)]
    elif len(tests) == 2:
        raise Unsupported
    else:
        pair = [(destination, tests[0])]
    return Assign([(d, f"{t}{combined}") for d, t in pair if not isinstance(d, Sink)], micro=_native_test(i, kind))


def _native_test(i: Instruction, kind: str) -> tuple[Micro, ...]:
    """Returns setp of one predicate as micro-operations."""
    destination, a, b, *others = i.operands
    comparison, *words = i.modifiers[:-1]
    is_signed = kind[0] == "s" and comparison not in ("eq", "ne")
    if kind in ("f32", "f64"):
        name = f"setp.{comparison}.{kind}"
    elif is_integer(kind) and not (is_signed and bits_of(kind) < 32):
        comparison = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}.get(comparison, comparison)
        name = f"setp.{comparison}.{'s' if is_signed else 'u'}{max(32, bits_of(kind))}"
    else:
        return ()
    if isinstance(destination, Dual | Sink) or (words and words[0] not in _COMBINE) or len(words) > 1:
        return ()
    if not words:
        return (micro(name, destination, kind, a, b),)
    between = Temporary()
    return (micro(name, between, kind, a, b), micro(f"{words[0]}.32", destination, "pred", between, *others))


_ONES = {"f32": 0x3F800000, "f16": 0x3C00, "bf16": 0x3F80, "f16x2": 0x3C00, "bf16x2": 0x3F80,
         "u16": 0xFFFF, "s16": 0xFFFF, "u32": 0xFFFFFFFF, "s32": 0xFFFFFFFF}  # fmt: skip
"""The value that ``set`` writes if the test is true; for a packed type, to each half."""


@instruction("set", operands=range(3, 5))
def _set(i: Instruction, w: Translator) -> Assign:
    """Emits ``set``: the result of a comparison as a number, 1.0 or all ones if true, else 0."""
    if len(i.modifiers) < 3 or i.modifiers[-2] not in _ONES:
        raise Unsupported
    to, kind = i.modifiers[-2:]
    if to.startswith(("f16", "bf16")) and to != kind:
        raise Unsupported
    tests, combined = _comparison(i, w, kind, 2)
    if len(tests) == 2 and to != kind:
        raise Unsupported
    chosen = [call(w, values.select, f"({t}{combined})", _ONES[to], 0, 32) for t in tests]
    return assign(i, chosen[0] if len(chosen) == 1 else f"{chosen[0]} | {chosen[1]} << 16")


def choose_by_sign(a: Value, b: Value, c: Value, kind: str, bits: int) -> Value:
    """Computes ``slct``: a if c is not negative, else b. A NaN gives b; -0 is not negative (PTX ISA 9.7.6.4)."""
    positive = np.asarray(c) >> 31 == 0 if kind == "s32" else np.asarray(values.to_float(c, 32) >= 0)
    return values.select(positive if positive.ndim else bool(positive), a, b, bits)


@instruction("slct", operands=4)
def _slct(i: Instruction, w: Translator) -> Assign:
    kinds = [f"{t}{n}" for t in "bus" for n in (16, 32, 64)] + ["f32", "f64"]
    only_form(i, *(f"{k}.{by}" for k in kinds for by in ("s32", "f32", "ftz.f32")), *(f"ftz.{k}.f32" for k in kinds))
    kind, by = next(m for m in i.modifiers if m != "ftz"), i.modifiers[-1]
    a, b = (w.read(o, kind) for o in i.operands[1:3])
    choice = call(w, choose_by_sign, a, b, w.read(i.operands[3], by), repr(by), bits_of(kind))
    return assign(i, choice)


def _test(w: Translator, comparison: str, kind: str, a: str, b: str, ftz: bool) -> str:
    if kind in ("f32", "f64", "f16", "bf16"):
        if comparison not in FLOAT_COMPARISONS:
            raise Unsupported
        if ftz:
            a, b = (call(w, change_sign, "'none'", repr(kind), x) for x in (a, b))
        if kind in ("f16", "bf16"):
            a, b = (call(w, values.half_to_float, x, repr(kind)) for x in (a, b))
        bits = max(32, bits_of(kind))
        a, b = (call(w, values.to_float, x, bits) for x in (a, b))
        signs, result = FLOAT_COMPARISONS[comparison]
        holds = " | ".join(f"({a} {sign} {b})" for sign in signs)
        return call(w, truth, f"({holds})" if result else f"(({holds}) ^ True)")
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
    sources = tuple(zip(i.operands[1:], (kind, kind, "pred"), strict=True))
    native = (Micro(f"selp.{max(32, bits)}", i.operands[0], sources),)
    return assign(i, call(w, values.select, p, a, b, bits), *native)
