"""shfl.sync: which lane each mode reads, and that nobody reads a lane that does not take part (PTX ISA 9.7.9.6)."""

from __future__ import annotations

import numpy as np
import pytest
from ptx_programs import STORE_R1, launch, run

from emugpu.emulator import Device, Fault
from emugpu.emulator.native.library import library_for

LANES = np.arange(32)

SOURCES = {
    # mode, b, c: lane read by lane t, or t itself with a false predicate where that is out of range.
    ("idx", 5, 31): lambda t: 5,
    ("idx", 37, 31): lambda t: 5,
    ("idx", 3, 0x181F): lambda t: t // 8 * 8 + 3,
    ("idx", 11, 0x181F): lambda t: t // 8 * 8 + 3,
    ("idx", 9, 0x1007): lambda t: None if 9 > 7 else 9,
    ("up", 1, 0): lambda t: t - 1 if t >= 1 else None,
    ("up", 3, 0x1800): lambda t: t - 3 if t % 8 >= 3 else None,
    ("up", 32, 0): lambda t: t,
    ("down", 1, 31): lambda t: t + 1 if t < 31 else None,
    ("down", 3, 0x181F): lambda t: t + 3 if t % 8 < 5 else None,
    ("bfly", 1, 31): lambda t: t ^ 1,
    ("bfly", 16, 31): lambda t: t ^ 16,
    ("bfly", 3, 0x181F): lambda t: t ^ 3,
}
"""Taken from the pseudo-code of the ISA by hand."""


@pytest.mark.parametrize(("mode", "b", "c"), SOURCES)
@pytest.mark.parametrize("way", ["immediate", "register"])
def test_every_mode_reads_the_lane_of_the_isa(mode, b, c, way):
    operand = {"immediate": f"{b}, {c}", "register": "%r5, %r6"}[way]
    body = f"""
    mov.b32 %r5, {b};
    mov.b32 %r6, {c};
    add.u32 %r2, %r0, 100;
    shfl.sync.{mode}.b32 %r3|%p1, %r2, {operand}, -1;
    selp.b32 %r4, 1000, 0, %p1;
    add.u32 %r1, %r3, %r4;
    """
    sources = [SOURCES[mode, b, c](t) for t in range(32)]
    expected = [100 + t if s is None else 1100 + s for t, s in zip(range(32), sources, strict=True)]
    assert run(body + STORE_R1 + "ret;").tolist() == expected


def test_lanes_may_ask_for_different_lanes():
    body = """
    add.u32 %r2, %r0, 100;
    mul.lo.u32 %r5, %r0, 7;
    shfl.sync.idx.b32 %r1, %r2, %r5, 31, -1;
    """
    assert (run(body + STORE_R1 + "ret;") == 100 + LANES * 7 % 32).all()


OWN_BOUNDS = {
    # mode, b, c of lane t: lane read by lane t, or t itself with a false predicate where that is out of range.
    ("idx", 9, "%r0"): lambda t: 9 if t >= 9 else None,
    ("up", 3, "%r7"): lambda t: t - 3 if t >= t // 4 + 3 else None,
    ("down", 2, "%r7"): lambda t: t + 2 if t + 2 <= t // 4 else None,
    ("down", 1, "%r8"): lambda t: t + 1 if t + 1 <= (t | 3) else None,
    ("bfly", 1, "%r0"): lambda t: t ^ 1 if t & 1 else None,
    ("idx", 2, "%r9"): lambda t: 2 if t < 16 else t // 8 * 8 + 2,
}
"""Taken from the pseudo-code of the ISA by hand: %r7 = t / 4, %r8 = t | 3, %r9 = 31 in the lower half, 0x181f above."""


@pytest.mark.parametrize(("mode", "b", "c"), OWN_BOUNDS)
@pytest.mark.parametrize("engine", ["native", "python"])
def test_each_lane_has_bounds_of_its_own(mode, b, c, engine):
    """As in segmented sums: each lane passes the last lane of its own segment."""
    body = f"""
    shr.u32 %r7, %r0, 2; or.b32 %r8, %r0, 3; setp.lt.u32 %p2, %r0, 16; selp.b32 %r9, 31, 0x181f, %p2;
    add.u32 %r2, %r0, 100;
    shfl.sync.{mode}.b32 %r3|%p1, %r2, {b}, {c}, -1;
    shfl.sync.{mode}.b32 %r6, %r2, {b}, {c}, -1;
    selp.b32 %r4, 1000, 0, %p1;
    add.u32 %r1, %r3, %r4;
    setp.ne.u32 %p3, %r3, %r6;
    @%p3 trap;
    """
    sources = [OWN_BOUNDS[mode, b, c](t) for t in range(32)]
    expected = [100 + t if s is None else 1100 + s for t, s in zip(range(32), sources, strict=True)]
    found = launch(body + STORE_R1 + "ret;", device=Device(library=library_for(engine))).words(32)
    assert found.tolist() == expected


@pytest.mark.parametrize("engine", ["native", "python"])
def test_a_constant_may_be_shuffled(engine):
    body = "shfl.sync.down.b32 %r1|%p1, 5, 1, 31, -1; selp.b32 %r1, %r1, 6, %p1;" + STORE_R1 + "ret;"
    found = launch(body, device=Device(library=library_for(engine))).words(32)
    assert found.tolist() == [5] * 31 + [6]


def test_undefined_bounds_are_reported():
    with pytest.raises(Fault, match="never written"):
        run("shfl.sync.idx.b32 %r1, %r0, 1, %r9, -1;" + STORE_R1 + "ret;")


