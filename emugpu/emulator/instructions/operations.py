"""The micro-operations on single lanes that the native engine has, each declared once: its Python text and its Mojo.

A micro-operation reads up to three values ``a``, ``b`` and ``c``, and yields one. ``python`` is an expression of them
for numbers and for rows of 32 lanes, with the functions below; `emugpu.emulator.translate.expressions` puts it into
generated code. ``mojo`` is the same over vectors of the source types. Predicates are rows of 0 and 1. Loads, stores and
branches are not in this table, because they are control and memory: they are written by hand in `native/interpreter/`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from emugpu.emulator.instructions import compare, convert, floats, integer, values
from emugpu.emulator.instructions.compare import FLOAT_COMPARISONS
from emugpu.emulator.instructions.convert import INTEGRAL
from emugpu.emulator.instructions.values import M32, M64

FUNCTIONS: dict[str, Callable[..., Any]] = {
    name: thing
    for module in (values, integer, floats, compare, convert)
    for name, thing in vars(module).items()
    if inspect.isfunction(thing)
}
"""The functions that the Python texts call."""
MOJO_TYPES = {
    "u32": "DType.uint32", "s32": "DType.int32", "u64": "DType.uint64", "s64": "DType.int64", "f32": "DType.float32",
    "f64": "DType.float64", "pred": "DType.uint32",
}  # fmt: skip


@dataclass(frozen=True)
class MicroOperation:
    """One micro-operation. ``result`` and ``sources`` are the types as which Mojo reads its rows. ``imm`` in the texts
    stands for `Micro.imm`.
    """

    name: str
    result: str
    sources: tuple[str, ...]
    python: str
    mojo: str
    with_literal: str = ""
    """The Python text if ``b`` is a literal, where that is simpler."""
    chooses: bool = False
    """Whether the third source chooses one of the first two, which decides whether all lanes are equal."""
    nearly: bool = False
    """Whether the expression is a float64 that may be off by a few units and is rounded to f32. If that error could
    change the result, the run is rolled back.
    """

    def lane(self, *numbers: int, imm: int = 0) -> int:
        """Returns what the Python text makes of the bit patterns of one lane."""
        held = {
            name: bool(number) if kind == "pred" else number
            for name, number, kind in zip("abc", numbers, self.sources, strict=False)
        }
        with np.errstate(all="ignore"):
            return int(eval(self.python, {**FUNCTIONS, "np": np}, {**held, "imm": imm}))  # our own text

    @property
    def spreads(self) -> bool:
        """Returns whether a lane of the result is undefined, with all its bits, exactly if a lane of a source is."""
        return self.name.split(".")[0] in _SPREADING and not self.name.endswith("x2")


_SPREADING = frozenset((
    "mov", "add", "sub", "mul", "mad", "min", "max", "setp", "fma", "div", "rem", "dp4a", "rcp", "sqrt", "rsqrt",
    "ex2", "lg2",
))  # fmt: skip


def _operations() -> list[MicroOperation]:
    found: list[MicroOperation] = []

    def add(name: str, result: str, sources: str, python: str, mojo: str, **more: Any) -> None:
        found.append(MicroOperation(name, result, tuple(sources.split()), python, mojo, **more))

    for bits, mask in ((32, M32), (64, M64)):
        u, s = f"u{bits}", f"s{bits}"
        high, vector = 1 << bits - 1, f"SIMD[{MOJO_TYPES[u]}, 32]"
        add(f"mov.{bits}", u, u, "a", "a")
        for name, sign in (("add", "+"), ("sub", "-"), ("mul", "*")):
            add(f"{name}.{bits}", u, f"{u} {u}", f"(a {sign} b) & {mask}", f"a {sign} b")
        add(f"mad.{bits}", u, f"{u} {u} {u}", f"(((a * b) & {mask}) + c) & {mask}", "a * b + c")
        for name, sign in (("and", "&"), ("or", "|"), ("xor", "^")):
            add(f"{name}.{bits}", u, f"{u} {u}", f"a {sign} b", f"a {sign} b")
        for name in ("min", "max"):
            add(f"{name}.{u}", u, f"{u} {u}", f"{name}imum(a, b, 0)", f"{name}(a, b)")
            add(f"{name}.{s}", s, f"{s} {s}", f"{name}imum(a, b, {high})", f"{name}(a, b)")
        amount = f"(b & {bits - 1}).cast[{MOJO_TYPES[u]}]()"
        for name, sign, words, literal in (
            ("shl", "<<", "shift_left", f"(a << b) & {mask}"),
            ("shr", ">>", "shift_right", "a >> b"),
        ):
            mojo = f"b.lt({bits}).select(a {sign} {amount}, {vector}(0))"
            add(f"{name}.{bits}", u, f"{u} u32", f"{words}(a, b, {bits})", mojo, with_literal=literal)
        clamped = f"min(b, SIMD[DType.uint32, 32]({bits - 1})).cast[{MOJO_TYPES[s]}]()"
        add(f"shr.{s}", s, f"{s} u32", f"shift_right_signed(a, b, {bits})", f"a >> {clamped}")
        chosen = f"select(c, a, b, {bits})"
        add(f"selp.{bits}", u, f"{u} {u} pred", chosen, "c.ne(0).select(a, b)", chooses=True)
        for name, sign in (("eq", "=="), ("ne", "!="), ("lt", "<"), ("le", "<="), ("gt", ">"), ("ge", ">=")):
            mojo = f"a.{name}(b).cast[DType.uint32]()"
            add(f"setp.{name}.{u}", "pred", f"{u} {u}", f"a {sign} b", mojo)
            if name not in ("eq", "ne"):
                add(f"setp.{name}.{s}", "pred", f"{s} {s}", f"(a ^ {high}) {sign} (b ^ {high})", mojo)
        add(f"popc.{bits}", "u32", u, f"popcount(a, {bits})", "pop_count(a).cast[DType.uint32]()")
        zeros = "count_leading_zeros(a).cast[DType.uint32]()"
        add(f"clz.{bits}", "u32", u, f"count_leading_zeros(a, {bits})", zeros)
        add(f"brev.{bits}", u, u, f"bit_reverse(a, {bits})", "bit_reverse(a)")
        for kind in (u, s):
            for name, function in (("div", "whole_quotient"), ("rem", "whole_remainder")):
                python = f"divide(a, b, {bits}, {kind == s}, {name == 'rem'})"
                add(f"{name}.{kind}", u, f"{u} {u}", python, f"{function}[{kind == s}](a, b)")

    for kind in ("u", "s"):
        wide = f"a.cast[{MOJO_TYPES[f'{kind}64']}]() * b.cast[{MOJO_TYPES[f'{kind}64']}]()"
        python = f"multiply_wide(a, b, 32, {kind == 's'})"
        add(f"mul.wide.{kind}32", f"{kind}64", f"{kind}32 {kind}32", python, wide)
        python = f"({python} + c) & {M64}"
        add(f"mad.wide.{kind}32", f"{kind}64", f"{kind}32 {kind}32 {kind}64", python, f"{wide} + c")
        upper = f"(({wide}) >> 32).cast[{MOJO_TYPES[f'{kind}32']}]()"
        python = f"multiply_high(a, b, 32, {kind == 's'})"
        add(f"mul.hi.{kind}32", f"{kind}32", f"{kind}32 {kind}32", python, upper)
        python = f"({python} + c) & {M32}"
        add(f"mad.hi.{kind}32", f"{kind}32", f"{kind}32 {kind}32 {kind}32", python, f"{upper} + c")
    for bits in (8, 16):
        low = f"a & {(1 << bits) - 1}"
        for to in (32, 64):
            cast = f"a.cast[DType.int{bits}]().cast[DType.int{to}]()"
            add(f"sext{bits}.{to}", f"s{to}", "s32", f"sign_extend({low}, {bits}, {to})", cast)
    add("sext32.64", "s64", "s32", "sign_extend(a, 32, 64)", "a.cast[DType.int64]()")
    add("zext.64", "u64", "u32", "widen(a)", "a.cast[DType.uint64]()")
    add("trunc.32", "u32", "u64", "narrow(a, 32)", "a.cast[DType.uint32]()")
    add("high.32", "u32", "u64", "narrow(a >> 32, 32)", "(a >> 32).cast[DType.uint32]()")
    join = "a.cast[DType.uint64]() | (b.cast[DType.uint64]() << 32)"
    add("join.64", "u64", "u32 u32", "widen(a) | widen(b) << 32", join)
    halves = "narrow(a, 16) | narrow(b, 16) << 16"
    add("join.halves", "u32", "u32 u32", halves, "(a & 65535) | (b << 16)")
    add("not.pred", "pred", "pred", "a ^ True", "a ^ 1")
    for left in (True, False):
        for wraps in (True, False):
            n = "(c & 31)" if wraps else "min(c, SIMD[DType.uint32, 32](32))"
            n64 = f"{n}.cast[DType.uint64]()"
            shifted = f"((({join}) << {n64}) >> 32)" if left else f"(({join}) >> {n64})"
            name = f"shf.{'l' if left else 'r'}.{'wrap' if wraps else 'clamp'}"
            python = f"funnel_shift(a, b, c, {left}, {wraps})"
            add(name, "u32", "u32 u32 u32", python, f"{shifted}.cast[DType.uint32]()")
    field = "bit_field(a, b & 255, c & 255)"
    add("bfe.u32", "u32", "u32 u32 u32", "bit_field_extract(a, b, c, 32, False)", field)
    table = "truth_table(a, b, c, get[DType.uint32](o, 16))"
    add("lop3.b32", "u32", "u32 u32 u32", "lop3(a, b, c, imm)", table)
    add("prmt.b32", "u32", "u32 u32 u32", "prmt(a, b, c)", "permute_bytes(a, b, c)")
    for half in ("bf16", "f16"):
        mojo = f"(to_{half}(a) << 16) | to_{half}(b)"
        add(f"pack.{half}x2", "u32", "u32 u32", f"pack_nearest('{half}', a, b)", mojo)
    add("f32.from.f16", "f32", "u32", "half_to_float(a, 'f16')", "from_f16(a)")
    add("f32.from.bf16", "u32", "u32", "half_to_float(a, 'bf16')", "a << 16")
    for a_signed in (False, True):
        for b_signed in (False, True):
            name = f"dp4a.{'s' if a_signed else 'u'}32.{'s' if b_signed else 'u'}32"
            python = f"dot_product(a, b, c, {a_signed}, {b_signed}, '')"
            add(name, "u32", "u32 u32 u32", python, f"dot_of_bytes[{a_signed}, {b_signed}](a, b, c)")
    for name, (tests, result) in FLOAT_COMPARISONS.items():
        holds = " | ".join(f"a.{_MOJO_SIGNS[sign]}(b)" for sign in tests)
        mojo = f"({'' if result else '~'}({holds})).cast[DType.uint32]()"
        for kind in ("f32", "f64"):
            python = f"compare_floats('{name}', '{kind}', False, a, b)"
            add(f"setp.{name}.{kind}", "pred", f"{kind} {kind}", python, mojo)
    _floats(add)
    _conversions(add)
    return found


def _floats(add: Callable[..., None]) -> None:
    """Adds arithmetic on f32, one or two in a row, on f64, and on f16 and bf16, one or two in a row."""
    for name, sources, mojo in _FLOAT_FUNCTIONS:
        kinds, nearly = " ".join(["f32"] * sources), name in _NEARLY
        add(f"{name}.f32", "f32", kinds, _python(name, "f32", sources), mojo, nearly=nearly)
        flushed = re.sub(r"\b([abc])\b", r"flush(\1)", mojo)
        flushed = flushed if nearly else f"flush({flushed})"
        add(f"{name}.ftz.f32", "f32", kinds, _python(name, "f32", sources, True), flushed, nearly=nearly)
        for form, one in (("", mojo), (".ftz", flushed)) if name in _PACKED else ():
            low, high = (re.sub(r"\b([abc])\b", rf"{half}(\1)", one) for half in ("low_number", "high_number"))
            python = _python(name, "f32x2", sources, bool(form))
            add(f"{name}{form}.f32x2", "u64", kinds.replace("f32", "u64"), python, f"pair({low}, {high})")
    for name, sources, mojo in _WIDE_FUNCTIONS:
        add(f"{name}.f64", "f64", " ".join(["f64"] * sources), _python(name, "f64", sources), mojo)
    for mode in ("rz", "rm", "rp"):
        python = f"float_operation('fma', 'f32', '{mode}', False, False, False, a, b, c)"
        add(f"fma.{mode}.f32", "f32", "f32 f32 f32", python, f'fused_toward["{mode}"](a, b, c)')
    for kind in ("f16", "bf16"):
        for name, sources, text in _HALF_FUNCTIONS:
            mojo, kinds = text.replace("B", str(kind == "bf16")), " ".join(["u32"] * sources)
            upper = re.sub(r"\b([abc])\b", r"(\1 >> 16)", mojo)
            add(f"{name}.{kind}", "u32", kinds, _python(name, kind, sources), mojo)
            add(f"{name}.{kind}x2", "u32", kinds, _python(name, f"{kind}x2", sources), f"{mojo} | ({upper} << 16)")


def _python(name: str, kind: str, sources: int, ftz: bool = False) -> str:
    """Returns the Python text of a function of floats, rounded to nearest."""
    values = ", ".join("abc"[:sources])
    operation, _, nan = name.partition(".")
    if operation in ("min", "max"):
        return f"extremum('{operation}', '{kind}', {ftz}, {bool(nan)}, False, False, {values})"
    if name in _NUMPY and kind in ("f32", "f64") and not ftz:
        return f"float_binary({_NUMPY[name]}, {values}, {kind[1:]})"
    if (name, kind, ftz) == ("fma", "f32", False):
        return f"fused_multiply_add({values})"
    return f"float_operation('{name}', '{kind}', 'rn', {ftz}, False, False, {values})"


def _conversions(add: Callable[..., None]) -> None:
    """Adds conversions between f32, f64 and integers, and rounding to integers."""
    for to, sources in (("f32", ("s32", "u32")), ("f64", ("s32", "u32", "s64", "u64"))):
        for source in sources:
            python = f"integer_to_float('{to}', '{source}', 'rn', False, a)"
            add(f"{to}.from.{source}", to, source, python, f"a.cast[{MOJO_TYPES[to]}]()")
    for to, source in (("f32", "f64"), ("f64", "f32")):
        bits = f"a.cast[{MOJO_TYPES[to]}]().to_bits[DType.uint{to[1:]}]()"
        python = f"float_to_float('{to}', '{source}', 'rn', '', False, False, False, False, a)"
        add(f"{to}.from.{source}", f"u{to[1:]}", source, python, bits)
    for words, mode in INTEGRAL.items():
        whole = f"whole_{mode}(a.cast[DType.float64]())"
        python = f"float_to_float('f32', 'f32', 'rn', '{mode}', False, False, False, False, a)"
        add(f"{words}.f32", "f32", "f32", python, f"{whole}.cast[DType.float32]()")
        for to in ("s32", "u32"):
            for source, of_nan in (("f32", 0), ("f64", 1 << 31)):
                python = f"float_to_integer('{to}', '{source}', 32, '{mode}', False, a)"
                add(f"{to}.from.{source}.{words}", "u32", source, python, f"to_{to}({whole}, {of_nan})")
    python = "float_to_float('f32', 'f32', 'rn', '', False, True, False, False, a)"
    add("sat.f32", "f32", "f32", python, "a.gt(0).select(min(a, Floats(1)), Floats(0))")


_MOJO_SIGNS = {"==": "eq", "<": "lt", "<=": "le", ">": "gt", ">=": "ge"}
_HALF_FUNCTIONS = (
    ("add", 2, "rounded_half[B](odd_sum(wide_half[B](a), wide_half[B](b)))"),
    ("sub", 2, "rounded_half[B](odd_sum(wide_half[B](a), -wide_half[B](b)))"),
    ("mul", 2, "rounded_half[B](wide_half[B](a) * wide_half[B](b))"),
    ("fma", 3, "rounded_half[B](odd_sum(wide_half[B](a) * wide_half[B](b), wide_half[B](c)))"),
    ("min", 2, "half_bits[B](least(of_half[B](a), of_half[B](b)))"),
    ("max", 2, "half_bits[B](greatest(of_half[B](a), of_half[B](b)))"),
    ("min.nan", 2, "half_bits[B](or_nan(least(of_half[B](a), of_half[B](b)), of_half[B](a), of_half[B](b)))"),
    ("max.nan", 2, "half_bits[B](or_nan(greatest(of_half[B](a), of_half[B](b)), of_half[B](a), of_half[B](b)))"),
)
"""Functions of f16 and bf16, one or two in a row; B says whether it is bf16."""
_WIDE_FUNCTIONS = (
    ("add", 2, "with_nan(a + b, a, b)"),
    ("sub", 2, "with_nan(a - b, a, b)"),
    ("mul", 2, "with_nan(a * b, a, b)"),
    ("div", 2, "with_nan(a / b, a, b)"),
    ("fma", 3, "with_nan(a.fma(b, c), a, b, c)"),
    ("rcp", 1, "with_nan(1 / a, a)"),
    ("sqrt", 1, "with_nan(sqrt(a), a)"),
    ("rsqrt", 1, "with_nan(1 / sqrt(a), a)"),
)
"""Functions of f64, rounded to nearest."""
_NUMPY = {"add": "np.add", "sub": "np.subtract", "mul": "np.multiply", "div": "np.divide"}
_NEARLY = ("ex2", "lg2")
_PACKED = ("add", "sub", "mul", "fma")
"""Functions that also exist for two f32 in a row."""
_FLOAT_FUNCTIONS = (
    ("add", 2, "a + b"),
    ("sub", 2, "a - b"),
    ("mul", 2, "a * b"),
    ("fma", 3, "a.fma(b, c)"),
    ("div", 2, "a / b"),
    ("div.approx", 2, "quotient(a, b)"),
    ("rcp", 1, "1 / a"),
    ("sqrt", 1, "root(a)"),
    ("rsqrt", 1, "one_by_root(a)"),
    ("ex2", 1, "power_of_two(a)"),
    ("lg2", 1, "logarithm(a)"),
    ("min", 2, "least(a, b)"),
    ("max", 2, "greatest(a, b)"),
    ("min.nan", 2, "or_nan(least(a, b), a, b)"),
    ("max.nan", 2, "or_nan(greatest(a, b), a, b)"),
)
"""Functions of f32 by name, with their number of sources, as in `float_math`, rounded to nearest."""


OPERATIONS: tuple[MicroOperation, ...] = tuple(_operations())
BY_NAME = {operation.name: operation for operation in OPERATIONS}
NUMBERS = {operation.name: number for number, operation in enumerate(OPERATIONS)}
