"""Checks the types of an instruction's operands, as ptxas does (PTX ISA 9.2 and 9.4).

The checks cover instructions whose operand types follow from their modifiers: arithmetic, logic, comparison, moves,
conversions, loads and stores, atomics, and exchanges between the lanes of a warp. Other instructions are not checked.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from emugpu.emulator.ptx.ast import (
    TYPE_BYTES,
    Dual,
    Immediate,
    Instruction,
    MemoryOperand,
    Negated,
    Operand,
    Register,
    Special,
    Vector,
)

_INTEGERS = ("u16", "s16", "u32", "s32", "u64", "s64")
_WORDS = ("u32", "s32", "u64", "s64")
_BITS = ("b16", "b32", "b64")
_HALVES = ("f16", "f16x2", "bf16", "bf16x2")
_FLOATS = ("f32", "f64")
_BYTES = ("u8", "s8")
_CONVERTED = (*_BYTES, *_INTEGERS, *_FLOATS, "f16", "bf16")
"""The types of conversions of one number. Conversions of two numbers, and of smaller types, are not checked here."""
_BYTES_OF_FOUR = ("u8x4", "s8x4")
_PACKED = ("u16x2", "s16x2", *_BYTES_OF_FOUR)
_MEMORY = ("b8", *_BYTES, *_BITS, *_INTEGERS, *_FLOATS, "b128")
"""The types of loads and stores."""
_ATOMIC = (*_BITS, "b128", *_WORDS, *_FLOATS, *_HALVES)
_SUMS = (*_INTEGERS, *_FLOATS, *_HALVES, "f32x2")


class _Signature(NamedTuple):
    """The types that an instruction may have, and the type of each operand.

    In the operands, T is the instruction's type, W the type of twice its size, ``-`` any type, and any other word that
    type itself.
    """

    types: tuple[str, ...]
    operands: tuple[str, ...]


def _signatures() -> Iterator[tuple[str, _Signature]]:
    table: tuple[tuple[str, tuple[str, ...], str], ...] = (
        ("add", (*_SUMS, *_PACKED), "T T T"),
        ("sub", (*_SUMS, *_BYTES_OF_FOUR), "T T T"),
        ("mul", (*_INTEGERS, *_FLOATS, *_HALVES, "f32x2"), "T T T"),
        ("mul.wide", _INTEGERS[:4], "W T T"),
        ("mad", (*_INTEGERS, *_FLOATS), "T T T T"),
        ("clmad", ("u64",), "T T T T"),
        ("mad.wide", _INTEGERS[:4], "W T T W"),
        ("mul24", ("u32", "s32"), "T T T"),
        ("mad24", ("u32", "s32"), "T T T T"),
        ("addc subc", _WORDS, "T T T -"),
        ("madc", _WORDS, "T T T T -"),
        ("sad", _INTEGERS, "T T T T"),
        ("fma", (*_FLOATS, *_HALVES, "f32x2"), "T T T T"),
        ("div", (*_INTEGERS, *_FLOATS), "T T T"),
        ("rem", _INTEGERS, "T T T"),
        ("abs", ("s16", "s32", "s64", *_FLOATS, *_HALVES), "T T"),
        ("neg", ("s16", "s32", "s64", "s8x4", *_FLOATS, *_HALVES), "T T"),
        ("min max", (*_INTEGERS, *_PACKED, *_FLOATS, *_HALVES), "T T T T"),
        ("popc clz", ("b32", "b64"), "u32 T"),
        ("bfind", _WORDS, "u32 T"),
        ("brev", ("b32", "b64"), "T T"),
        ("bfe", _WORDS, "T T u32 u32"),
        ("bfi", ("b32", "b64"), "T T T u32 u32"),
        ("bmsk", ("b32",), "T T T"),
        ("szext", ("u32", "s32"), "T T u32"),
        ("and or xor", ("pred", *_BITS), "T T T"),
        ("not", ("pred", *_BITS), "T T"),
        ("cnot", _BITS, "T T"),
        ("lop3", ("b32",), "T T T T - -"),
        ("shl", _BITS, "T T u32"),
        ("shr", (*_BITS, *_INTEGERS), "T T u32"),
        ("shf", ("b32",), "T T T u32"),
        ("prmt", ("b32",), "T T T T"),
        ("rcp sqrt rsqrt", _FLOATS, "T T"),
        ("sin cos lg2", ("f32",), "T T"),
        ("ex2 tanh", ("f32", *_HALVES), "T T"),
        ("copysign", _FLOATS, "T T T"),
        ("testp", _FLOATS, "pred T"),
        ("setp", (*_BITS, *_INTEGERS, *_FLOATS, *_HALVES), "pred T T pred"),
        ("selp", (*_BITS, *_INTEGERS, *_FLOATS), "T T T pred"),
        ("mov", ("pred", *_BITS, *_INTEGERS, *_FLOATS, "b128"), "T T"),
        ("cvta", ("u32", "u64"), "T T"),
        ("shfl", ("b32",), "T T u32 u32 u32"),
        ("fns", ("b32",), "T T T s32"),
        ("redux", ("b32", "u32", "s32", "f32"), "T T u32"),
        ("match", ("b32", "b64"), "b32 T u32"),
        ("activemask", ("b32",), "T"),
        ("atom", _ATOMIC, "T - T T"),
        ("red", _ATOMIC, "- T"),
    )
    for names, types, operands in table:
        for name in names.split():
            yield name, _Signature(types, tuple(operands.split()))


_SIGNATURES = dict(_signatures())
_TWO_TYPES = {"set": "1 2 2 pred", "slct": "1 1 1 2", "dp4a": "b32 b32 b32 b32", "dp2a": "b32 b32 b32 b32"}
"""The operands of instructions with two types: the first one, the second one, or that type itself."""
_MIXED = {"add": "f32 T f32", "sub": "f32 T f32", "fma": "f32 T T f32"}
"""Sums of f32 whose factors, or first term, have 16 bits: ``add.f32.bf16``."""


def type_problem(i: Instruction) -> str:
    """Returns what is wrong with the types of an instruction and its operands, in a few words, or ""."""
    if i.opcode in ("ld", "st", "cvt"):
        return _relaxed_problem(i)
    if i.opcode in _TWO_TYPES:
        return _two_types_problem(i)
    signature = _signature(i.opcode, i.modifiers)
    if signature is None or (i.opcode == "red" and "async" in i.modifiers):
        return ""
    kind = next((m for m in reversed(i.modifiers) if _is_type(m)), "")
    if kind not in signature.types or _types_in(i.modifiers) > 1 + _is_mixed(i.opcode, i.modifiers):
        possible = ", ".join(f".{t}" for t in signature.types)
        return f"{i.opcode} does not have {_type_text(i.modifiers)}; it has {possible}"
    meanings = {"T": kind, "W": _twice(kind), "-": ""}
    return _first_problem(i, [meanings.get(wanted, wanted) for wanted in signature.operands])


def _two_types_problem(i: Instruction) -> str:
    kinds = [m for m in i.modifiers if _is_type(m)]
    if len(kinds) != 2:
        return f"{i.opcode} wants two types, and has {_type_text(i.modifiers)}"
    meanings = {"1": kinds[0], "2": kinds[1]}
    return _first_problem(i, [meanings.get(wanted, wanted) for wanted in _TWO_TYPES[i.opcode].split()])


def _first_problem(i: Instruction, kinds: list[str]) -> str:
    """Returns what is wrong with the first operand that does not have its type. An empty type allows any."""
    for operand, kind in zip(i.operands, kinds, strict=False):
        parts = operand.elements if isinstance(operand, Vector) and i.opcode in ("atom", "red") else (operand,)
        for part in parts if kind else ():
            problem = _problem(part, kind, False)
            if problem:
                return problem
    return ""


@cache
def _signature(opcode: str, modifiers: tuple[str, ...]) -> _Signature | None:
    if opcode in ("mul", "mad") and "wide" in modifiers:
        return _SIGNATURES[f"{opcode}.wide"]
    if _is_mixed(opcode, modifiers):
        return _Signature(("f16", "bf16"), tuple(_MIXED[opcode].split()))
    return _SIGNATURES.get(opcode)


def _is_mixed(opcode: str, modifiers: tuple[str, ...]) -> bool:
    return opcode in _MIXED and modifiers[-2:-1] == ("f32",) and modifiers[-1] in ("f16", "bf16")


def _types_in(modifiers: tuple[str, ...]) -> int:
    return sum(map(_is_type, modifiers))


def _is_type(modifier: str) -> bool:
    return modifier in TYPE_BYTES or modifier == "pred"


def _type_text(modifiers: tuple[str, ...]) -> str:
    named = [f".{m}" for m in modifiers if _is_type(m)]
    return f"the type {''.join(named)}" if named else "a form without a type"


def _twice(kind: str) -> str:
    return {"u16": "u32", "s16": "s32", "u32": "u64", "s32": "s64"}.get(kind, kind)


def _relaxed_problem(i: Instruction) -> str:
    """Checks loads, stores and conversions, whose registers may be wider than the instruction's type."""
    kinds = [m for m in i.modifiers if _is_type(m)]
    allowed: tuple[str, ...] = _CONVERTED
    if i.opcode != "cvt":
        allowed, kinds = _MEMORY, kinds[-1:]
    elif len(kinds) != 2 or len(i.operands) != 2 or "pack" in i.modifiers:
        return ""
    for operand, kind in zip(i.operands[i.opcode == "st" :], kinds, strict=False):
        if kind not in allowed:
            return f"{i.opcode} does not have the type .{kind}"
        problem = _problem(operand, kind, "bf16" not in kinds)
        if problem:
            return problem
    return ""


