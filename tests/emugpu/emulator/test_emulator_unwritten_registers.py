"""Registers that some lanes have never written: computing on them is tolerated, using them in those lanes is not.

"Using" is storing, addressing memory, and deciding a branch or a guard.
"""

from __future__ import annotations

import numpy as np
import pytest
from ptx_programs import ALLOCATE, FREE, STORE_R1, WORDS, launch, run

from emugpu.emulator import Fault

LANES = np.arange(32)
LOW = LANES < 16

LOW_LANES = "mov.b32 %r3, words; setp.lt.u32 %p1, %r0, 16;\n"
"""%p1: lanes 0 to 15; %r3: shared memory."""

BY_GUARD = LOW_LANES + "@%p1 add.u32 %r2, %r0, 5;\n"
BY_BRANCH = LOW_LANES + "@!%p1 bra JOIN; add.u32 %r2, %r0, 5; JOIN:\n"
BY_LOOP = (
    LOW_LANES
    + """
mov.b32 %r4, 3;
LOOP: @!%p1 bra JOIN;
add.u32 %r2, %r0, 5;
sub.u32 %r4, %r4, 1; setp.ne.u32 %p2, %r4, 0; @%p2 bra LOOP;
JOIN:
"""
)
WRITTEN_IN_LOW_LANES = {"under a guard": BY_GUARD, "on one side of a branch": BY_BRANCH, "in a loop": BY_LOOP}
"""%r2 = tid + 5, in lanes 0 to 15 only."""

ways = pytest.mark.parametrize("before", WRITTEN_IN_LOW_LANES.values(), ids=WRITTEN_IN_LOW_LANES)


# ---- what is tolerated ----


ALLOWED = {
    "stored": ("mov.b32 %r1, 1; @%p1 mov.b32 %r1, %r2;", np.where(LOW, LANES + 5, 1)),
    "computed with": (
        "add.u32 %r5, %r2, 1; mul.lo.u32 %r5, %r5, 3; cvt.u64.u32 %rd5, %r5; shl.b64 %rd5, %rd5, 1;"
        "cvt.u32.u64 %r6, %rd5; mov.b32 %r1, 1; @%p1 mov.b32 %r1, %r6;", np.where(LOW, (LANES + 6) * 6, 1)),
    "an address": (
        "shl.b32 %r4, %r0, 2; add.u32 %r4, %r4, %r3; st.shared.b32 [%r4+20], %r0;"
        "shl.b32 %r6, %r2, 2; add.u32 %r6, %r6, %r3; mov.b32 %r1, 1; @%p1 ld.shared.b32 %r1, [%r6];",
        np.where(LOW, LANES, 1)),
    "a branch": (
        "mov.b32 %r1, 1; @!%p1 bra OVER; setp.lt.u32 %p3, %r2, 10; @%p3 bra OVER; mov.b32 %r1, 2; OVER:",
        np.where(LOW & (LANES >= 5), 2, 1)),
    "read, and nothing made of it": (
        "add.u32 %r5, %r2, 1; setp.lt.u32 %p4, %r5, 9; mov.b32 %r6, %r5; mov.b32 %r1, 4;", LANES * 0 + 4),
    "selected": ("selp.b32 %r1, %r2, 9, %p1;", np.where(LOW, LANES + 5, 9)),
}  # fmt: skip
"""What the lanes that wrote %r2 may do with it, and %r1 then."""


@ways
@pytest.mark.parametrize("use", ALLOWED)
def test_a_register_may_be_used_by_the_lanes_that_wrote_it(before, use):
    body, expected = ALLOWED[use]
    assert (run(before + body + STORE_R1 + "ret;", module_scope=WORDS) == expected).all()


def test_a_register_written_under_a_guard_that_never_holds_may_be_read():
    body = """
    setp.gt.u32 %p1, %r0, 99;
    @%p1 mov.b32 %r2, 5;
    @%p1 mov.b64 %rd2, 5;
    @%p1 setp.eq.u32 %p2, %r0, 1;
    add.u32 %r4, %r2, 1;
    add.u64 %rd4, %rd2, %rd2;
    selp.b32 %r5, 1, 0, %p2;
    not.pred %p3, %p2;
    setp.lt.s32 %p4, %r2, 3;
    mov.b32 %r1, 6;
    @%p1 st.global.b32 [%rd2], %r2;
    """
    assert (run(body + STORE_R1 + "ret;") == 6).all()


