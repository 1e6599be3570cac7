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
    ("s8", 0, 0xFFFFFFF4), ("s8", 1, 0xFFFFFFF3), ("s8", 3, 0xFFFFFF81), ("u8", 0, 0xF4), ("b8", 2, 0x82),
    ("s16", 0, 0xFFFFF3F4), ("s16", 2, 0xFFFF8182), ("u16", 2, 0x8182), ("b16", 0, 0xF3F4), ("s32", 0, 0x8182F3F4),
    ("s8", 4, 0x7F), ("s16", 4, 0x107F),
]  # fmt: skip
INTO_64_BITS = [
    ("s8", 0, 0xFFFFFFFF_FFFFFFF4), ("s8", 4, 0x7F), ("u8", 0, 0xF4), ("s16", 2, 0xFFFFFFFF_FFFF8182),
    ("u16", 2, 0x8182), ("s32", 0, 0xFFFFFFFF_8182F3F4), ("u32", 0, 0x8182F3F4), ("b32", 0, 0x8182F3F4),
    ("s32", 4, 0x107F), ("s64", 0, 0x0000107F_8182F3F4),
]  # fmt: skip

STORED = f"""
mov.b32 %r3, words;
mov.b32 %r4, {WORD};
mov.b32 %r5, 0x107f;
st.shared.v2.b32 [%r3], {{%r4, %r5}};
shl.b32 %r6, %r0, 3; add.u32 %r6, %r6, %r3;
st.shared.v2.b32 [%r6+64], {{%r4, %r5}};
mul.wide.u32 %rd4, %r0, 8; add.u64 %rd4, %rd4, %rd0;
st.global.v2.b32 [%rd4], {{%r4, %r5}};
cvta.shared.u64 %rd5, words;
mov.b64 %rd6, map;
bar.warp.sync -1;
"""

PLACES = {
    "shared": "[%r3+{}]", "shared, each lane": "[%r6+64+{}]", "global": "[%rd0+{}]", "global, each lane": "[%rd4+{}]",
    "generic": "[%rd5+{}]", "shared::cluster": "[%r3+{}]", "param": "[%rd6+{}]",
}  # fmt: skip


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
    mov.b32 %r5, 0xAABBCCDD; st.shared.b8 [%r3], %r5;
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


# ---- across lanes, and past the width ----


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
    mov.b32 %r5, 2; st.shared.b32 [%r3], %r5;
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