def _problem(operand: Operand, kind: str, relaxed: bool) -> str:
    """Returns why an operand does not have a type, or ""."""
    if isinstance(operand, Dual):
        return _problem(operand.first, kind, relaxed)
    if isinstance(operand, Register | Negated):
        register = operand if isinstance(operand, Register) else operand.register
        if not _agree(register.type, kind, relaxed):
            return f"register {register.name} is a .{register.type}, where a .{kind} is wanted"
    elif isinstance(operand, Special):
        if not _special_agrees(operand.name, kind, relaxed):
            return f"{operand.name} cannot stand where a .{kind} is wanted"
    elif isinstance(operand, Immediate):
        if operand.float_bits and not _literal_agrees(operand, kind):
            return f"a floating-point number stands where a .{kind} is wanted"
        if not operand.float_bits and (_is_float(kind) or kind in _PACKED):
            return f"an integer stands where a .{kind} is wanted"
    elif isinstance(operand, Vector):
        return _vector_problem(operand, kind, relaxed)
    elif isinstance(operand, MemoryOperand):
        return f"an address in brackets stands where a .{kind} is wanted"
    return ""


def _vector_problem(vector: Vector, kind: str, relaxed: bool) -> str:
    """Checks a vector: each element of a load or store has the type; the elements of a move divide it among them."""
    if relaxed or not vector.elements:
        return next(filter(None, (_problem(element, kind, True) for element in vector.elements)), "")
    for element in vector.elements:
        if isinstance(element, Register) and TYPE_BYTES.get(element.type, 0) * len(vector.elements) != TYPE_BYTES[kind]:
            return f"register {element.name} is a .{element.type}, of which {len(vector.elements)} are no .{kind}"
    return ""