def test_a_register_written_on_a_side_that_nobody_takes_may_be_read():
    body = """
    setp.le.u32 %p1, %r0, 99; @%p1 bra OVER;
    mov.b32 %r2, 5;
    mov.b64 %rd2, 5;
    setp.eq.u32 %p2, %r0, 1;
    OVER: add.u32 %r4, %r2, 1;
    add.u64 %rd4, %rd2, %rd2;
    selp.b32 %r5, 1, 0, %p2;
    setp.lt.s32 %p4, %r2, 3;
    mov.b32 %r1, 6;
    @!%p1 st.global.b32 [%rd2], %r2;
    """
    assert (run(body + STORE_R1 + "ret;") == 6).all()


def test_one_thread_alone_may_read_what_it_has_not_written():
    body = """
    setp.eq.u32 %p1, %r0, 1;
    @%p1 mov.b32 %r2, 5;
    add.u32 %r4, %r2, 1;
    setp.lt.s32 %p4, %r4, 3;
    mov.b32 %r1, 6;
    @%p1 mov.b32 %r1, %r4;
    """
    assert (run(body + STORE_R1 + "ret;", threads=1) == 6).all()


def test_one_lane_may_hand_its_value_to_the_others():
    body = """
    setp.eq.u32 %p1, %r0, 7;
    @%p1 mov.b32 %r2, 1234;
    shfl.sync.idx.b32 %r1, %r2, 7, 31, -1;
    """
    assert (run(body + STORE_R1 + "ret;") == 1234).all()


def test_a_register_completed_by_a_second_write_may_be_stored():
    body = LOW_LANES + "@%p1 mov.b32 %r1, 3; @!%p1 mov.b32 %r1, 4;"
    assert (run(body + STORE_R1 + "ret;", module_scope=WORDS) == np.where(LOW, 3, 4)).all()


def test_lanes_never_see_the_value_of_another_lane():
    """The values of lanes 0 to 15 are all the same, so a machine that keeps one number for all would not notice."""
    body = LOW_LANES + "@%p1 mov.b32 %r2, 77; add.u32 %r4, %r2, 1;"
    with pytest.raises(Fault, match=r"register %r[124]\b"):
        run(body + "mov.b32 %r1, %r4;" + STORE_R1 + "ret;", module_scope=WORDS)
    good = body + "mov.b32 %r1, 0; @%p1 mov.b32 %r1, %r4;"
    assert (run(good + STORE_R1 + "ret;", module_scope=WORDS) == np.where(LOW, 78, 0)).all()


# ---- what is not ----

ADDRESS = "mul.wide.u32 %rd1, %r0, 4; add.u64 %rd1, %rd1, %rd0; shl.b32 %r4, %r0, 2; add.u32 %r4, %r4, %r3;\n"
WORD = "st.shared.b32 [%r4], %r0; st.shared.b32 [%r4+128], %r0; shl.b32 %r5, %r2, 2; add.u32 %r5, %r5, %r3;"
STORES = [
    "st.global.b32 [%rd1], %r2;",
    "st.shared.b32 [%r4], %r2;",
    "st.shared::cluster.b32 [%r4], %r2;",
    "st.b32 [%rd1], %r2;",
    "st.global.b8 [%rd1], %r2;",
    "add.u32 %r7, %r4, %r4; sub.u32 %r7, %r7, %r3; mov.b32 %r5, 0; st.shared.v2.b32 [%r7], {%r5, %r2};",
    "red.global.add.u32 [%rd1], %r2;",
    "atom.global.exch.b32 %r6, [%rd1], %r2;",
]
USES = {
    **dict.fromkeys(STORES, "register %r2"),
    "add.u32 %r5, %r2, 1; st.global.b32 [%rd1], %r5;": "register %r[25]",
    WORD + "ld.shared.b32 %r6, [%r5];": "register %r[25]",
    WORD + "st.shared.b32 [%r5], %r0;": "register %r[25]",
    WORD + "atom.shared.add.u32 %r6, [%r5], 1;": "register %r[25]",
    "setp.lt.u32 %p3, %r2, 10; @%p3 bra OVER; mov.b32 %r4, 1; OVER:": "(register|predicate) %(r2|p3)",
}
"""What the lanes that did not write %r2 may not do with it, and what the report names."""


@ways
@pytest.mark.parametrize(("use", "named"), USES.items(), ids=USES)
def test_storing_it_addressing_or_deciding_with_it_is_reported(before, use, named):
    with pytest.raises(Fault, match=named + r"\b"):
        launch(before + ADDRESS + use + "ret;", module_scope=WORDS, initial=LANES)


