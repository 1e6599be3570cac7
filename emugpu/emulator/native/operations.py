"""The micro-operations of the native engine, each declared once: its meaning for one lane, and its Mojo expression.

A micro-operation reads up to three rows of 32 lanes, ``a``, ``b`` and ``c``, and writes one. ``lane`` is its meaning in
exact Python integers: bit patterns in, a bit pattern out; most of it is the Python engine's own function for one lane.
``mojo`` is the expression over vectors of the source types. Predicates are rows of 0 and 1. Loads, stores and branches
are not in this table, because they are control and memory: they are written by hand in `interpreter/`, with the numbers
of `Control`.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum, IntFlag, auto
from typing import Any

import numpy as np

from emugpu.emulator.instructions import convert, integer, values
from emugpu.emulator.instructions.compare import FLOAT_COMPARISONS
from emugpu.emulator.instructions.values import CANONICAL_NAN, M32, M64, signed
from emugpu.emulator.units import float_math
from emugpu.emulator.units.formats import BF16, F16, F32, F64, Format

MOJO_TYPES = {
    "u32": "DType.uint32", "s32": "DType.int32", "u64": "DType.uint64", "s64": "DType.int64", "f32": "DType.float32",
    "f64": "DType.float64", "pred": "DType.uint32",
}  # fmt: skip


@dataclass(frozen=True)
class MicroOperation:
    """One micro-operation. ``result`` and ``sources`` are the types as which Mojo reads its rows."""

    name: str
    result: str
    sources: tuple[str, ...]
    mojo: str
    lane: Callable[..., int]
    chooses: bool = False
    """Whether the third source chooses one of the first two, which decides whether all lanes are equal."""
    nearly: bool = False
    """Whether the expression is a float64 that may be off by a few units and is rounded to f32. If that error could
    change the result, the run is rolled back.
    """

    @property
    def spreads(self) -> bool:
        """Returns whether a lane of the result is undefined, with all its bits, exactly if a lane of a source is."""
        return self.name.split(".")[0] in _SPREADING and not self.name.endswith("x2")

    @property
    def weight(self) -> int:
        """Returns its cost in Python with different lanes, in units of `fragment_runner.PRICE`. Floats cost ten times
        more.
        """
        return 20 if "f32" in self.name or "f64" in self.name or "f16" in self.name else 2


_SPREADING = frozenset((
    "mov", "add", "sub", "mul", "mad", "min", "max", "setp", "fma", "div", "rem", "dp4a", "rcp", "sqrt", "rsqrt",
    "ex2", "lg2",
))  # fmt: skip


def number(bits: int, kind: str) -> float:
    """Returns the number that the bits of an f32 or f64 represent."""
    return float(struct.unpack(f"<{_FORMS[kind][1]}", struct.pack(f"<{_FORMS[kind][0]}", bits))[0])


_FORMS = {"f32": "If", "f64": "Qd"}


def f32_bits(value: np.float32) -> int:
    """Returns the bits of an f32. Every NaN becomes the canonical one."""
    return CANONICAL_NAN if np.isnan(value) else int(value.view(np.uint32))


def of(function: Callable[..., Any], *more: object) -> Callable[..., int]:
    """Returns the function of one lane that applies a function of `values`. ``more`` holds its arguments behind the
    sources.
    """
    return lambda *lanes: function(*lanes, *more)


def _operations() -> list[MicroOperation]:
    found: list[MicroOperation] = []

    def add(name: str, result: str, sources: str, mojo: str, lane: Callable[..., int], **more: bool) -> None:
        found.append(MicroOperation(name, result, tuple(sources.split()), mojo, lane, **more))

    for bits, mask in ((32, M32), (64, M64)):
        u, s = f"u{bits}", f"s{bits}"
        vector = f"SIMD[{MOJO_TYPES[u]}, 32]"

        def wrap(function: Callable[..., int], mask: int = mask) -> Callable[..., int]:
            return lambda *lanes: function(*lanes) & mask

        add(f"mov.{bits}", u, u, "a", lambda a: a)
        add(f"add.{bits}", u, f"{u} {u}", "a + b", wrap(lambda a, b: a + b))
        add(f"sub.{bits}", u, f"{u} {u}", "a - b", wrap(lambda a, b: a - b))
        add(f"mul.{bits}", u, f"{u} {u}", "a * b", wrap(lambda a, b: a * b))
        add(f"mad.{bits}", u, f"{u} {u} {u}", "a * b + c", wrap(lambda a, b, c: a * b + c))
        add(f"and.{bits}", u, f"{u} {u}", "a & b", lambda a, b: a & b)
        add(f"or.{bits}", u, f"{u} {u}", "a | b", lambda a, b: a | b)
        add(f"xor.{bits}", u, f"{u} {u}", "a ^ b", lambda a, b: a ^ b)
        for name, extremum in (("min", values.minimum), ("max", values.maximum)):
            add(f"{name}.{u}", u, f"{u} {u}", f"{name}(a, b)", of(extremum, 0))
            add(f"{name}.{s}", s, f"{s} {s}", f"{name}(a, b)", of(extremum, 1 << bits - 1))
        amount = f"(b & {bits - 1}).cast[{MOJO_TYPES[u]}]()"
        for name, sign, shift in (("shl", "<<", values.shift_left), ("shr", ">>", values.shift_right)):
            mojo = f"b.lt({bits}).select(a {sign} {amount}, {vector}(0))"
            add(f"{name}.{bits}", u, f"{u} u32", mojo, of(shift, bits))
        clamped = f"min(b, SIMD[DType.uint32, 32]({bits - 1})).cast[{MOJO_TYPES[s]}]()"
        add(f"shr.{s}", s, f"{s} u32", f"a >> {clamped}", of(values.shift_right_signed, bits))
        add(f"selp.{bits}", u, f"{u} {u} pred", "c.ne(0).select(a, b)", lambda a, b, c: a if c else b, chooses=True)
        for name, sign in (("eq", "=="), ("ne", "!="), ("lt", "<"), ("le", "<="), ("gt", ">"), ("ge", ">=")):
            for kind in (u,) if name in ("eq", "ne") else (u, s):
                test = _comparison(sign, bits if kind == s else 0)
                add(f"setp.{name}.{kind}", "pred", f"{kind} {kind}", f"a.{name}(b).cast[DType.uint32]()", test)
        add(f"popc.{bits}", "u32", u, "pop_count(a).cast[DType.uint32]()", of(values.popcount, bits))
        zeros = "count_leading_zeros(a).cast[DType.uint32]()"
        add(f"clz.{bits}", "u32", u, zeros, of(values.count_leading_zeros, bits))
        add(f"brev.{bits}", u, u, "bit_reverse(a)", of(values.bit_reverse, bits))
        for kind in (u, s):
            for name in ("div", "rem"):
                exact = of(values.divide, bits, kind == s, name == "rem")
                add(
                    f"{name}.{kind}",
                    u,
                    f"{u} {u}",
                    f"{_DIVISIONS[name]}[{'True' if kind == s else 'False'}](a, b)",
                    exact,
                )

    for kind in ("u", "s"):
        wide = f"a.cast[{MOJO_TYPES[f'{kind}64']}]() * b.cast[{MOJO_TYPES[f'{kind}64']}]()"
        exact = of(values.multiply_wide, 32, kind == "s")
        add(f"mul.wide.{kind}32", f"{kind}64", f"{kind}32 {kind}32", wide, exact)
        with_sum = lambda a, b, c, exact=exact: (exact(a, b) + c) & M64  # noqa: E731
        add(f"mad.wide.{kind}32", f"{kind}64", f"{kind}32 {kind}32 {kind}64", f"{wide} + c", with_sum)
        high = f"(({wide}) >> 32).cast[{MOJO_TYPES[f'{kind}32']}]()"
        upper = of(values.multiply_high, 32, kind == "s")
        add(f"mul.hi.{kind}32", f"{kind}32", f"{kind}32 {kind}32", high, upper)
        with_sum = lambda a, b, c, upper=upper: (upper(a, b) + c) & M32  # noqa: E731
        add(f"mad.hi.{kind}32", f"{kind}32", f"{kind}32 {kind}32 {kind}32", f"{high} + c", with_sum)
    for bits in (8, 16):
        small = f"DType.int{bits}"
        extend = lambda a, bits=bits: signed(a & ((1 << bits) - 1), bits)  # noqa: E731
        cast = f"a.cast[{small}]().cast[DType.int32]()"
        add(f"sext{bits}.32", "s32", "s32", cast, lambda a, extend=extend: extend(a) & M32)
        cast = f"a.cast[{small}]().cast[DType.int64]()"
        add(f"sext{bits}.64", "s64", "s32", cast, lambda a, extend=extend: extend(a) & M64)
    add("sext32.64", "s64", "s32", "a.cast[DType.int64]()", lambda a: signed(a, 32) & M64)
    add("zext.64", "u64", "u32", "a.cast[DType.uint64]()", lambda a: a)
    add("trunc.32", "u32", "u64", "a.cast[DType.uint32]()", lambda a: a & M32)
    add("high.32", "u32", "u64", "(a >> 32).cast[DType.uint32]()", lambda a: a >> 32)
    join = "a.cast[DType.uint64]() | (b.cast[DType.uint64]() << 32)"
    add("join.64", "u64", "u32 u32", join, lambda a, b: a | b << 32)
    add("not.pred", "pred", "pred", "a ^ 1", lambda a: a ^ 1)
    for left in (True, False):
        for wraps in (True, False):
            n = "(c & 31)" if wraps else "min(c, SIMD[DType.uint32, 32](32))"
            both = "(a.cast[DType.uint64]() | (b.cast[DType.uint64]() << 32))"
            n64 = f"{n}.cast[DType.uint64]()"
            shifted = f"(({both} << {n64}) >> 32)" if left else f"({both} >> {n64})"
            add(
                f"shf.{'l' if left else 'r'}.{'wrap' if wraps else 'clamp'}", "u32", "u32 u32 u32",
                f"{shifted}.cast[DType.uint32]()",
                of(values.funnel_shift, left, wraps),
            )  # fmt: skip
    field = "bit_field(a, b & 255, c & 255)"
    add("bfe.u32", "u32", "u32 u32 u32", field, of(values.bit_field_extract, 32, False))
    add("prmt.b32", "u32", "u32 u32 u32", "permute_bytes(a, b, c)", values.prmt)
    add("pack.bf16x2", "u32", "u32 u32", "(to_bf16(a) << 16) | to_bf16(b)", values.pack_bf16x2)
    add("pack.f16x2", "u32", "u32 u32", "(to_f16(a) << 16) | to_f16(b)", values.pack_f16x2)
    add("f32.from.f16", "f32", "u32", "from_f16(a)", of(values.half_to_float, "f16"))
    for a_kind in ("u32", "s32"):
        for b_kind in ("u32", "s32"):
            signs = ", ".join("True" if kind == "s32" else "False" for kind in (a_kind, b_kind))
            exact = of(integer.dot_product, a_kind == "s32", b_kind == "s32", "")
            add(f"dp4a.{a_kind}.{b_kind}", "u32", "u32 u32 u32", f"dot_of_bytes[{signs}](a, b, c)", exact)
    for name, (tests, result) in FLOAT_COMPARISONS.items():
        holds = " | ".join(f"a.{_MOJO_SIGNS[sign]}(b)" for sign in tests)
        mojo = f"({'' if result else '~'}({holds})).cast[DType.uint32]()"
        for kind in ("f32", "f64"):
            add(f"setp.{name}.{kind}", "pred", f"{kind} {kind}", mojo, _float_comparison(tests, result, kind))
    for name, sources, mojo in _FLOAT_FUNCTIONS:
        kinds, nearly = " ".join(["f32"] * sources), name in _NEARLY
        add(f"{name}.f32", "f32", kinds, mojo, _function_lane(name, False), nearly=nearly)
        flushed = re.sub(r"\b([abc])\b", r"flush(\1)", mojo)
        flushed = flushed if nearly else f"flush({flushed})"
        add(f"{name}.ftz.f32", "f32", kinds, flushed, _function_lane(name, True), nearly=nearly)
        for form, one, ftz in (("", mojo, False), (".ftz", flushed, True)) if name in _PACKED else ():
            low, high = (re.sub(r"\b([abc])\b", rf"{half}(\1)", one) for half in ("low_number", "high_number"))
            lane = _packed_lane(_function_lane(name, ftz))
            add(f"{name}{form}.f32x2", "u64", kinds.replace("f32", "u64"), f"pair({low}, {high})", lane)
    for kind in ("s32", "u32"):
        whole = (lambda a: signed(a, 32)) if kind == "s32" else (lambda a: a)
        rounded = lambda a, whole=whole: f32_bits(np.float32(whole(a)))  # noqa: E731
        add(f"f32.from.{kind}", "f32", kind, "a.cast[DType.float32]()", rounded)
    for name, sources, mojo in _WIDE_FUNCTIONS:
        add(f"{name}.f64", "f64", " ".join(["f64"] * sources), mojo, _wide_lane(name))
    _conversions(add)
    _halves(add)
    for mode in ("rz", "rm", "rp"):
        lane = _function_lane("fma", False, mode)
        add(f"fma.{mode}.f32", "f32", "f32 f32 f32", f'fused_toward["{mode}"](a, b, c)', lane)
    return found


def _halves(add: Callable[..., None]) -> None:
    """Adds operations on f16 and bf16, one or two in a row."""
    for kind, form in (("f16", F16), ("bf16", BF16)):
        for name, sources, text in _HALF_FUNCTIONS:
            mojo, kinds = text.replace("B", str(form is BF16)), " ".join(["u32"] * sources)
            upper = re.sub(r"\b([abc])\b", r"(\1 >> 16)", mojo)
            lane = _function_lane(name, False, form=form)
            add(f"{name}.{kind}", "u32", kinds, mojo, _low_lane(lane))
            add(f"{name}.{kind}x2", "u32", kinds, f"{mojo} | ({upper} << 16)", _packed_lane(lane, 16))


def _conversions(add: Callable[..., None]) -> None:
    """Adds conversions between f32, f64 and integers, and rounding to integers."""

    def lane(function: Callable[..., Any], *before: object) -> Callable[..., int]:
        return lambda a: int(function(*before, a))

    for kind in ("s32", "u32", "s64", "u64"):
        exact = lane(convert.integer_to_float, "f64", kind, "rn", False)
        add(f"f64.from.{kind}", "f64", kind, "a.cast[DType.float64]()", exact)
    for to, source in (("f32", "f64"), ("f64", "f32")):
        bits = f"a.cast[{MOJO_TYPES[to]}]().to_bits[DType.uint{to[1:]}]()"
        exact = lane(convert.float_to_float, to, source, "rn", "", *_PLAIN)
        add(f"{to}.from.{source}", f"u{to[1:]}", source, bits, exact)
    for words, mode in convert.INTEGRAL.items():
        whole = f"whole_{mode}(a.cast[DType.float64]())"
        exact = lane(convert.float_to_float, "f32", "f32", "rn", mode, *_PLAIN)
        add(f"{words}.f32", "f32", "f32", f"{whole}.cast[DType.float32]()", exact)
        for to in ("s32", "u32"):
            for source, of_nan in (("f32", 0), ("f64", 1 << 31)):
                exact = lane(convert.float_to_integer, to, source, 32, mode, False)
                add(f"{to}.from.{source}.{words}", "u32", source, f"to_{to}({whole}, {of_nan})", exact)
    exact = lane(convert.float_to_float, "f32", "f32", "rn", "", False, True, False, False)
    add("sat.f32", "f32", "f32", "a.gt(0).select(min(a, Floats(1)), Floats(0))", exact)


_DIVISIONS = {"div": "whole_quotient", "rem": "whole_remainder"}
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
_PLAIN = (False, False, False, False)
"""No .ftz, no .sat, no .relu, no .satfinite."""
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


def _wide_lane(name: str) -> Callable[..., int]:
    """Returns the f64 function of one lane."""

    def lane(*bits: int) -> int:
        numbers = [float_math.inputs(np.array(b, np.uint64), F64, False) for b in bits]
        return int(float_math.finish(float_math.compute64(name, "rn", *numbers), F64, "rn"))

    return lane


def _function_lane(name: str, ftz: bool, mode: str = "rn", form: Format = F32) -> Callable[..., int]:
    """Returns the emulator's own function of one lane."""

    def lane(*bits: int) -> int:
        numbers = [float_math.inputs(np.array(b, np.uint32), form, ftz) for b in bits]
        operation, _, nan = name.partition(".")
        if operation in ("min", "max"):
            result = float_math.extremum(operation, numbers, bool(nan), False, False)
        else:
            result = float_math.compute(name, mode, *numbers)
        return int(float_math.finish(result, form, mode, ftz=ftz))

    return lane


