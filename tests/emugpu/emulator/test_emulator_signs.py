"""Signed and unsigned, narrow and wide: every expected number here was written down by hand."""

from __future__ import annotations

import numpy as np
import pytest
from ptx_programs import STORE_R1, WORDS, launch, run

LANES = np.arange(32)

# ---- loads into wider registers ----

WORD = 0x8182F3F4
"""Bytes f4 f3 82 81: as s8 -12, -13, -126, -127; as s16 -3084 (0xf3f4) and -32382 (0x8182)."""

INTO_32_BITS = [
    ("s8", 0, 0xFFFFFFF4),
    ("s8", 1, 0xFFFFFFF3),
    ("s8", 3, 0xFFFFFF81),
    ("u8", 0, 0xF4),
    ("b8", 2, 0x82),
    ("s16", 0, 0xFFFFF3F4),
    ("s16", 2, 0xFFFF8182),
    ("u16", 2, 0x8182),
    ("b16", 0, 0xF3F4),
    ("s32", 0, 0x8182F3F4),
    ("s8", 4, 0x7F),
    ("s16", 4, 0x107F),
]
INTO_64_BITS = [
    ("s8", 0, 0xFFFFFFFF_FFFFFFF4),
    ("s8", 4, 0x7F),
    ("u8", 0, 0xF4),
    ("s16", 2, 0xFFFFFFFF_FFFF8182),
    ("u16", 2, 0x8182),
    ("s32", 0, 0xFFFFFFFF_8182F3F4),
    ("u32", 0, 0x8182F3F4),
    ("b32", 0, 0x8182F3F4),
    ("s32", 4, 0x107F),
    ("s64", 0, 0x0000107F_8182F3F4),
]

STORED = f"""
mov.b32 %r3, words;
mov.b32 %r4, {WORD};
mov.b32 %r5, 0x107f;
st.shared.v2.b32 [%r3], {{%r4, %r5}};
shl.b32 %r6, %r0, 3;
add.u32 %r6, %r6, %r3;
st.shared.v2.b32 [%r6+64], {{%r4, %r5}};
mul.wide.u32 %rd4, %r0, 8;
add.u64 %rd4, %rd4, %rd0;
st.global.v2.b32 [%rd4], {{%r4, %r5}};
cvta.shared.u64 %rd5, words;
mov.b64 %rd6, map;
bar.warp.sync -1;
"""

PLACES = {
    "shared": "[%r3+{}]",
    "shared, each lane": "[%r6+64+{}]",
    "global": "[%rd0+{}]",
    "global, each lane": "[%rd4+{}]",
    "generic": "[%rd5+{}]",
    "shared::cluster": "[%r3+{}]",
    "param": "[%rd6+{}]",
}


def load(place: str, kind: str, offset: int, register: str) -> str:
    space = place.split(",")[0]
    where = PLACES[place].format(offset).replace("+64+", "+") if offset == 0 else PLACES[place].format(offset)
    if place == "shared, each lane":
        where = f"[%r6+{64 + offset}]"
    return f"ld{'' if space == 'generic' else '.' + space}.{kind} {register}, {where};"


PARAMETER = WORD.to_bytes(4, "little") + (0x107F).to_bytes(4, "little") + bytes(120)


@pytest.mark.parametrize("place", PLACES)
def test_a_load_extends_to_the_width_of_its_register(place):
    options = dict(module_scope=WORDS, parameters=["map map"], arguments=[PARAMETER], words=64)
    for kind, offset, expected in INTO_32_BITS:
        body = STORED + load(place, kind, offset, "%r1") + "bar.warp.sync -1;"
        assert (launch(body + STORE_R1 + "ret;", **options).words(32) == expected).all(), (kind, offset)
    for kind, offset, expected in INTO_64_BITS:
        for half, shift in ((expected & 0xFFFFFFFF, 0), (expected >> 32, 32)):
            body = STORED + load(place, kind, offset, "%rd9") + f"shr.u64 %rd9, %rd9, {shift}; cvt.u32.u64 %r1, %rd9;"
            assert (launch(body + STORE_R1 + "ret;", **options).words(32) == half).all(), (kind, offset, shift)


def test_a_store_writes_the_low_bytes_of_a_wider_register():
    body = """
    mov.b32 %r3, words;
    mov.b32 %r4, 0;
    st.shared.v2.b32 [%r3], {%r4, %r4};
    mov.b64 %rd4, 0x1122334455667788;
    mov.b32 %r5, 0xAABBCCDD;
    st.shared.b8 [%r3], %r5;
    st.shared.b16 [%r3+2], %r5;
    st.shared.b8 [%r3+5], %rd4;
    st.shared.b16 [%r3+6], %rd4;
    ld.shared.b32 %r6, [%r3];
    ld.shared.b32 %r7, [%r3+4];
    setp.lt.u32 %p1, %r0, 16;
    selp.b32 %r1, %r6, %r7, %p1;
    """
    out = run(body + STORE_R1 + "ret;", module_scope=WORDS)
    assert (out == np.where(LANES < 16, 0xCCDD00DD, 0x77888800)).all()


