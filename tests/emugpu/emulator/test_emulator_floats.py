"""Floating-point instructions of every format and rounding, against exact arithmetic on fractions."""

from __future__ import annotations

import math
import zlib
from fractions import Fraction

import numpy as np
import pytest
from exact_floats import FORMS, Exact, flushed, one_nan, rounded, value
from ptx_programs import STORE_R1, launch
from ptx_values import evaluate

COUNT = 96
LETTER = {"f16": "h", "bf16": "h", "f32": "f", "f64": "e"}
BITS = {"f16": 16, "bf16": 16, "f32": 32, "f64": 64}


def samples(name: str, seed: str, count: int = COUNT) -> list[int]:
    """Bit patterns: special ones, neighbours of one another, and any."""
    form = FORMS[name]
    rng = np.random.default_rng(zlib.crc32(f"{name} {seed}".encode()))
    one = form.bias << form.fraction
    least = 1 << form.fraction
    special = [0, form.sign, 1, form.sign | 3, form.infinity, form.sign | form.infinity, form.infinity | 1]
    special += [form.largest, one, form.sign | one, one + 1, one - 1, least, least - 1]
    near = [int(n) % (4 << form.fraction) + one - (2 << form.fraction) for n in rng.integers(0, 1 << 62, count)]
    near = [n | (form.sign if k % 2 else 0) for k, n in enumerate(near)]
    wild = [int(n) & (2 * form.sign - 1) for n in rng.integers(0, 1 << 62, count)]
    return [*(special[int(k)] for k in rng.integers(0, len(special), count // 4)), *near, *wild][: count // 4] + [
        (near if k % 3 else wild)[k] for k in range(count - count // 4)
    ]


def negated(a: Exact) -> Exact:
    if isinstance(a, str):
        return {"nan": "nan", "inf": "-inf", "-inf": "inf", "-0": Fraction(0)}[a]
    return -a if a else "-0"


def is_negative(a: Exact) -> bool:
    return a in ("-inf", "-0") if isinstance(a, str) else a < 0


def number(a: Exact) -> Fraction:
    return Fraction(0) if isinstance(a, str) else a


def added(a: Exact, b: Exact, mode: str) -> Exact:
    if "nan" in (a, b) or {a, b} == {"inf", "-inf"}:
        return "nan"
    for x in (a, b):
        if x in ("inf", "-inf"):
            return x
    total = number(a) + number(b)
    if total:
        return total
    if number(a) == 0 and is_negative(a) == is_negative(b):
        return a
    return "-0" if mode == "rm" else Fraction(0)


def multiplied(a: Exact, b: Exact) -> Exact:
    if "nan" in (a, b):
        return "nan"
    negative = is_negative(a) != is_negative(b)
    if any(x in ("inf", "-inf") for x in (a, b)):
        if any(x not in ("inf", "-inf") and not number(x) for x in (a, b)):
            return "nan"
        return "-inf" if negative else "inf"
    product = number(a) * number(b)
    return product or ("-0" if negative else Fraction(0))


def divided(a: Exact, b: Exact) -> Exact:
    infinite = [x in ("inf", "-inf") for x in (a, b)]
    if "nan" in (a, b) or all(infinite):
        return "nan"
    negative = is_negative(a) != is_negative(b)
    if infinite[1]:
        return "-0" if negative else Fraction(0)
    if infinite[0] or not number(b):
        if not infinite[0] and not number(a):
            return "nan"
        return "-inf" if negative else "inf"
    return number(a) / number(b) or ("-0" if negative else Fraction(0))


OPERATIONS = {
    "add": added,
    "sub": lambda a, b, mode: added(a, negated(b), mode),
    "mul": lambda a, b, mode: multiplied(a, b),
    "div": lambda a, b, mode: divided(a, b),
    "fma": lambda a, b, c, mode: added(multiplied(a, b), c, mode),
    "rcp": lambda a, mode: divided(Fraction(1), a),
}


def expected(operation: str, name: str, modifiers: list[str], operands: tuple[int, ...]) -> int:
    mode = next((m for m in modifiers if m in ("rz", "rm", "rp")), "rn")
    if "ftz" in modifiers:
        operands = tuple(flushed(x, name) for x in operands)
    result = OPERATIONS[operation](*(value(x, name) for x in operands), mode)
    if "sat" in modifiers:
        result = Fraction(0) if result == "nan" or is_negative(result) else result
        result = Fraction(1) if result == "inf" or number(result) > 1 else number(result)
    if "relu" in modifiers and is_negative(result):
        result = Fraction(0)
    bits = rounded(result, name, mode)
    return flushed(bits, name) if "ftz" in modifiers else bits


CASES = [
    *(("add", f"{r}.{t}") for t in ("f32", "f64") for r in ("rn", "rz", "rm", "rp")),
    *(("mul", f"{r}.{t}") for t in ("f32", "f64") for r in ("rn", "rz", "rm", "rp")),
    *(("fma", f"{r}.{t}") for t in ("f32", "f64") for r in ("rn", "rz", "rm", "rp")),
    *(("div", f"{r}.{t}") for t in ("f32", "f64") for r in ("rn", "rz", "rm", "rp")),
    *(("rcp", f"{r}.{t}") for t in ("f32", "f64") for r in ("rn", "rp")),
    ("sub", "rm.f64"), ("sub", "rm.f32"), ("sub", "ftz.f32"), ("mul", "ftz.f32"), ("fma", "rn.ftz.f32"),
    ("mul", "sat.f32"), ("add", "rz.ftz.sat.f32"), ("fma", "rp.sat.f32"), ("sub", "f64"), ("sub", "f32"),
    ("add", "f16"), ("sub", "rn.sat.f16"), ("mul", "ftz.f16"), ("mul", "f16"), ("add", "bf16"), ("sub", "bf16"),
    ("mul", "rn.bf16"), *(("fma", f"rn.{m}") for m in ("f16", "bf16", "relu.f16", "relu.bf16", "sat.f16", "ftz.f16")),
]  # fmt: skip


@pytest.mark.parametrize(("operation", "modifiers"), CASES)
def test_rounded_arithmetic_is_exact_arithmetic_rounded_once(operation, modifiers):
    *words, name = modifiers.split(".")
    letter, arity = LETTER[name], {"fma": 3, "rcp": 1}.get(operation, 2)
    columns = [samples(name, f"{operation} {modifiers} {n}") for n in range(arity)]
    if operation != "rcp":
        # Sums that cancel to a few bits or to nothing, and products that all but cancel the third operand.
        columns[arity - 1][0:8] = [columns[0][k] ^ FORMS[name].sign for k in range(8)]
    registers = [f"{letter}{n + 1}" for n in range(arity)]
    body = f"{operation}.{modifiers} %{letter}0, {', '.join('%' + r for r in registers)};"
    found = evaluate(body, [(r, np.array(c, np.uint64)) for r, c in zip(registers, columns, strict=True)], f"{letter}0")
    wanted = [expected(operation, name, words, row) for row in zip(*columns, strict=True)]
    assert [hex(one_nan(int(x), name)) for x in found] == [hex(x) for x in wanted]


@pytest.mark.parametrize(
    ("instruction", "name"),
    [
        ("fma.rn.f16x2", "f16"), ("mul.bf16x2", "bf16"), ("add.rn.ftz.f16x2", "f16"), ("fma.rn.relu.bf16x2", "bf16"),
        ("mul.rn.f32x2", "f32"), ("fma.rm.ftz.f32x2", "f32"), ("add.f32x2", "f32"),
    ],
)  # fmt: skip
def test_packed_arithmetic_is_that_of_each_half(instruction, name):
    operation, *modifiers = instruction.split(".")
    arity, bits = (3 if operation == "fma" else 2), BITS[name]
    letter = "d" if bits == 32 else "r"
    halves = [[samples(name, f"{instruction} {n} {h}") for h in range(2)] for n in range(arity)]
    columns = [np.array(low, np.uint64) | np.array(high, np.uint64) << np.uint64(bits) for low, high in halves]
    registers = [f"{letter}{n + 1}" for n in range(arity)]
    body = f"{instruction} %{letter}0, {', '.join('%' + r for r in registers)};"
    found = evaluate(body, list(zip(registers, columns, strict=True)), f"{letter}0")
    for h in range(2):
        wanted = [expected(operation, name, modifiers, row) for row in zip(*(c[h] for c in halves), strict=True)]
        assert [hex(int(x) >> bits * h & ((1 << bits) - 1)) for x in found] == [hex(x) for x in wanted]


@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_mixed_arithmetic_widens_its_factors_exactly(name):
    a, b, c = samples(name, "a"), samples(name, "b"), samples("f32", "c")
    found = evaluate(f"fma.rz.f32.{name} %f0, %h1, %h2, %f3;",
                     [("h1", np.array(a)), ("h2", np.array(b)), ("f3", np.array(c))], "f0")  # fmt: skip
    exact = [
        added(multiplied(value(x, name), value(y, name)), value(z, "f32"), "rz")
        for x, y, z in zip(a, b, c, strict=True)
    ]
    assert [hex(x) for x in found] == [hex(rounded(x, "f32", "rz")) for x in exact]


def extremum(operation: str, name: str, modifiers: list[str], *operands: int) -> int:
    """By the bits: magnitudes of one sign are in the order of their patterns."""
    sign, nan = FORMS[name].sign, rounded("nan", name)
    if "ftz" in modifiers:
        operands = tuple(flushed(x, name) for x in operands)
    product = (operands[0] ^ operands[1]) & sign
    if "abs" in modifiers:
        operands = tuple(x & ~sign for x in operands)
    numbers = [x for x in operands if value(x, name) != "nan"]
    if not numbers or ("NaN" in modifiers and len(numbers) < len(operands)):
        return nan

    def order(x: int) -> int:
        return -(x & ~sign) - 1 if x & sign else x

    result = (min if operation == "min" else max)(numbers, key=order)
    return (result & ~sign) | product if "xorsign" in modifiers else result


@pytest.mark.parametrize(
    ("instruction", "arity"),
    [
        ("min.f32", 2), ("max.f32", 2), ("max.NaN.f32", 2), ("min.ftz.f32", 2), ("max.xorsign.abs.f32", 2),
        ("min.f32", 3), ("max.NaN.abs.f32", 3), ("max.f32", 3), ("min.f64", 2), ("max.f16", 2),
        ("min.NaN.xorsign.abs.bf16", 2), ("max.ftz.NaN.f16", 2),
    ],
)  # fmt: skip
def test_extrema_of_numbers_and_nans(instruction, arity):
    operation, *modifiers, name = instruction.split(".")
    letter = LETTER[name]
    columns = [samples(name, f"{instruction} {n}") for n in range(arity)]
    columns[1][:6] = [columns[0][k] ^ FORMS[name].sign for k in range(6)]
    columns[0][6:8], columns[1][6:8] = (0, FORMS[name].sign), (FORMS[name].sign, 0)
    registers = [f"{letter}{n + 1}" for n in range(arity)]
    body = f"{instruction} %{letter}0, {', '.join('%' + r for r in registers)};"
    found = evaluate(body, [(r, np.array(c, np.uint64)) for r, c in zip(registers, columns, strict=True)], f"{letter}0")
    wanted = [extremum(operation, name, modifiers, *row) for row in zip(*columns, strict=True)]
    assert [hex(x) for x in found] == [hex(x) for x in wanted]


def ulps(found: int, exact: float, name: str = "f32") -> float:
    """Distance in units of the last place of the exact result."""
    got = value(found, name)
    if isinstance(got, str):
        return 0.0 if str(exact) == got or (got == "-0" and exact == 0) else math.inf
    if math.isinf(exact) or math.isnan(exact):
        return math.inf
    form = FORMS[name]
    exponent = max(math.frexp(exact)[1] - 1, 1 - form.bias) if exact else 1 - form.bias
    return float(abs(got - Fraction(exact)) / Fraction(2) ** (exponent - form.fraction))


APPROXIMATE = {
    "ex2.approx.f32": (lambda x: 2.0**x, (-126, 127.5)),
    "lg2.approx.f32": (math.log2, (1e-30, 1e30)),
    "sin.approx.f32": (math.sin, (-3, 3)),
    "cos.approx.f32": (math.cos, (-3, 3)),
    "tanh.approx.f32": (math.tanh, (-4, 4)),
    "rsqrt.approx.ftz.f32": (lambda x: 1 / math.sqrt(x), (1e-30, 1e30)),
    "rcp.approx.ftz.f32": (lambda x: 1 / x, (1e-30, 1e30)),
    "sqrt.approx.f32": (math.sqrt, (1e-30, 1e30)),
}


@pytest.mark.parametrize("instruction", APPROXIMATE)
def test_approximate_functions_are_nearest_which_the_isa_allows(instruction):
    function, (low, high) = APPROXIMATE[instruction]
    x = np.random.default_rng(5).uniform(low, high, 64).astype(np.float32)
    found = evaluate(f"{instruction} %f0, %f1;", [("f1", x.view(np.uint32))], "f0")
    if function in (math.sin, math.cos):
        # The argument is first brought to turns in f32.
        errors = [abs(float(bits.view(np.float32)) - function(float(v))) for bits, v in zip(found, x, strict=True)]
        assert max(errors) <= 2.0**-20.9
        return
    assert max(ulps(int(bits), function(float(v))) for bits, v in zip(found, x, strict=True)) <= 0.5000001


def test_approximate_functions_at_their_edges():
    def at(instruction: str, *numbers: float) -> list[float]:
        x = np.resize(np.array(numbers, np.float32), 32).view(np.uint32)
        return evaluate(f"{instruction}.f32 %f0, %f1;", [("f1", x)], "f0").view(np.float32)[: len(numbers)].tolist()

    inf, tiny = math.inf, 1e-40
    assert at("ex2.approx", -inf, inf, 0.0, -149.0) == [0.0, inf, 1.0, 2.0**-149]
    assert at("ex2.approx.ftz", -140.0, tiny) == [0.0, 1.0]
    assert at("lg2.approx", 0.0, inf, 1.0) == [-inf, inf, 0.0] and math.isnan(at("lg2.approx", -1.0)[0])
    assert at("rcp.approx", 0.0, -0.0, inf, tiny)[:3] == [inf, -inf, 0.0] and at("rcp.approx.ftz", tiny) == [inf]
    assert at("rsqrt.approx", 0.0, -0.0, inf) == [inf, -inf, 0.0] and math.isnan(at("rsqrt.approx", -1.0)[0])
    assert math.isnan(at("sin.approx", inf)[0]) and at("tanh.approx", inf, -inf) == [1.0, -1.0]
    assert at("sqrt.rn", 2.0, 0.0) == [float(np.float32(math.sqrt(2))), 0.0] and math.isnan(at("sqrt.rn", -1.0)[0])


@pytest.mark.parametrize(("mode", "toward"), [("rn", 0), ("rz", -1), ("rm", -1), ("rp", 1)])
@pytest.mark.parametrize("name", ["f32", "f64"])
def test_square_roots_round_in_every_direction(mode, toward, name):
    form = FORMS[name]
    bits = [b & (form.sign - 1) for b in samples(name, f"sqrt {mode}", 64)]
    bits = [b if b < form.infinity else 1 for b in bits]
    letter = LETTER[name]
    found = evaluate(
        f"sqrt.{mode}.{name} %{letter}0, %{letter}1;", [(f"{letter}1", np.array(bits, np.uint64))], f"{letter}0"
    )
    for before, after in zip(bits, found.tolist(), strict=True):
        x, root = value(before, name), value(after, name)
        above, below = value(after + 1, name), value(max(after - 1, 0), name)
        if toward == 1:
            assert root**2 >= x > below**2 or x == root == 0
        elif toward == -1:
            assert root**2 <= x < above**2
        else:
            assert ((root + below) / 2) ** 2 <= x <= ((root + above) / 2) ** 2


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
@pytest.mark.parametrize("name", ["f32", "f64"])
def test_sums_of_zeros_have_the_sign_of_their_terms(name, mode):
    """A product of zero and a zero: -0 if both are, and if one is only when rounding down (IEEE 754, 6.3)."""
    sign, one, letter = FORMS[name].sign, FORMS[name].bias << FORMS[name].fraction, LETTER[name]
    triples = [(a, b, c) for a in (0, sign, one, sign | one) for b in (0, sign) for c in (0, sign)] * 2
    operands = [
        (f"{letter}{n + 1}", np.array(column, np.uint64)) for n, column in enumerate(zip(*triples, strict=True))
    ]
    found = evaluate(f"fma.{mode}.{name} %{letter}0, %{letter}1, %{letter}2, %{letter}3;", operands, f"{letter}0")
    both = [((a ^ b) & sign, c) for a, b, c in triples]
    wanted = [sign if (p and c) or (mode == "rm" and (p or c)) else 0 for p, c in both]
    assert found.tolist() == wanted


def test_division_in_its_approximate_forms():
    a = np.array([1.0, -3.0, 7.0, 5.0, 0.0, 1.0] * 16, np.float32)
    b = np.array([3.0, 7.0, -0.0, 2.0**127, 0.0, np.inf] * 16, np.float32)
    operands = [("f1", a.view(np.uint32)), ("f2", b.view(np.uint32))]
    full = evaluate("div.full.f32 %f0, %f1, %f2;", operands, "f0").view(np.float32)[:6]
    rough = evaluate("div.approx.f32 %f0, %f1, %f2;", operands, "f0").view(np.float32)[:6]
    wanted = [np.float32(1 / 3), np.float32(-3 / 7), -np.inf, np.float32(5 * 2.0**-127), np.nan, 0.0]
    np.testing.assert_array_equal(full, np.array(wanted, np.float32))
    # Beyond 2^126 the divisor's reciprocal is flushed.
    np.testing.assert_array_equal(rough, np.array([*wanted[:3], 0.0, *wanted[4:]], np.float32))


def test_gross_approximations_of_f64_have_twenty_bits():
    x = np.random.default_rng(3).uniform(0.01, 1e6, 32)
    for instruction, exact in (("rcp.approx.ftz.f64", 1 / x), ("rsqrt.approx.ftz.f64", 1 / np.sqrt(x))):
        found = evaluate(f"{instruction} %e0, %e1;", [("e1", x.view(np.uint64))], "e0")
        assert not (found & 0xFFFFFFFF).any()
        assert (abs(found.view(np.float64) / exact - 1) < 2.0**-18).all()


def test_signs_and_classes():
    x = samples("f32", "signs", 64)
    y = samples("f32", "other", 64)
    operands = [("f1", np.array(x)), ("f2", np.array(y))]
    assert evaluate("copysign.f32 %f0, %f1, %f2;", operands, "f0").tolist() == [
        (a & 1 << 31) | (b & 0x7FFFFFFF) for a, b in zip(x, y, strict=True)
    ]
    assert evaluate("neg.ftz.f32 %f0, %f1;", operands, "f0").tolist() == [flushed(a, "f32") ^ 1 << 31 for a in x]
    packed = [("r1", np.array(x))]
    assert evaluate("abs.bf16x2 %r0, %r1;", packed, "r0").tolist() == [a & 0x7FFF7FFF for a in x]
    assert evaluate("neg.f16x2 %r0, %r1;", packed, "r0").tolist() == [a ^ 0x80008000 for a in x]
    tests = {
        "finite": lambda v: v not in ("inf", "-inf", "nan"),
        "infinite": lambda v: v in ("inf", "-inf"),
        "number": lambda v: v != "nan",
        "notanumber": lambda v: v == "nan",
        "normal": lambda v: not isinstance(v, str) and abs(v) >= Fraction(2) ** -126,
        "subnormal": lambda v: not isinstance(v, str) and 0 < abs(v) < Fraction(2) ** -126,
    }
    for name, test in tests.items():
        found = evaluate(f"testp.{name}.f32 %p0, %f1; selp.b32 %r0, 1, 0, %p0;", operands, "r0")
        assert found.tolist() == [int(test(value(a, "f32"))) for a in x], name


def test_a_nan_of_one_thread_alone_is_a_scalar():
    """A single lane of a warp computes with scalars; its NaN must meet the others' values again as one."""
    body = """
    setp.ne.u32 %p1, %r0, 5; mov.f64 %rd5, 0d3ff0000000000000; @%p1 bra MEET;
    mov.b64 %rd6, 0x7ff0000000000000; sub.rn.f64 %rd5, %rd6, %rd6;
    MEET: shr.u64 %rd6, %rd5, 32; cvt.u32.u64 %r1, %rd6;
    """
    found = launch(body + STORE_R1 + "ret;", words=32).words(32)
    assert found.tolist() == [0xFFF80000 if lane == 5 else 0x3FF00000 for lane in range(32)]


@pytest.mark.parametrize(("name", "function"), [("sin", np.sin), ("cos", np.cos)])
def test_sin_and_cos_of_turns(name, function):
    """.2pi: the argument is a number of turns, so whole and quarter turns are exact however many there are."""
    turns = np.array([0.25, 0.5, 1e6, 1e6 + 0.25, -0.25, 0.1, 0.0, 3.0, 123.456], np.float32)
    turns = np.concatenate([turns, np.linspace(-2, 2, 23, dtype=np.float32)])
    found = evaluate(f"{name}.approx.ftz.2pi.f32 %f0, %f1;", [("f1", turns.view(np.uint32))], "f0").view(np.float32)
    exact = function(2 * np.pi * np.fmod(turns.astype(np.float64), 1.0))
    assert np.abs(found - exact).max() < 2.0**-22
    assert found[:2].round(6).tolist() == ([1.0, 0.0] if name == "sin" else [0.0, -1.0])
    infinite = evaluate(f"{name}.approx.ftz.2pi.f32 %f0, %f1;", [("f1", np.full(32, 0x7F800000))], "f0")
    assert np.isnan(infinite.view(np.float32)).all()
