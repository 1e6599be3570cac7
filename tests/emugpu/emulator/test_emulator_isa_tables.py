"""Whole tables of the ISA, entry by entry: types, comparisons, conversions, signs, atomics, matrices.

The expected values follow from the text of the PTX ISA in plain Python.
"""

from __future__ import annotations

import itertools
import math
import operator
import struct

import ml_dtypes
import numpy as np
import pytest
from ptx_programs import STORE_R1, WORDS, launch, run
from test_emulator_alu import OUT32, execute

from emugpu.emulator.ptx.parser import parse_module

M32, M64 = (1 << 32) - 1, (1 << 64) - 1
LANES = np.arange(32)


def lanes(*columns: list[int], count: int = 32) -> np.ndarray:
    """Operands a, b and c of so many lanes; short columns are repeated."""
    filled = [*columns, *[[0]] * (3 - len(columns))]
    return np.array([np.resize(np.array(column, np.uint64), count) for column in filled])


def in_lanes_and_as_scalars(body: str, values: np.ndarray, expected: list[int]) -> None:
    """Each lane gets its own answer, and so do lanes that all have the operands of lane 1."""
    assert execute(body, values).tolist() == expected, body
    assert execute(body, values, reads=1).tolist() == [expected[1]] * len(expected), body


# ---- types (PTX ISA 5.2) ----

BITS = {"f16x2": 32, "bf16x2": 32} | {f"{kind}{bits}": bits for kind in "bus" for bits in (8, 16, 32, 64)}
BITS |= {"f16": 16, "bf16": 16, "f32": 32, "f64": 64, "b128": 128}