# ---- conversions ----

CONVERSIONS = [
    ("s64.s32", 0x80000000, 0xFFFFFFFF_80000000),
    ("s64.s32", 0xFFFFFFFF, 0xFFFFFFFF_FFFFFFFF),
    ("s64.s32", 0x7FFFFFFF, 0x7FFFFFFF),
    ("u64.s32", 0xFFFFFFFE, 0xFFFFFFFF_FFFFFFFE),
    ("s64.u32", 0xFFFFFFFE, 0xFFFFFFFE),
    ("u64.u32", 0x80000000, 0x80000000),
    ("s64.s8", 0x1280, 0xFFFFFFFF_FFFFFF80),
    ("s64.u8", 0x1280, 0x80),
    ("s32.s8", 0x12FF, 0xFFFFFFFF),
    ("u32.u8", 0x12FF, 0xFF),
    ("s32.s16", 0x18000, 0xFFFF8000),
    ("u32.s16", 0x1FFFE, 0xFFFFFFFE),
    ("s32.u16", 0x1FFFE, 0xFFFE),
]


@pytest.mark.parametrize(("types", "value", "expected"), CONVERSIONS)
@pytest.mark.parametrize("way", ["one value", "a value for each lane"])
def test_a_conversion_keeps_the_value(types, value, expected, way):
    wide, narrow = types.split(".")[0][1:] == "64", types.split(".")[1][1:] == "16"
    source = "cvt.u16.u32 %rs1, %r4;" if narrow else ""
    give = f"mov.b32 %r4, {value};"
    if way != "one value":
        give += "setp.gt.u32 %p1, %r0, 99; @%p1 mov.b32 %r4, %r0; xor.b32 %r4, %r4, %r0; xor.b32 %r4, %r4, %r0;"
    register = "%rd4" if wide else "%r5"
    body = give + source + f"cvt.{types} {register}, {'%rs1' if narrow else '%r4'};"
    low = "cvt.u32.u64 %r1, %rd4;" if wide else "mov.b32 %r1, %r5;"
    assert (run(body + low + STORE_R1 + "ret;") == expected & 0xFFFFFFFF).all()
    if wide:
        assert (
            run(body + "shr.u64 %rd4, %rd4, 32; cvt.u32.u64 %r1, %rd4;" + STORE_R1 + "ret;") == expected >> 32
        ).all()


# ---- arithmetic that depends on the sign ----

MINUS_SEVEN, MINUS_ONE, MINUS_TWO = (1 << 32) - 7, (1 << 32) - 1, (1 << 32) - 2

ARITHMETIC = [
    ("min.s32", MINUS_ONE, 1, MINUS_ONE),
    ("min.s32", 1, MINUS_ONE, MINUS_ONE),
    ("min.s32", MINUS_SEVEN, MINUS_TWO, MINUS_SEVEN),
    ("min.s32", 0x80000000, 0x7FFFFFFF, 0x80000000),
    ("min.u32", MINUS_ONE, 1, 1),
    ("max.s32", MINUS_ONE, 1, 1),
    ("max.s32", MINUS_SEVEN, MINUS_TWO, MINUS_TWO),
    ("max.u32", MINUS_ONE, 1, MINUS_ONE),
    ("div.s32", MINUS_SEVEN, 2, (1 << 32) - 3),
    ("div.u32", MINUS_SEVEN, 2, 0x7FFFFFFC),
    ("rem.s32", MINUS_SEVEN, 2, MINUS_ONE),
    ("rem.s32", 7, MINUS_TWO, 1),
    ("rem.u32", MINUS_SEVEN, 2, 1),
    ("shr.s32", MINUS_SEVEN, 1, (1 << 32) - 4),
    ("shr.u32", MINUS_SEVEN, 1, 0x7FFFFFFC),
    ("shr.s32", 0x80000000, 40, MINUS_ONE),
    ("mul.hi.s32", MINUS_ONE, 5, MINUS_ONE),
    ("mul.hi.u32", MINUS_ONE, 5, 4),
]


