"""Comparison and selection (PTX ISA 9.7.6)."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import replace
from functools import reduce
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
    apart,
    bits_of,
    calculated,
    computed,
    instruction,
    is_integer,
    kind_of,
    micro,
    micro_of,
    only,
    only_form,
    row_bits,
)
from emugpu.emulator.machine.lanes import Value
from emugpu.emulator.ptx.ast import Dual, Immediate, Instruction, Operand, Sink

_INTEGER = {
    **{name: (name, True) for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    **{name: (other, False) for name, other in (("lo", "lt"), ("ls", "le"), ("hi", "gt"), ("hs", "ge"))},
}
"""The comparisons of integers: the name of the operation, and whether it minds signs."""
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


_TESTS: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip


def compare_floats(comparison: str, kind: str, ftz: bool, a: Value, b: Value) -> Value:
    """Computes a comparison of two f16, bf16, f32 or f64."""
    if ftz:
        a, b = (change_sign("none", kind, x) for x in (a, b))
    if kind in ("f16", "bf16"):
        a, b = (values.half_to_float(x, kind) for x in (a, b))
    a, b = (values.to_float(x, max(32, bits_of(kind))) for x in (a, b))
    signs, result = FLOAT_COMPARISONS[comparison]
    holds = reduce(operator.or_, [_TESTS[sign](a, b) for sign in signs])
    return truth(holds if result else holds ^ True)


def _comparison(i: Instruction, kind: str, extra: int) -> tuple[list[Micro], str]:
    """Returns the tests of setp or set (two for a packed type), each into a `Temporary`, and "and", "or" or "xor" if a
    predicate is combined with them.

    extra: the number of types at the end.
    """
    words = list(i.modifiers[1:-extra])
    combine = words.pop(0) if words and words[0] in ("and", "or", "xor") else ""
    ftz = words == ["ftz"]
    if (words and not ftz) or (ftz and kind not in ("f32", "f16", "f16x2")) or len(i.operands) != 3 + bool(combine):
        raise Unsupported
    a, b = i.operands[1:3]
    if kind not in ("f16x2", "bf16x2"):
        return _test(i.modifiers[0], kind, a, b, ftz, Temporary()), combine
    tests = []
    for half, (name, constant) in enumerate((("and.32", 0xFFFF), ("shr.32", 16))):
        x, y = Temporary(number=2), Temporary(number=3)
        tests += [micro(name, to, kind, of, constant) for to, of in ((x, a), (y, b))]
        tests += _test(i.modifiers[0], kind[:-2], x, y, ftz, Temporary(number=half))
    return tests, combine


@instruction("setp", operands=range(3, 5))
def _setp(i: Instruction, w: Translator) -> Assign:
    """Emits setp. The second predicate is the upper half's for a packed type, and else the opposite of the first."""
    kind = kind_of(i)
    tests, combine = _comparison(i, kind, 1)
    packed, to, other = kind.endswith("x2"), i.operands[0], i.operands[3:]
    if not isinstance(to, Dual) and not combine and not packed:
        return Assign(*tests[:-1], replace(tests[-1], destination=to))
    if isinstance(to, Dual) and not packed:
        tests.append(micro("not.pred", Temporary(number=1), "pred", Temporary()))
    elif packed and not isinstance(to, Dual):
        raise Unsupported
    both = (to.first, to.second) if isinstance(to, Dual) else (to,)
    name = f"{combine or 'mov'}.32"
    results = [micro(name, d, "pred", Temporary(number=n), *other) for n, d in enumerate(both)]
    return Assign(*tests, *apart([m for m in results if not isinstance(m.destination, Sink)]))


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
    tests, combine = _comparison(i, kind, 2)
    packed, found = kind.endswith("x2"), tests
    if packed and to != kind:
        raise Unsupported
    halves = [Temporary(number=n) for n in range(1 + packed)]
    for half in halves:
        found += [micro(f"{combine}.32", half, "pred", half, *i.operands[3:])] if combine else []
        place = half if packed else i.operands[0]
        found.append(Micro("selp.32", place, (*((Immediate(v), "b32") for v in (_ONES[to], 0)), (half, "pred"))))
    if packed:
        low, high = halves
        found.append(micro("join.halves", i.operands[0], "b32", low, high))
    return Assign(*found)


def choose_by_sign(a: Value, b: Value, c: Value, kind: str, bits: int) -> Value:
    """Computes ``slct``: a if c is not negative, else b. A NaN gives b; -0 is not negative (PTX ISA 9.7.6.4)."""
    positive = np.asarray(c) >> 31 == 0 if kind == "s32" else np.asarray(values.to_float(c, 32) >= 0)
    return values.select(positive if positive.ndim else bool(positive), a, b, bits)


@instruction("slct", operands=4)
def _slct(i: Instruction, w: Translator) -> Assign:
    kinds = [f"{t}{n}" for t in "bus" for n in (16, 32, 64)] + ["f32", "f64"]
    only_form(i, *(f"{k}.{by}" for k in kinds for by in ("s32", "f32", "ftz.f32")), *(f"ftz.{k}.f32" for k in kinds))
    kind, by = next(m for m in i.modifiers if m != "ftz"), i.modifiers[-1]
    return Assign(computed(i, choose_by_sign, (kind, kind, by), by, bits_of(kind)))


def _test(
    comparison: str, kind: str, a: Operand | Temporary, b: Operand | Temporary, ftz: bool, to: Temporary
) -> list[Micro]:
    """Returns the test of two numbers."""
    if kind in ("f32", "f64", "f16", "bf16"):
        if comparison not in FLOAT_COMPARISONS:
            raise Unsupported
        if kind in ("f32", "f64") and not ftz:
            return [micro(f"setp.{comparison}.{kind}", to, kind, a, b)]
        return [calculated(compare_floats, to, ((a, kind), (b, kind)), before=(comparison, kind, ftz))]
    if not is_integer(kind) or comparison not in _INTEGER:
        raise Unsupported
    comparison, is_signed = _INTEGER[comparison]
    if not is_signed or comparison in ("eq", "ne") or kind[0] != "s":
        return [micro(f"setp.{comparison}.u{row_bits(kind)}", to, kind, a, b)]
    if bits_of(kind) >= 32:
        return [micro(f"setp.{comparison}.{kind}", to, kind, a, b)]
    x, y = Temporary(number=4), Temporary(number=5)
    flipped = [micro("xor.32", half, kind, of, 1 << bits_of(kind) - 1) for half, of in ((x, a), (y, b))]
    return [*flipped, micro(f"setp.{comparison}.u32", to, kind, x, y)]


@instruction("selp", operands=4)
def _selp(i: Instruction, w: Translator) -> Assign:
    kind = kind_of(i)
    only(i)
    return Assign(micro_of(i, f"selp.{row_bits(kind)}", kind, kind, "pred"))