def _is_float(kind: str) -> bool:
    return kind.lstrip("b").startswith("f")


def _is_bits(kind: str) -> bool:
    return kind[0] == "b" and kind[1:].isdigit()


def _literal_agrees(literal: Immediate, kind: str) -> bool:
    """Returns whether a literal fits a type. Bit types take literals of their own width."""
    return kind in _FLOATS or (_is_bits(kind) and 8 * TYPE_BYTES[kind] == literal.float_bits)


def _special_agrees(name: str, kind: str, relaxed: bool) -> bool:
    """Returns whether a special register fits a type.

    Special registers have 32 or 64 bits. Some once had 16, and may still be read as such (PTX ISA 10).
    """
    if name == "%is_explicit_cluster":
        return kind == "pred"
    if kind in ("pred", "b128") or _is_float(kind):
        return False
    sizes: tuple[int, ...] = (4,)
    if name == "%gridid":
        sizes = (2, 4, 8)
    elif name.endswith("64") or name in ("%globaltimer", "%current_graph_exec"):
        sizes = (8,)
    elif name.partition(".")[0] in ("%tid", "%ntid", "%ctaid", "%nctaid"):
        sizes = (2, 4)
    return TYPE_BYTES[kind] in sizes or (relaxed and TYPE_BYTES[kind] < sizes[-1])


@cache
def _agree(held: str, kind: str, relaxed: bool) -> bool:
    """Returns whether a register of one type may be used as another one (PTX ISA 9.2, tables 27 to 29)."""
    if "pred" in (held, kind):
        return held == kind
    have, want = TYPE_BYTES[held], TYPE_BYTES[kind]
    if have < want or (have > want and not relaxed):
        return False
    if held == kind or _is_bits(held) or _is_bits(kind):
        return True
    return not _is_float(kind) and (held == "f16x2" or not (_is_float(held) or kind in _PACKED))