@pytest.mark.parametrize("kind", BITS)
def test_a_variable_has_the_size_of_its_type(kind):
    text = f".version 8.8\n.target sm_100a\n.address_size 64\n.shared .{kind} one;\n.shared .align 64 .{kind} three[3];"
    one, three = parse_module(text).variables.values()
    assert (one.size, one.align, three.size, three.align) == (BITS[kind] // 8, BITS[kind] // 8, 3 * BITS[kind] // 8, 64)


# ---- comparisons (PTX ISA 9.7.6, tables 5 to 8) ----

ORDERED = {name: getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")}
NUMBERS = [1.0, -2.0, 0.0, -0.0, math.inf, -math.inf, math.nan]
PAIRS = list(itertools.product(NUMBERS, NUMBERS))


def float_comparison(name: str, a: float, b: float) -> bool:
    unordered = math.isnan(a) or math.isnan(b)
    if name in ("num", "nan"):
        return unordered == (name == "nan")
    if name in ORDERED:
        return not unordered and ORDERED[name](a, b)
    return unordered or ORDERED[name[:-1]](a, b)


def float_bits(kind: str, number: float) -> int:
    if kind == "bf16":
        return int(np.array(number, ml_dtypes.bfloat16).view(np.uint16))
    return int.from_bytes(struct.pack("<" + {"f16": "e", "f32": "f", "f64": "d"}[kind], number), "little")


@pytest.mark.parametrize("kind", ["f16", "bf16", "f32", "f64"])
def test_comparisons_of_floats(kind):
    registers = {16: "%h", 32: "%r", 64: "%d"}[BITS[kind]]
    narrow = "cvt.u16.u32 %h1, %r1; cvt.u16.u32 %h2, %r2;" if BITS[kind] == 16 else ""
    names = [*ORDERED, *(f"{name}u" for name in ORDERED), "num", "nan"]
    body = narrow + "".join(
        f"setp.{name}.{kind} %p1, {registers}1, {registers}2; selp.b64 %d4, {1 << n}, 0, %p1; or.b64 %d0, %d0, %d4;"
        for n, name in enumerate(names)
    )
    for half in (PAIRS[:32], PAIRS[-32:]):
        values = lanes(*([float_bits(kind, pair[n]) for pair in half] for n in range(2)))
        expected = [sum(float_comparison(name, *pair) << n for n, name in enumerate(names)) for pair in half]
        in_lanes_and_as_scalars(body, values, expected)


@pytest.mark.parametrize(("kind", "register"), [("16", "%h"), ("32", "%r"), ("64", "%d")])
def test_comparisons_of_integers(kind, register):
    bits = int(kind)
    words = [0, 1, (1 << bits) - 1, 1 << (bits - 1), (1 << (bits - 1)) - 1]
    pairs = list(itertools.product(words, words))
    unsigned = {"lo": operator.lt, "ls": operator.le, "hi": operator.gt, "hs": operator.ge}
    tests = [(f"{name}.{sign}", ORDERED[name], sign == "s") for name in ORDERED for sign in "us"]
    tests += [(f"{name}.u", test, False) for name, test in unsigned.items()]
    tests += [(f"{name}.b", ORDERED[name], False) for name in ("eq", "ne")]
    body = "cvt.u16.u32 %h1, %r1; cvt.u16.u32 %h2, %r2;" + "".join(
        f"setp.{name}{kind} %p1, {register}1, {register}2; selp.b64 %d4, {1 << n}, 0, %p1; or.b64 %d0, %d0, %d4;"
        for n, (name, _, _) in enumerate(tests)
    )

    def number(value: int, signed: bool) -> int:
        return value - (1 << bits) if signed and value >> (bits - 1) else value

    values = lanes(*([pair[n] for pair in pairs] for n in range(2)))
    expected = [
        sum(test(number(a, signed), number(b, signed)) << n for n, (_, test, signed) in enumerate(tests))
        for a, b in values[:2].T.tolist()
    ]
    in_lanes_and_as_scalars(body, values, expected)


@pytest.mark.parametrize(("combine", "function"), [("and", operator.and_), ("or", operator.or_), ("xor", operator.xor)])
def test_comparisons_are_combined_with_a_predicate(combine, function):
    body = f"""
    setp.ne.u32 %p1, %r3, 0;
    setp.lt.{combine}.u32 %p2|%p3, %r1, %r2, %p1;
    selp.b64 %d0, 1, 0, %p2;
    selp.b64 %d4, 2, 0, %p3;
    or.b64 %d0, %d0, %d4;
    """
    cases = list(itertools.product([3, 5], [4], [0, 1]))
    expected = [function(a < b, bool(c)) + 2 * function(a >= b, bool(c)) for a, b, c in cases]
    in_lanes_and_as_scalars(body, lanes(*zip(*cases, strict=True)), expected * 8)


# ---- signs ----


@pytest.mark.parametrize(("kind", "register"), [("s16", "%h"), ("s32", "%r"), ("s64", "%d")])
def test_neg_and_abs_of_integers(kind, register):
    """abs of the smallest number is that number (PTX ISA 9.7.1.11)."""
    bits, full = BITS[kind], (1 << BITS[kind]) - 1
    words = [0, 1, 2, 6, full, full - 1, 1 << (bits - 1), (1 << (bits - 1)) + 1, (1 << (bits - 1)) - 1]
    out = {16: "cvt.u64.u16 %d0, %h4;", 32: "cvt.u64.u32 %d0, %r4;", 64: "mov.b64 %d0, %d4;"}[bits]
    values = lanes(words)
    numbers = [v - (1 << bits) if v >> (bits - 1) else v for v in values[0].tolist()]
    for opcode, function in (("neg", operator.neg), ("abs", abs)):
        body = f"cvt.u16.u32 %h1, %r1; {opcode}.{kind} {register}4, {register}1;" + out
        in_lanes_and_as_scalars(body, values, [function(n) & full for n in numbers])


@pytest.mark.parametrize(("kind", "register"), [("f32", "%r"), ("f64", "%d")])
def test_neg_and_abs_of_floats_touch_the_sign_alone(kind, register):
    bits, sign = BITS[kind], 1 << (BITS[kind] - 1)
    numbers = [float_bits(kind, x) for x in (1.5, -1.5, 0.0, -0.0, math.inf, -math.inf)] + [1, sign | 1]
    out = OUT32 if bits == 32 else ""
    for opcode, function in (("neg", lambda v: v ^ sign), ("abs", lambda v: v & ~sign)):
        body = f"{opcode}.{kind} {register}0, {register}1;" + out
        in_lanes_and_as_scalars(body, lanes(numbers), [function(v) for v in lanes(numbers)[0].tolist()])


# ---- integers of 16 and 64 bits ----


@pytest.mark.parametrize("bits", [16, 32, 64])
@pytest.mark.parametrize("sign", "us")
def test_arithmetic_of_integers_of_every_width(bits, sign):
    """The quotient by zero is all ones, as on NVIDIA's GPUs; the remainder is then the dividend."""
    full, register = (1 << bits) - 1, {16: "%h", 32: "%r", 64: "%d"}[bits]
    words = [full - 6, 2, 7, full, 1, 1 << (bits - 1), (1 << (bits - 1)) - 1, 0]
    cases = list(itertools.product(words, words))

    def number(v: int) -> int:
        return v - (1 << bits) if sign == "s" and v >> (bits - 1) else v

    def quotient(a: int, b: int) -> int:
        return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1) if b else full

    models = {
        "add": operator.add,
        "sub": operator.sub,
        "mul.lo": operator.mul,
        "mul.hi": lambda a, b: a * b >> bits,
        "div": quotient,
        "rem": lambda a, b: a - b * quotient(a, b) if b else a,
        "min": min,
        "max": max,
    }
    out = {16: "cvt.u64.u16 %d0, %h4;", 32: "cvt.u64.u32 %d0, %r4;", 64: "mov.b64 %d0, %d4;"}[bits]
    values = lanes(*zip(*cases, strict=True), [3, full], count=len(cases))
    for opcode, model in models.items():
        body = "cvt.u16.u32 %h1, %r1; cvt.u16.u32 %h2, %r2;"
        body += f"{opcode}.{sign}{bits} {register}4, {register}1, {register}2;" + out
        in_lanes_and_as_scalars(body, values, [model(number(a), number(b)) & full for a, b in cases])
    added = [3, number(full)] * (len(cases) // 2)
    for opcode in ("mad.lo", "mad.hi"):
        body = "cvt.u16.u32 %h1, %r1; cvt.u16.u32 %h2, %r2; cvt.u16.u32 %h3, %r3;"
        body += f"{opcode}.{sign}{bits} {register}4, {register}1, {register}2, {register}3;" + out
        model = models[opcode.replace("mad", "mul")]
        expected = [model(number(a), number(b)) + c & full for (a, b), c in zip(cases, added, strict=True)]
        in_lanes_and_as_scalars(body, values, expected)
    if bits < 64:
        wide = {16: ("%r4", "cvt.u64.u32 %d0, %r4;"), 32: ("%d0", "")}[bits]
        body = "cvt.u16.u32 %h1, %r1; cvt.u16.u32 %h2, %r2;"
        body += f"mul.wide.{sign}{bits} {wide[0]}, {register}1, {register}2;" + wide[1]
        expected = [number(a) * number(b) & ((1 << 2 * bits) - 1) for a, b in cases]
        in_lanes_and_as_scalars(body, values, expected)


@pytest.mark.parametrize("clamp", [True, False])
def test_bmsk_is_what_its_pseudocode_says(clamp):
    """PTX ISA 9.7.1.24, line by line."""

    def reference(a: int, b: int) -> int:
        ones, a1, b1 = M32, a & 31, b & 31
        first, total = ones << a1 & M32, a1 + b1
        behind = ones << total & M32 if total < 32 else 0
        if clamp and a >= 32:
            first = behind = 0
        if clamp and b >= 32:
            behind = 0
        return first & ~behind

    cases = list(itertools.product([0, 1, 5, 24, 31, 32, 33, M32], [0, 3, 20, 31, 32, 63, 64, M32]))
    body = f"bmsk.{'clamp' if clamp else 'wrap'}.b32 %r0, %r1, %r2;" + OUT32
    for some in (cases[:32], cases[32:]):
        in_lanes_and_as_scalars(body, lanes(*zip(*some, strict=True)), [reference(*pair) for pair in some])


# ---- conversions between integers (PTX ISA 9.7.9.21) ----

INTEGERS = [f"{sign}{bits}" for sign in "us" for bits in (8, 16, 32, 64)]
EDGES = [0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000, M32, 1 << 63, M64, 0x8182838485868788]


@pytest.mark.parametrize("to", INTEGERS)
def test_integers_become_integers(to):
    """The value is truncated to the narrower type, and extended to the register as the destination's sign says."""
    for source in INTEGERS:
        wide, narrow = BITS[to], BITS[source]
        given = {16: "%h1", 64: "%d1"}.get(narrow, "%r1")
        taken = "%d0" if wide == 64 else "%r4"
        body = f"cvt.u16.u64 %h1, %d1; cvt.{to}.{source} {taken}, {given};"

        def reference(v: int, wide: int = wide, narrow: int = narrow, source: str = source) -> int:
            v &= (1 << narrow) - 1
            v -= (1 << narrow) if source[0] == "s" and v >> (narrow - 1) else 0
            v &= (1 << wide) - 1
            v -= (1 << wide) if to[0] == "s" and v >> (wide - 1) else 0
            return v & (M64 if wide == 64 else M32)

        expected = [reference(v) for v in lanes(EDGES)[0].tolist()]
        in_lanes_and_as_scalars(body + ("" if wide == 64 else "cvt.u64.u32 %d0, %r4;"), lanes(EDGES), expected)


@pytest.mark.parametrize("to", INTEGERS)
def test_floats_become_integers_as_wide_as_the_register(to):
    """-2.7 and 99.5, and what does not fit: the nearest end of the type, extended by its sign."""
    bits, signed = BITS[to], to[0] == "s"
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
    for source, taken in itertools.product(("f32", "f64"), ("%d0", "%r4") if bits < 64 else ("%d0",)):
        expected = [max(low, -2), 99, low, high] + [0] * 28
        values = lanes([float_bits(source, x) for x in (-2.7, 99.5, -1e30, 1e30)] + [0] * 28)
        body = f"cvt.rzi.{to}.{source} {taken}, {'%r1' if source == 'f32' else '%d1'};"
        body += "" if taken == "%d0" else "cvt.u64.u32 %d0, %r4;"
        full = M64 if taken == "%d0" else M32
        in_lanes_and_as_scalars(body, values, [v & full for v in expected])


# ---- atomics of 64 bits and of floats ----

TOP = 1 << 63
ATOMICS_64 = [
    # operation, old, b, new
    ("add.u64", M64, 2, 1),
    ("and.b64", TOP | 0b1100, TOP | 0b1010, TOP | 0b1000),
    ("or.b64", TOP | 0b1100, 0b1010, TOP | 0b1110),
    ("xor.b64", TOP | 0b1100, TOP | 0b1010, 0b0110),
    ("exch.b64", 7, TOP | 9, TOP | 9),
    ("min.u64", TOP, 3, 3),
    ("min.s64", TOP, 3, TOP),
    ("max.u64", TOP, 3, TOP),
    ("max.s64", TOP, 3, 3),
    ("add.f64", 0x3FF8000000000000, 0x4000000000000000, 0x400C000000000000),
]


@pytest.mark.parametrize("space", ["shared", "global"])
def test_atomics_of_64_bits(space):
    place = {"shared": "%r3", "global": "%rd3"}[space]
    for operation, old, b, new in ATOMICS_64:
        for opcode in ("atom", "red"):
            written = f"{opcode}.{space}.{operation} {'%rd6, ' if opcode == 'atom' else ''}[{place}], %rd5;"
            body = f"""
            setp.ne.u32 %p1, %r0, 0; @%p1 exit;
            mov.b32 %r3, words;
            add.s64 %rd3, %rd0, 64;
            mov.b64 %rd6, {old};
            st.{space}.b64 [{place}], %rd6;
            mov.b64 %rd5, {b};
            {written}
            ld.{space}.b64 %rd7, [{place}];
            st.global.v2.b64 [%rd0], {{%rd6, %rd7}};
            ret;
            """
            found = launch(body, words=32, module_scope=WORDS)
            assert found.device.download(found.out, np.uint64, 2).tolist() == [old, new], (opcode, operation)


# ---- matrices of 8 x 8 (PTX ISA 9.7.14.5.15 and .16) ----


def element(thread: int, half: int, transposed: bool) -> tuple[int, int]:
    """(row, column) of the element in a half of a thread's register."""
    place = (thread // 4, 2 * (thread % 4) + half)
    return place[::-1] if transposed else place


@pytest.mark.parametrize("matrices", [1, 2, 4])
@pytest.mark.parametrize("transposed", [False, True])
def test_matrices_are_loaded_and_stored_element_by_element(matrices, transposed):
    registers = "{" + ", ".join(f"%r{10 + n}" for n in range(matrices)) + "}"
    form = f"sync.aligned.m8n8.x{matrices}{'.trans' if transposed else ''}.shared.b16"
    rows = "mov.b32 %r3, words; shl.b32 %r4, %r0, 4; add.u32 %r5, %r3, %r4;"
    # Half-word w of shared memory holds w: 8 to a row of 16 bytes, 64 to a matrix.
    fill = "mul.lo.u32 %r6, %r0, 0x80008; add.u32 %r6, %r6, 0x10000;" + "".join(
        f"add.u32 %r7, %r6, {0x20002 * n}; st.shared.b32 [%r5+{4 * n}], %r7;" for n in range(4)
    )
    out = "".join(f"st.global.b32 [%rd4+{128 * n}], %r{10 + n};" for n in range(matrices))
    address = "mul.wide.u32 %rd4, %r0, 4; add.u64 %rd4, %rd4, %rd0;"
    body = rows + fill + f"bar.warp.sync -1; ldmatrix.{form} {registers}, [%r5];" + address + out + "ret;"
    found = launch(body, words=128, module_scope=WORDS).words(32 * matrices).view(np.uint16).reshape(matrices, 32, 2)
    for m, thread, half in np.ndindex(found.shape):
        row, column = element(thread, half, transposed)
        assert found[m, thread, half] == 64 * m + 8 * row + column

    # Thread t, half h of register m holds 64 m + 2 t + h.
    give = "mul.lo.u32 %r6, %r0, 0x20002; add.u32 %r6, %r6, 0x10000;"
    give += "".join(f"add.u32 %r{10 + n}, %r6, {0x400040 * n};" for n in range(matrices))
    read = "shl.b32 %r7, %r0, 2; add.u32 %r7, %r7, %r3;"
    read += "".join(f"ld.shared.b32 %r{20 + n}, [%r7+{128 * n}];" for n in range(matrices))
    body = rows + give + f"stmatrix.{form} [%r5], {registers}; bar.warp.sync -1;" + read + address
    body += out.replace("%r1", "%r2") + "ret;"
    stored = launch(body, words=128, module_scope=WORDS).words(32 * matrices).view(np.uint16).reshape(matrices, 8, 8)
    for m, thread, half in np.ndindex(matrices, 32, 2):
        assert stored[m][element(thread, half, transposed)] == 64 * m + 2 * thread + half


# ---- addresses of the cluster ----


@pytest.mark.parametrize("rank", [0, 1, 3])
def test_addresses_tell_the_cta_they_lie_in(rank):
    """mapa and getctarank, of a register and of a variable, for all lanes and for each lane."""
    body = f"""
    mov.b32 %r3, words;
    mov.b32 %r5, {rank};
    mapa.shared::cluster.u32 %r6, %r3, %r5;
    getctarank.shared::cluster.u32 %r7, %r6;
    cvta.shared::cluster.u64 %rd4, %r6;
    getctarank.u64 %r8, %rd4;
    cvta.shared.u64 %rd5, %r3;
    mapa.u64 %rd6, %rd5, %r5;
    getctarank.u64 %r9, %rd6;
    and.b32 %r10, %r0, 3;
    mapa.shared::cluster.u32 %r11, %r3, %r10;
    getctarank.shared::cluster.u32 %r12, %r11;
    mapa.u64 %rd7, %rd5, %r10;
    getctarank.u64 %r13, %rd7;
    getctarank.shared::cluster.u32 %r14, words;
    mad.lo.u32 %r1, %r7, 10, %r8;
    mad.lo.u32 %r1, %r1, 10, %r9;
    mad.lo.u32 %r1, %r1, 10, %r12;
    mad.lo.u32 %r1, %r1, 10, %r13;
    mad.lo.u32 %r1, %r1, 10, %r14;
    mov.u32 %r20, %cluster_ctarank;
    mul.lo.u32 %r20, %r20, 32; add.u32 %r0, %r0, %r20;
    """.replace("cvta.shared::cluster.u64 %rd4, %r6;", "cvt.u64.u32 %rd4, %r6; cvta.shared::cluster.u64 %rd4, %rd4;")
    body = body.replace("cvta.shared.u64 %rd5, %r3;", "cvt.u64.u32 %rd5, %r3; cvta.shared.u64 %rd5, %rd5;")
    found = launch(body + STORE_R1 + "ret;", grid=4, cluster=4, words=128, module_scope=WORDS).words(128).reshape(4, 32)
    for own in range(4):
        assert found[own].tolist() == [rank * 111000 + lane % 4 * 110 + own for lane in range(32)]


# ---- conversions that are not implemented ----


@pytest.mark.parametrize("types", ["rn.f16x2.e4m3x2", "rn.satfinite.e4m3x2.f32", "rna.tf32.f32"])
def test_conversions_of_other_types_are_refused_where_they_are_executed(types):
    body = f"setp.eq.u32 %p1, %r0, 99; mov.b32 %r1, 4; @%p1 cvt.{types} %r1, %r0;"
    assert (run(body + STORE_R1 + "ret;") == 4).all()


# ---- registers of 128 bits ----


@pytest.mark.parametrize("low", ["0x1122334455667788", "%rd4"])
@pytest.mark.parametrize("high", ["0x99AABBCCDDEEFF00", "%rd5"])
def test_the_halves_of_128_bits_may_be_alike_in_all_lanes_or_not(low, high):
    body = f"""
    .reg .b128 %q<4>;
    mul.wide.u32 %rd4, %r0, 0x10001;
    not.b64 %rd5, %rd4;
    mov.b64 %rd6, {low};
    mov.b64 %rd7, {high};
    mov.b128 %q1, {{%rd6, %rd7}};
    mov.b128 {{%rd8, %rd9}}, %q1;
    mul.wide.u32 %rd1, %r0, 16; add.u64 %rd1, %rd1, %rd0;
    st.global.v2.b64 [%rd1], {{%rd8, %rd9}};
    ld.global.b128 %q2, [%rd1];
    mov.b128 {{%rd10, %rd11}}, %q2;
    st.global.v2.b64 [%rd1+512], {{%rd11, %rd10}};
    ret;
    """
    found = launch(body, words=256).words(256).view(np.uint64).reshape(2, 32, 2)
    lane = (LANES * 0x10001).astype(np.uint64)
    expected = np.stack([lane if x == "%rd4" else ~lane if x == "%rd5" else np.full(32, int(x, 16), np.uint64)
                         for x in (low, high)], axis=1)  # fmt: skip
    assert (found[0] == expected).all() and (found[1] == expected[:, ::-1]).all()
