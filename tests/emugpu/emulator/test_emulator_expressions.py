"""The Python text of plain instructions, made from their micro-operations."""

from __future__ import annotations

import numpy as np
import pytest
from native_engine import outcome
from ptx_forms import module
from ptx_programs import STORE_R1, source

from emugpu.emulator import Module

TEXTS = {
    "and.b32 %r2, %r0, %r1;": "v0 = v1 & v2",
    "add.u32 %r2, %r0, %r1;": "v0 = (v1 + v2) & 4294967295",
    "add.u16 %h2, %h0, %h1;": "v0 = (v1 + v2) & 65535",
    "shl.b32 %r2, %r0, 5;": "v0 = (v1 << 5) & 4294967295",
    "shr.u32 %r2, %r0, 77;": "v0 = v1 >> 32",
    "shl.b32 %r2, %r0, %r1;": "v0 = carry_shift_left(v1, v2, 32)",
    "mov.b32 %r2, 7;": "v0 = 7",
    "setp.lt.s32 %p1, %r0, %r1;": "v0 = (v1 ^ 2147483648) < (v2 ^ 2147483648)",
    "selp.b32 %r2, %r0, 3, !%p1;": "v0 = select((v2 ^ True), v1, 3, 32)",
    "sad.s32 %r2, %r0, %r1, %r2;": "v0 = carry_sum_of_absolute_difference(v1, v2, v0, 32, True)",
    "lop3.b32 %r2, %r0, %r1, %r2, 0x96;": "v0 = lop3(v1, v2, v0, 150)",
    "cvt.u32.u16 %r0, %r1;": "v0 = v1 & 65535",
    # A value that is read twice gets a name.
    "setp.eq.u32 %p1|%p2, %r0, %r1;": "v0, v1 = (t0 := v2 == v3), t0 ^ True",
    # Both results are computed from the old registers.
    "add.cc.u32 %r0, %r0, %r1;": "v2, v0 = carry_sum_bits(v0, v1, 0, 32, False, True), "
    "carry_sum_bits(v0, v1, 0, 32, False, False)",
}  # fmt: skip
"""Registers are numbered in the order of their appearance."""


@pytest.mark.parametrize("form", TEXTS)
def test_the_text_is_what_one_would_write_by_hand(form):
    text = Module(module([form, "ret;"], "sm_90a")).code(None).source
    assert [line.strip() for line in text.splitlines() if " = " in line and "R[" not in line] == [TEXTS[form]]


@pytest.mark.parametrize("native", [False, True], ids=["python", "native"])
@pytest.mark.parametrize(
    ("form", "first", "second"),
    [
        ("setp.lt.and.u32 %p1|%p2, %r0, 20, !%p1;", lambda t, p: t < 20 and not p, lambda t, p: t >= 20 and not p),
        ("setp.lt.and.u32 %p1|%p1, %r0, 20, %p1;", lambda t, p: t >= 20 and p, lambda t, p: False),
    ],
)
def test_two_results_where_the_first_is_also_a_source(form, first, second, native):
    """Also if the source is negated; of two results in the same register, the second stays."""
    body = f"""
    setp.lt.u32 %p1, %r0, 25; setp.gt.u32 %p2, %r0, 99;
    {form}
    selp.b32 %r1, 1, 0, %p1; selp.b32 %r2, 2, 0, %p2; or.b32 %r1, %r1, %r2;
    """
    found = outcome(source(body + STORE_R1 + "ret;"), native)["out"]
    wanted = [first(t, t < 25) + 2 * second(t, t < 25) for t in range(32)]
    assert np.frombuffer(found, np.uint32)[:32].tolist() == wanted