HALF = """
setp.lt.u32 %p1, %r0, 16;
add.u32 %r2, %r0, 100;
mov.b32 %r1, 1;
mov.b32 %r5, {b};
@!%p1 bra OVER;
{lane_operand}
shfl.sync.{mode}.b32 %r1, %r2, %r5, {c}, {mask};
OVER: bar.warp.sync -1;
"""
"""Lanes 0 to 15 shuffle among themselves."""

OUTSIDE = [("idx", 16, 31), ("idx", 31, 31), ("down", 1, 31), ("down", 16, 31), ("bfly", 16, 31), ("bfly", 31, 31)]


@pytest.mark.parametrize("mask", ["0x0000ffff"])
@pytest.mark.parametrize(("mode", "b", "c"), OUTSIDE)
def test_reading_a_lane_outside_the_member_mask_is_reported(mode, b, c, mask):
    body = HALF.format(mode=mode, b=b, c=c, mask=mask, lane_operand="")
    with pytest.raises(Fault, match=r"shfl\.sync(.|\n)*lane"):
        run(body + STORE_R1 + "ret;")


def test_one_lane_that_reads_outside_the_member_mask_is_reported():
    operand = "mov.b32 %r5, %r0; setp.eq.u32 %p2, %r0, 3; @%p2 mov.b32 %r5, 20;"
    body = HALF.format(mode="idx", b=0, c=31, mask="0x0000ffff", lane_operand=operand)
    with pytest.raises(Fault, match=r"\blane (3|20)\b"):
        run(body + STORE_R1 + "ret;")


@pytest.mark.parametrize("engine", ["native", "python"])
def test_what_is_read_from_outside_does_not_matter_unless_it_is_used(engine):
    """The sum of half a warp by a tree, which only lane 0 uses: lane 15 reads lanes 16 and above."""
    body = """
    setp.ge.u32 %p1, %r0, 16; mov.b32 %r1, %r0; @%p1 bra OVER;
    shfl.sync.down.b32 %r2, %r1, 8, 31, 0xffff; add.u32 %r1, %r1, %r2;
    shfl.sync.down.b32 %r2, %r1, 4, 31, 0xffff; add.u32 %r1, %r1, %r2;
    shfl.sync.down.b32 %r2, %r1, 2, 31, 0xffff; add.u32 %r1, %r1, %r2;
    shfl.sync.down.b32 %r2, %r1, 1, 31, 0xffff; add.u32 %r1, %r1, %r2;
    OVER: setp.ne.u32 %p2, %r0, {}; @%p2 exit; st.global.b32 [%rd0], %r1; ret;
    """
    device = Device(library=library_for(engine))
    assert launch(body.format(0), words=1, device=device).words(1)[0] == sum(range(16))
    with pytest.raises(Fault, match=r"by shfl\.sync from lane .*, which does not execute it, in lanes? ") as error:
        launch(body.format(15), words=1, device=device)
    assert error.value.rule == "convergence"


def test_reading_upward_from_outside_the_member_mask_is_reported():
    body = "setp.ge.u32 %p1, %r0, 16; @!%p1 bra OVER; shfl.sync.up.b32 %r1, %r0, 1, 0, 0xffff0000; OVER:"
    with pytest.raises(Fault, match=r"shfl\.sync(.|\n)*lane"):
        run("mov.b32 %r1, 1;" + body + STORE_R1 + "ret;")


@pytest.mark.parametrize(
    ("mode", "b", "c", "expected"),
    [
        ("idx", 9, 31, lambda t: 109),
        ("up", 1, 0, lambda t: 100 + max(t - 1, 0)),
        ("down", 1, 0x101F, lambda t: 100 + min(t + 1, 15)),
        ("bfly", 8, 31, lambda t: 100 + (t ^ 8)),
    ],
)
def test_half_a_warp_may_shuffle_among_itself(mode, b, c, expected):
    body = HALF.format(mode=mode, b=b, c=c, mask="0x0000ffff", lane_operand="")
    assert run(body + STORE_R1 + "ret;").tolist() == [expected(t) if t < 16 else 1 for t in range(32)]


def test_reading_a_lane_that_has_exited_is_reported():
    body = """
    setp.ge.u32 %p1, %r0, 24; @%p1 exit;
    shfl.sync.{} -1;
    """
    for shuffle in ("idx.b32 %r1, %r0, 30, 31,", "down.b32 %r1, %r0, 8, 31,", "bfly.b32 %r1, %r0, 16, 31,"):
        with pytest.raises(Fault, match=r"shfl\.sync(.|\n)*lane"):
            launch(body.format(shuffle) + STORE_R1 + "ret;")
    out = launch(body.format("up.b32 %r1, %r0, 1, 0,") + STORE_R1 + "ret;").words(24)
    assert (out == np.maximum(np.arange(24) - 1, 0)).all()


def test_a_shuffle_by_a_lane_outside_the_mask_is_reported():
    with pytest.raises(Fault, match=r"shfl\.sync"):
        run("shfl.sync.idx.b32 %r1, %r0, 0, 31, 0x0000ffff;" + STORE_R1 + "ret;")


def test_one_lane_alone_may_shuffle_with_itself():
    body = """
    mov.b32 %r1, 5;
    setp.eq.u32 %p1, %r0, 4; @!%p1 bra OVER;
    add.u32 %r2, %r0, 100;
    shfl.sync.idx.b32 %r1, %r2, 4, 31, 0x10;
    shfl.sync.bfly.b32 %r1, %r1, 0, 31, 0x10;
    OVER:
    """
    assert (run(body + STORE_R1 + "ret;") == np.where(LANES == 4, 104, 5)).all()