def _packed_lane(lane: Callable[..., int], bits: int = 32) -> Callable[..., int]:
    low = (1 << bits) - 1
    return lambda *both: lane(*(b & low for b in both)) | lane(*(b >> bits for b in both)) << bits


def _low_lane(lane: Callable[..., int]) -> Callable[..., int]:
    return lambda *bits: lane(*(b & 0xFFFF for b in bits))


def _comparison(sign: str, signed_bits: int) -> Callable[[int, int], int]:
    compare = _COMPARE[sign]
    if not signed_bits:
        return lambda a, b: int(compare(a, b))
    return lambda a, b: int(compare(signed(a, signed_bits), signed(b, signed_bits)))


def _float_comparison(signs: tuple[str, ...], result: bool, kind: str) -> Callable[[int, int], int]:
    tests = [_COMPARE[sign] for sign in signs]
    return lambda a, b: int(any(test(number(a, kind), number(b, kind)) for test in tests) == result)


_COMPARE: dict[str, Callable[[float, float], bool]] = {
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}


OPERATIONS: tuple[MicroOperation, ...] = tuple(_operations())
BY_NAME = {operation.name: operation for operation in OPERATIONS}
NUMBERS = {operation.name: number for number, operation in enumerate(OPERATIONS)}


EXCHANGES = {
    name: 800 + number
    for number, name in enumerate(
        [*(f"shfl.{m}" for m in ("idx", "up", "down", "bfly")), *(f"vote.{m}" for m in ("all", "any", "uni", "ballot"))]
        + [f"redux.{m}" for m in ("add", "and", "or", "xor", "min.u32", "max.u32", "min.s32", "max.s32")]
        + [f"redux.{m}{n}.f32" for m in ("min", "max") for n in ("", ".nan")]
        + ["elect", "activemask"]
    )
}
"""Numbers of the operations that exchange data between the lanes of a warp. Their last source is the mask of the
participating lanes; which lanes are there does not depend on it.
"""