@pytest.mark.parametrize(("opcode", "a", "b", "expected"), ARITHMETIC)
def test_arithmetic_by_sign(opcode, a, b, expected):
    give = f"mov.b32 %r4, {a}; mov.b32 %r5, {b};"
    mixed = give + "setp.gt.u32 %p1, %r0, 99; @%p1 mov.b32 %r4, %r0; xor.b32 %r5, %r5, %r0; xor.b32 %r5, %r5, %r0;"
    for body in (give, mixed):
        assert (run(body + f"{opcode} %r1, %r4, %r5;" + STORE_R1 + "ret;") == expected).all()


COMPARISONS = [
    ("lt.s32", MINUS_ONE, 1, True),
    ("lt.u32", MINUS_ONE, 1, False),
    ("ge.s32", MINUS_ONE, 1, False),
    ("gt.s32", MINUS_TWO, MINUS_SEVEN, True),
    ("le.s32", 0x80000000, 0x7FFFFFFF, True),
    ("hi.u32", MINUS_ONE, 1, True),
]


@pytest.mark.parametrize(("test", "a", "b", "expected"), COMPARISONS)
def test_comparisons_by_sign(test, a, b, expected):
    give = f"mov.b32 %r4, {a}; mov.b32 %r5, {b};"
    mixed = give + "xor.b32 %r4, %r4, %r0; xor.b32 %r4, %r4, %r0;"
    for body in (give, mixed):
        assert (
            run(body + f"setp.{test} %p1, %r4, %r5; selp.b32 %r1, 1, 0, %p1;" + STORE_R1 + "ret;") == expected
        ).all()


def test_signed_minima_of_other_widths():
    body = """
    mov.b16 %rs1, 0xFFFE;
    mov.b16 %rs2, 3;
    min.s16 %rs3, %rs1, %rs2;
    cvt.u32.u16 %r4, %rs3;
    mov.b64 %rd4, -5;
    mov.b64 %rd5, 6;
    min.s64 %rd6, %rd5, %rd4;
    cvt.u32.u64 %r5, %rd6;
    shl.b32 %r4, %r4, 16;
    and.b32 %r5, %r5, 65535;
    or.b32 %r1, %r4, %r5;
    """
    assert (run(body + STORE_R1 + "ret;") == 0xFFFEFFFB).all()


def test_a_signed_minimum_of_different_values_in_every_lane():
    body = "sub.s32 %r4, %r0, 16; mov.b32 %r5, -3; min.s32 %r1, %r4, %r5;"
    assert (run(body + STORE_R1 + "ret;").view(np.int32) == np.minimum(LANES - 16, -3)).all()


@pytest.mark.parametrize(("operation", "expected"), [("min", -16), ("max", 15)])
@pytest.mark.parametrize("kind", ["atom", "red", "redux"])
def test_signed_minima_and_maxima_across_lanes(kind, operation, expected):
    across = {
        "atom": f"atom.shared.{operation}.s32 %r7, [%r3], %r4;",
        "red": f"red.shared.{operation}.s32 [%r3], %r4;",
        "redux": f"redux.sync.{operation}.s32 %r8, %r4, -1; st.shared.b32 [%r3], %r8;",
    }
    body = f"""
    mov.b32 %r3, words;
    mov.b32 %r5, 2;
    st.shared.b32 [%r3], %r5;
    sub.s32 %r4, %r0, 16;
    bar.warp.sync -1;
    {across[kind]}
    bar.warp.sync -1;
    ld.shared.b32 %r1, [%r3];
    """
    assert (run(body + STORE_R1 + "ret;", module_scope=WORDS).view(np.int32) == expected).all()


@pytest.mark.parametrize("bits", [16, 32, 64])
def test_constant_shifts_past_the_width_leave_nothing(bits):
    """In all lanes alike and lane by lane (PTX ISA 9.7.8.9 and 9.7.8.10)."""
    register = {16: "%rs", 32: "%r", 64: "%rd"}[bits]
    for amount in (bits - 1, bits, bits + 1, 255, 0xFFFFFFFF):
        for source in ("mov.b32 %r4, -1;", "not.b32 %r4, %r0; or.b32 %r4, %r4, %r0;"):
            body = f"""
            {source}
            cvt.u16.u32 %rs4, %r4;
            cvt.s64.s32 %rd4, %r4;
            shl.b{bits} {register}5, {register}4, {amount};
            shr.u{bits} {register}6, {register}4, {amount};
            setp.eq.u{bits} %p1, {register}5, 0;
            selp.b32 %r1, 0, 1, %p1;
            setp.eq.u{bits} %p2, {register}6, 0;
            selp.b32 %r2, 0, 2, %p2;
            or.b32 %r1, %r1, %r2;
            """
            assert (run(body + STORE_R1 + "ret;") == (3 if amount < bits else 0)).all(), (amount, source)
