"""Arithmetic, logic, comparison, selection, conversion and moves, as Python expressions.

Each emitter takes an instruction and a ``Writer`` and returns the assignments it makes: ``[(destination,
expression)]``. Expressions work on scalars and on 32-lane arrays alike. Unknown modifiers raise Unsupported. Source
of the semantics: PTX ISA 9.1, sections 9.7.1 to 9.7.9.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ..ptx.ast import TYPE_BYTES, Dual, Instruction, Label, Operand, Register, Sink, Symbol, Vector

if TYPE_CHECKING:
    from .writer import Writer

Assignments = list[tuple[Operand, str]]
Emitter = Callable[[Instruction, "Writer"], Assignments]


class Unsupported(Exception):
    """The instruction, or one of its modifiers, is not implemented."""


EMITTERS: dict[str, Emitter] = {}


def emits(*opcodes: str) -> Callable[[Emitter], Emitter]:
    def register(emitter: Emitter) -> Emitter:
        for opcode in opcodes:
            EMITTERS[opcode] = emitter
        return emitter

    return register


def _only(instruction: Instruction, *allowed: str) -> None:
    for modifier in instruction.modifiers:
        if modifier not in allowed and modifier not in TYPE_BYTES and modifier != "pred":
            raise Unsupported


def _bits(kind: str) -> int:
    return 8 * TYPE_BYTES[kind]


def _integer(kind: str) -> bool:
    return kind[0] in "sub" and kind not in ("bf16", "bf16x2")


def _two(instruction: Instruction, w: Writer, kind: str) -> tuple[str, str]:
    return w.read(instruction.operands[1], kind), w.read(instruction.operands[2], kind)


_FLOAT_OPERATIONS = {"add": "np.add", "sub": "np.subtract", "mul": "np.multiply"}
_FLOAT_MODIFIERS = ("rn",)


@emits("add", "sub")
def _add(i: Instruction, w: Writer) -> Assignments:
    kind = i.modifiers[-1]
    if kind in ("f32", "f64"):
        _only(i, *_FLOAT_MODIFIERS)
        a, b = _two(i, w, kind)
        return [(i.operands[0], f"float_binary({_FLOAT_OPERATIONS[i.opcode]}, {a}, {b}, {_bits(kind)})")]
    if not _integer(kind):
        raise Unsupported
    _only(i)
    a, b = _two(i, w, kind)
    return [(i.operands[0], f"({a} {'+' if i.opcode == 'add' else '-'} {b}) & {w.mask(kind)}")]


@emits("mul")
def _mul(i: Instruction, w: Writer) -> Assignments:
    kind = i.modifiers[-1]
    if kind in ("f32", "f64"):
        _only(i, *_FLOAT_MODIFIERS)
        a, b = _two(i, w, kind)
        return [(i.operands[0], f"float_binary(np.multiply, {a}, {b}, {_bits(kind)})")]
    return [(i.operands[0], _product(i, w, kind))]


def _product(i: Instruction, w: Writer, kind: str) -> str:
    if not _integer(kind):
        raise Unsupported
    _only(i, "lo", "hi", "wide")
    a, b = _two(i, w, kind)
    if i.has("wide"):
        return f"multiply_wide({a}, {b}, {_bits(kind)}, {kind[0] == 's'})"
    if i.has("hi"):
        return f"multiply_high({a}, {b}, {_bits(kind)}, {kind[0] == 's'})"
    return f"({a} * {b}) & {w.mask(kind)}"


@emits("mad", "fma")
def _mad(i: Instruction, w: Writer) -> Assignments:
    kind = i.modifiers[-1]
    if kind == "f32":
        _only(i, "rn")
        a, b = _two(i, w, kind)
        return [(i.operands[0], f"fused_multiply_add({a}, {b}, {w.read(i.operands[3], kind)})")]
    product = _product(i, w, kind)
    wide = f"u{2 * _bits(kind)}" if i.has("wide") else kind
    return [(i.operands[0], f"(({product}) + {w.read(i.operands[3], wide)}) & {w.mask(wide)}")]


@emits("div", "rem")
def _div(i: Instruction, w: Writer) -> Assignments:
    kind = i.modifiers[-1]
    if kind in ("f32", "f64") and i.opcode == "div":
        _only(i, "rn")
        a, b = _two(i, w, kind)
        return [(i.operands[0], f"float_binary(np.divide, {a}, {b}, {_bits(kind)})")]
    if not _integer(kind):
        raise Unsupported
    _only(i)
    a, b = _two(i, w, kind)
    return [(i.operands[0], f"divide({a}, {b}, {_bits(kind)}, {kind[0] == 's'}, {i.opcode == 'rem'})")]


@emits("min", "max")
def _minmax(i: Instruction, w: Writer) -> Assignments:
    kind = i.modifiers[-1]
    name = "minimum" if i.opcode == "min" else "maximum"
    _only(i)
    a, b = _two(i, w, kind)
    if kind == "f32":
        return [(i.operands[0], f"float_binary(np.f{i.opcode}, {a}, {b}, 32)")]
    if not _integer(kind):
        raise Unsupported
    high = 1 << (_bits(kind) - 1) if kind[0] == "s" else 0
    return [(i.operands[0], f"{name}({a}, {b}, {high})")]


@emits("neg", "abs")
def _neg(i: Instruction, w: Writer) -> Assignments:
    kind = i.modifiers[-1]
    a = w.read(i.operands[1], kind)
    _only(i)
    if kind in ("f32", "f64"):
        high = 1 << (_bits(kind) - 1)
        return [(i.operands[0], f"{a} ^ {high}" if i.opcode == "neg" else f"{a} & {high - 1}")]
    if not _integer(kind):
        raise Unsupported
    if i.opcode == "neg":
        return [(i.operands[0], f"(0 - {a}) & {w.mask(kind)}")]
    # Of a value and its negative, the one with the smaller bit pattern is not negative.
    return [(i.operands[0], f"minimum({a}, (0 - {a}) & {w.mask(kind)}, 0)")]


@emits("and", "or", "xor")
def _logic(i: Instruction, w: Writer) -> Assignments:
    _only(i)
    a, b = _two(i, w, i.modifiers[-1])
    return [(i.operands[0], f"{a} {dict(zip(('and', 'or', 'xor'), '&|^', strict=True))[i.opcode]} {b}")]


@emits("not")
def _not(i: Instruction, w: Writer) -> Assignments:
    kind = i.modifiers[-1]
    _only(i)
    return [(i.operands[0], f"{w.read(i.operands[1], kind)} ^ {'True' if kind == 'pred' else w.mask(kind)}")]


@emits("shl", "shr")
def _shift(i: Instruction, w: Writer) -> Assignments:
    kind = i.modifiers[-1]
    _only(i)
    value, amount = w.read(i.operands[1], kind), w.read(i.operands[2], "u32")
    bits = _bits(kind)
    if i.opcode == "shr" and kind[0] == "s":
        return [(i.operands[0], f"shift_right_signed({value}, {amount}, {bits})")]
    if amount.isdigit() and int(amount) < bits:
        return [
            (i.operands[0], f"({value} << {amount}) & {w.mask(kind)}" if i.opcode == "shl" else f"{value} >> {amount}")
        ]
    return [(i.operands[0], f"{'shift_left' if i.opcode == 'shl' else 'shift_right'}({value}, {amount}, {bits})")]


@emits("shf")
def _funnel(i: Instruction, w: Writer) -> Assignments:
    _only(i, "l", "r", "clamp", "wrap")
    low, high = _two(i, w, "b32")
    amount = w.read(i.operands[3], "u32")
    return [(i.operands[0], f"funnel_shift({low}, {high}, {amount}, {i.has('l')}, {i.has('wrap')})")]


@emits("lop3")
def _lop3(i: Instruction, w: Writer) -> Assignments:
    _only(i)
    a, b = _two(i, w, "b32")
    return [(i.operands[0], f"lop3({a}, {b}, {w.read(i.operands[3], 'b32')}, {w.read(i.operands[4], 'b32')})")]


@emits("prmt")
def _prmt(i: Instruction, w: Writer) -> Assignments:
    _only(i)
    a, b = _two(i, w, "b32")
    return [(i.operands[0], f"prmt({a}, {b}, {w.read(i.operands[3], 'b32')})")]


@emits("bfe")
def _bfe(i: Instruction, w: Writer) -> Assignments:
    kind = i.modifiers[-1]
    _only(i)
    value = w.read(i.operands[1], kind)
    position, length = w.read(i.operands[2], "u32"), w.read(i.operands[3], "u32")
    return [(i.operands[0], f"bit_field_extract({value}, {position}, {length}, {_bits(kind)}, {kind[0] == 's'})")]


@emits("bfi")
def _bfi(i: Instruction, w: Writer) -> Assignments:
    kind = i.modifiers[-1]
    _only(i)
    a, b = _two(i, w, kind)
    position, length = w.read(i.operands[3], "u32"), w.read(i.operands[4], "u32")
    return [(i.operands[0], f"bit_field_insert({a}, {b}, {position}, {length}, {_bits(kind)})")]


@emits("popc", "clz", "brev")
def _count(i: Instruction, w: Writer) -> Assignments:
    kind = i.modifiers[-1]
    _only(i)
    value = w.read(i.operands[1], kind)
    call = {"popc": f"popcount({value})", "clz": f"count_leading_zeros({value}, {_bits(kind)})"}
    return [(i.operands[0], call.get(i.opcode, f"bit_reverse({value}, {_bits(kind)})"))]


# ---- comparison and selection ----

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


@emits("setp")
def _setp(i: Instruction, w: Writer) -> Assignments:
    comparison, kind = i.modifiers[0], i.modifiers[-1]
    _only(i, *_FLOAT_COMPARE, *_UNSIGNED, *_COMBINE)
    a, b = _two(i, w, kind)
    if kind in ("f32", "f64", "f16", "bf16"):
        if comparison not in _FLOAT_COMPARE:
            raise Unsupported
        # NumPy's scalar comparison gives np.bool_; predicates are Python bools.
        if kind in ("f16", "bf16"):
            a, b = f"half_to_float({a}, '{kind}')", f"half_to_float({b}, '{kind}')"
        bits = max(32, _bits(kind))
        a, b = f"to_float({a}, {bits})", f"to_float({b}, {bits})"
        test = f"truth({_FLOAT_COMPARE[comparison].format(a=a, b=b)})"
    elif not _integer(kind):
        raise Unsupported
    elif comparison in _UNSIGNED:
        test = f"({a} {_UNSIGNED[comparison]} {b})"
    elif comparison in ("eq", "ne") or kind[0] != "s":
        test = f"({a} {_COMPARE[comparison]} {b})"
    else:
        high = 1 << (_bits(kind) - 1)
        test = f"(({a} ^ {high}) {_COMPARE[comparison]} ({b} ^ {high}))"
    combine = next((_COMBINE[m] for m in i.modifiers[1:-1] if m in _COMBINE), None)
    other = w.read(i.operands[3], "pred") if combine else None
    destination = i.operands[0]
    if isinstance(destination, Dual):
        inverse = f"({test} ^ True)"
        pair = [(destination.first, test), (destination.second, inverse)]
    else:
        pair = [(destination, test)]
    return [(d, f"{t} {combine} {other}" if combine else t) for d, t in pair if not isinstance(d, Sink)]


@emits("selp")
def _selp(i: Instruction, w: Writer) -> Assignments:
    kind = i.modifiers[-1]
    _only(i)
    a, b = _two(i, w, kind)
    p = w.read(i.operands[3], "pred")
    bits = _bits(kind)
    if a.isdigit() and b.isdigit():
        # Two constants: make an array only where the predicate is one, of the register's width.
        return [(i.operands[0], f"select_constant({p}, {a}, {b}, {bits})")]
    return [(i.operands[0], f"({a} if {p} is True else {b} if {p} is False else select({p}, {a}, {b}, {bits}))")]


# ---- moves and conversions ----


@emits("mov")
def _mov(i: Instruction, w: Writer) -> Assignments:
    kind = i.modifiers[-1]
    _only(i)
    destination, source = i.operands
    if isinstance(destination, Vector):
        value = w.read(source, kind)
        bits = _bits(kind) // len(destination.elements)
        return [
            (d, f"narrow({value} >> {n * bits}, {bits})")
            for n, d in enumerate(destination.elements)
            if not isinstance(d, Sink)
        ]
    if isinstance(source, Vector):
        bits = _bits(kind) // len(source.elements)
        parts = [f"widen({w.read(s, f'b{bits}')}) << {n * bits}" for n, s in enumerate(source.elements)]
        return [(destination, f"narrow({' | '.join(f'({p})' for p in parts)}, {_bits(kind)})")]
    if kind == "pred":
        return [(destination, w.read(source, kind))]
    if isinstance(source, Symbol | Label):
        return [(destination, w.address(source))]
    return [(destination, w.read(source, kind))]


@emits("cvta")
def _cvta(i: Instruction, w: Writer) -> Assignments:
    _only(i, "to", "global", "shared", "shared::cta", "shared::cluster", "param", "const")
    value = w.read(i.operands[1], "u64")
    if isinstance(i.operands[1], Symbol | Label):
        value = w.address(i.operands[1])
    window = {"param": "PARAM_WINDOW", "global": None, "const": None}.get(i.modifiers[-2], "SHARED_WINDOW")
    if window is None:
        return [(i.operands[0], value)]
    return [(i.operands[0], f"{value} {'-' if i.has('to') else '+'} {window}")]


@emits("cvt")
def _cvt(i: Instruction, w: Writer) -> Assignments:
    to, source = i.modifiers[-2], i.modifiers[-1]
    rounding = [m for m in i.modifiers[:-2]]
    destination = i.operands[0]
    value = w.read(i.operands[1], source)
    if to in ("bf16x2", "f16x2") and source == "f32" and rounding == ["rn"]:
        return [(destination, f"pack_{to}({value}, {w.read(i.operands[2], source)})")]
    if to in ("bf16", "f16") and source == "f32" and rounding == ["rn"]:
        return [(destination, f"round_to_half({value}, '{to}')")]
    if source in ("bf16", "f16") and to == "f32" and not rounding:
        return [(destination, f"half_to_float({value}, '{source}')")]
    if _integer(to) and _integer(source) and not rounding:
        return [(destination, _resize(value, source, to, destination))]
    if _integer(source) and to in ("f32", "f64") and rounding == ["rn"]:
        return [(destination, f"integer_to_float({value}, {_bits(source)}, {source[0] == 's'}, {_bits(to)})")]
    if _integer(source) and _bits(source) <= 32 and to in ("bf16", "f16") and rounding == ["rn"]:
        return [(destination, f"integer_to_half({value}, {_bits(source)}, {source[0] == 's'}, '{to}')")]
    if source in ("f32", "f64") and _integer(to) and len(rounding) == 1 and rounding[0] in ("rzi", "rni", "rmi", "rpi"):
        arguments = f"{value}, {_bits(source)}, {_bits(to)}, {to[0] == 's'}, '{rounding[0]}'"
        return [(destination, f"float_to_integer({arguments})")]
    raise Unsupported


def _resize(value: str, source: str, to: str, destination: Operand) -> str:
    """Integer to integer: the value is kept, or truncated, then extended to the register's width."""
    source_bits, bits = _bits(source), _bits(to)
    register_bits = _bits(destination.type) if isinstance(destination, Register) else bits
    if bits < source_bits:
        value, source_bits = f"narrow({value}, {bits})", bits
        source = to
    if source[0] == "s" and register_bits > source_bits:
        return f"sign_extend({value}, {source_bits}, {register_bits})"
    return f"widen({value})" if register_bits == 64 and source_bits < 64 else value