def test_addressing_global_memory_with_it_is_reported():
    body = LOW_LANES + "mul.wide.u32 %rd2, %r0, 4; @%p1 add.u64 %rd3, %rd2, %rd0; st.global.b32 [%rd3], %r0; ret;"
    with pytest.raises(Fault, match=r"register %rd3\b"):
        run(body, module_scope=WORDS)


@pytest.mark.parametrize(
    "use",
    [
        "@%p3 bra OVER; mov.b32 %r4, 1; OVER:",
        "@%p3 st.shared.b32 [%r3], %r0;",
        "@!%p3 mov.b32 %r4, 1; st.shared.b32 [%r3], %r4;",
        "@%p3 exit;",
    ],
)
def test_deciding_with_a_predicate_that_some_lanes_never_wrote_is_reported(use):
    with pytest.raises(Fault, match=r"(register|predicate) %p3\b"):
        run(LOW_LANES + "@%p1 setp.lt.u32 %p3, %r0, 8;" + use + "ret;", module_scope=WORDS)


def test_a_value_from_a_lane_that_never_wrote_it_is_reported_when_it_is_stored():
    body = LOW_LANES + "@%p1 mov.b32 %r2, 1; shfl.sync.idx.b32 %r1, %r2, 20, 31, -1;"
    with pytest.raises(Fault, match=r"register %r[12]\b"):
        run(body + STORE_R1 + "ret;", module_scope=WORDS)


def test_the_report_names_a_lane():
    body = "setp.ne.u32 %p1, %r0, 21; @%p1 mov.b32 %r1, 1;"
    with pytest.raises(Fault, match=r"lane 21\b"):
        run(body + STORE_R1 + "ret;")


# ---- registers that tcgen05.ld defines on one way only ----

ONE_WARP_LOADS = (
    "setp.ge.u32 %p1, %r0, 32; @%p1 bra MEET;"
    + ALLOCATE
    + """
add.u32 %r8, %r0, 50;
tcgen05.st.sync.aligned.32x32b.x2.b32 [%r2], {%r0, %r8};
tcgen05.wait::st.sync.aligned;
tcgen05.ld.sync.aligned.32x32b.x2.b32 {%r10, %r11}, [%r2];
MEET: bar.sync 0;
"""
)
AND_FREES = "tcgen05.wait::ld.sync.aligned; mad.lo.u32 %r1, %r10, 100, %r11;" + FREE


def test_what_one_warp_has_loaded_before_a_barrier_it_may_use_behind_it():
    body = ONE_WARP_LOADS + "mov.b32 %r1, 5; @%p1 bra STORE;" + AND_FREES + "STORE:" + STORE_R1 + "ret;"
    lane = np.arange(32)
    for options in ({}, {"schedule": "random", "seed": 4}):
        out = launch(body, threads=64, module_scope=WORDS, **options).words(64)
        assert (out == np.concatenate([101 * lane + 50, np.full(32, 5)])).all()


def test_what_another_warp_has_loaded_is_still_undefined():
    body = ONE_WARP_LOADS + "@!%p1 bra LOADED; add.u32 %r1, %r11, 1;" + STORE_R1 + "ret; LOADED:" + AND_FREES + "ret;"
    with pytest.raises(Fault, match="%r11, which was never written in lanes 0xffffffff"):
        launch(body, threads=64, module_scope=WORDS)


@pytest.mark.parametrize("choose", ["selp.b32 %r2, 3, 4, %p3;", "not.pred %p3, %p3; selp.b32 %r2, %r4, 4, %p3;"])
def test_a_predicate_that_was_never_written_may_choose_what_nobody_uses(choose):
    body = f"""
    mov.b32 %r4, 6;
    setp.gt.u32 %p1, %r0, 99; @!%p1 bra OVER;
    setp.eq.u32 %p3, %r0, 1;
    OVER: {choose}
    and.b32 %r5, %r0, 1; setp.eq.u32 %p2, %r5, 0; @%p2 bra EVEN;
    mov.b32 %r2, 8;
    EVEN: shr.u32 %r6, %r2, %r5;
    mov.b32 %r1, 7;
    """
    for options in ({}, {"schedule": "random", "seed": 1}):
        assert (launch(body + STORE_R1 + "ret;", **options).words(32) == 7).all()