MATRICES = {"tcgen05.ld": 990, "stmatrix": 991, "stmatrix.trans": 992, "tcgen05.st": 993, "tcgen05.wait::st": 994}
"""Numbers of operations of whole warps: a register of a load from tensor memory or of a store to it, the wait for such
stores, and the store of one matrix.
"""
WAIT_FOR_LOADS = "tcgen05.wait::ld"
"""The micro-operation of the wait for loads from tensor memory, which have their values at once."""


class Control(IntEnum):
    """Numbers of operations that are not on lanes: they begin, link and end native pieces."""

    BEGIN = 1000
    """Begins a native piece: saves the rows that a rollback needs."""
    GO = 1001
    BRANCH = 1002
    LEAVE = 1003
    """The block continues with an instruction that Python runs."""
    BARRIER = 1004
    LOADED = 1005
    """No load from tensor memory is pending that only Python knows; if aligned, the warp is whole."""
    EARLY_READ = 1006
    """Counts a read of a register of a load from tensor memory before its wait. Python does the first one."""
    CALL = 1007
    """Python executes an instruction on the rows, without being handed anything."""


class Flag(IntFlag):
    """How an operation is to be executed."""

    NEGATED = auto()
    """The guard holds where its predicate is false."""
    WIDE = auto()
    """The destination, or the value that is stored, has 64 bits per lane."""
    WIDE_ADDRESS = auto()
    FIRST_ITEM = auto()
    """It is the first micro-operation of its instruction's access."""
    CHOOSES = auto()
    """See `MicroOperation.chooses`."""
    ALIGNED = auto()
    """All lanes of the warp must execute it together."""
    COUNTED = auto()
    """The barrier has a number of threads."""
    SPREADS = auto()
    """See `MicroOperation.spreads`."""


BARRIER = "bar.sync"
"""The micro-operation of a barrier. Its sources are the barrier's number and, if given, the number of threads. An
alignment of 32 means that all lanes of the warp must arrive together.
"""


SPACES = ("shared", "global", "param", "const", "local", "generic")
ACCESS_BYTES = (1, 2, 4, 8)
ACCESSES: dict[tuple[str, str, int], int] = {
    (verb, space, nbytes): 900 + number
    for number, (verb, space, nbytes) in enumerate(
        (verb, space, nbytes) for verb in ("ld", "st") for space in SPACES for nbytes in ACCESS_BYTES
    )
    if (verb, space) not in (("st", "param"), ("st", "const"))
}
"""Numbers of loads and stores, by direction, state space and bytes of an item."""


ATOMICS = (
    "add", "and", "or", "xor", "exch", "cas", "inc", "dec", "min.u", "max.u", "min.s", "max.s", "add.f",
)  # fmt: skip
"""Atomic operations on memory, one lane after another, numbered in this order."""
ATOMIC_ACCESSES = {
    (space, nbytes): 960 + number
    for number, (space, nbytes) in enumerate((space, nbytes) for space in ("shared", "global") for nbytes in (4, 8))
}
"""Numbers of atomics, by state space and bytes."""
