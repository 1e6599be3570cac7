"""Instructions under a guard that holds for none or only some of a warp's lanes, above all those that block."""

from __future__ import annotations

import numpy as np
import pytest
from ptx_programs import STORE_R1, WORDS, launch, run, source

from emugpu.emulator import Deadlock, Device, Fault, Module, TensorMap

LANES = np.arange(32)
SCHEDULES = [("fifo", 0), *(("random", seed) for seed in range(6))]


def everywhere(body: str, **options) -> list[np.ndarray]:
    """``out`` under several schedules."""
    return [run(body + STORE_R1 + "ret;", schedule=s, seed=n, module_scope=WORDS, **options) for s, n in SCHEDULES]


# ---- mbarrier.try_wait ----

WAIT_IN_SOME_LANES = """
mov.b32 %r3, words;
mov.b32 %r1, 0;
setp.ne.u32 %p1, %r0, 0; @%p1 bra READY;
mbarrier.init.shared.b64 [%r3], 1;
READY: bar.sync 0;
setp.ge.u32 %p4, %r0, 32; @%p4 bra SIGNAL;
setp.lt.u32 %p1, %r0, {lanes};
setp.ge.u32 %p2, %r0, {lanes};
add.u32 %r1, %r1, 1;
AGAIN: add.u32 %r1, %r1, 100;
@%p1 mbarrier.try_wait.parity.shared.b64 %p2, [%r3], 0;
add.u32 %r1, %r1, 10;
@!%p2 bra AGAIN;
add.u32 %r1, %r1, 1;
bra STORE;
SIGNAL: mov.b32 %r4, 50;
DELAY: sub.u32 %r4, %r4, 1; setp.ne.u32 %p3, %r4, 0; @%p3 bra DELAY;
setp.eq.u32 %p3, %r0, 32;
@%p3 mbarrier.arrive.shared.b64 %rd9, [%r3];
STORE:
"""
"""The first lanes of warp 0 wait for warp 1, the others have %p2 set and go on; all count their rounds in %r1."""


@pytest.mark.parametrize("lanes", [32, 16, 1, 0])
def test_lanes_outside_the_guard_of_a_try_wait_keep_their_predicate(lanes):
    for out in everywhere(WAIT_IN_SOME_LANES.format(lanes=lanes), threads=64):
        rounds, rest = np.divmod(out[:32].astype(int) - 2, 110)
        assert (rest == 0).all() and (rounds >= 1).all()
        assert (rounds[lanes:] == 1).all()
        assert (out[32:] == 0).all()


def test_a_test_wait_under_a_guard_leaves_the_other_lanes_alone():
    body = """
    mov.b32 %r3, words;
    setp.ne.u32 %p1, %r0, 0; @%p1 bra READY;
    mbarrier.init.shared.b64 [%r3], 1;
    READY: bar.warp.sync -1;
    and.b32 %r4, %r0, 3; setp.eq.u32 %p2, %r4, 1;
    setp.lt.u32 %p1, %r0, 16;
    @%p1 mbarrier.test_wait.parity.shared.b64 %p2, [%r3], 1;
    selp.b32 %r1, 1, 0, %p2;
    """
    assert (run(body + STORE_R1 + "ret;", module_scope=WORDS) == ((LANES < 16) | (LANES % 4 == 1))).all()


# ---- barrier.sync ----

HALVES = """
shl.b32 %r2, %r0, 2;
mov.b32 %r3, words;
add.u32 %r4, %r3, %r2;
xor.b32 %r5, %r2, 252;
add.u32 %r5, %r3, %r5;
and.b32 %r6, %r0, 31; setp.lt.u32 %p1, %r6, {lanes};
mov.b32 %r1, 0;
st.shared.b32 [%r4], %r0;
add.u32 %r1, %r1, 1000;
@%p1 barrier.sync {barrier};
add.u32 %r1, %r1, 1000;
@!%p1 barrier.sync {barrier};
ld.shared.b32 %r7, [%r5];
add.u32 %r1, %r1, %r7;
"""
"""All threads of two warps pass one barrier, each of them at one of two places."""


@pytest.mark.parametrize("barrier", ["0", "3", "1, 64"])
@pytest.mark.parametrize("lanes", [0, 1, 16, 32])
def test_lanes_of_a_warp_may_reach_a_barrier_at_two_places(lanes, barrier):
    for out in everywhere(HALVES.format(lanes=lanes, barrier=barrier), threads=64):
        assert (out == 2000 + 63 - np.arange(64)).all()


def test_an_aligned_barrier_under_a_guard_needs_the_whole_warp():
    body = "setp.lt.u32 %p1, %r0, {}; @%p1 bar.sync 1, 32; mov.b32 %r1, 4;" + STORE_R1 + "ret;"
    assert (run(body.format(32), threads=64) == 4).all()
    with pytest.raises(Fault, match=r"bar\.sync 1, 32"):
        run(body.format(16), threads=64)


# ---- bulk groups ----


@pytest.mark.parametrize("wait", ["wait_group", "wait_group.read"])
def test_the_thread_that_stored_waits_for_its_bulk_groups_under_a_guard(wait):
    """The elected thread reuses the shared memory after it has waited, so that waiting matters."""
    body = f"""
    mov.b32 %r3, words;
    shl.b32 %r4, %r0, 2; add.u32 %r4, %r4, %r3;
    mov.b64 %rd4, map; cvta.param.u64 %rd4, %rd4;
    mov.b32 %r8, 0;
    add.u32 %r6, %r0, 10;
    st.shared.b32 [%r4], %r6;
    fence.proxy.async.shared::cta;
    bar.warp.sync -1;
    mov.b32 %r1, 0;
    setp.eq.u32 %p1, %r0, 5;
    add.u32 %r1, %r1, 1;
    @%p1 cp.async.bulk.tensor.1d.global.shared::cta.tile.bulk_group [%rd4, {{%r8}}], [%r3];
    @%p1 cp.async.bulk.commit_group;
    add.u32 %r1, %r1, 1;
    @%p1 cp.async.bulk.{wait} 0;
    add.u32 %r1, %r1, 1;
    bar.warp.sync -1;
    st.shared.b32 [%r4], %r0;
    """
    for schedule, seed in SCHEDULES:
        device = Device(schedule=schedule, seed=seed)
        stored = device.alloc(128)
        tile = TensorMap.tiled(stored, "u32", (32,), (32,))
        found = launch(
            body + STORE_R1 + "cp.async.bulk.wait_group 0; ret;",
            module_scope=WORDS,
            parameters=["map map"],
            arguments=[tile],
            device=device,
        )
        assert (found.words(32) == 3).all()
        assert (device.download(stored, np.uint32, 32) == LANES + 10).all()


# ---- setmaxnreg ----

REGISTERS = """
shr.u32 %r2, %r0, 7;
and.b32 %r4, %r0, 31;
setp.{test};
mov.b32 %r1, 1;
@%p1 setmaxnreg.dec.sync.aligned.u32 40;
add.u32 %r1, %r1, 1;
"""
LIMITS = ".maxntid 256, 1, 1\n.minnctapersm 1"


def registers(test: str) -> np.ndarray:
    body = REGISTERS.format(test=test) + STORE_R1 + "ret;"
    return launch(body, threads=256, directives=LIMITS).words(256)


def test_setmaxnreg_under_a_guard_that_holds_for_whole_warpgroups():
    assert (registers("eq.u32 %p1, %r2, 0") == 2).all()
    assert (registers("eq.u32 %p1, %r2, 5") == 2).all()


def test_setmaxnreg_under_a_guard_that_holds_for_part_of_a_warp_is_reported():
    with pytest.raises(Fault, match="setmaxnreg"):
        registers("lt.u32 %p1, %r4, 16")


# ---- guards that hold for nobody ----

NEVER = [
    "trap;",
    "sin.approx.f32 %r1, %r2;",
    "multimem.red.relaxed.sys.global.add.u32 [%rd4], %r1;",
    "ld.shared.b32 %r1, [%r9];",
    "st.global.b32 [%rd4], %r1;",
    "atom.global.add.u32 %r1, [%rd4], 1;",
    "mbarrier.init.shared.b64 [%r2], 0;",
    "mbarrier.arrive.shared.b64 %rd5, [%r2];",
    "mbarrier.try_wait.parity.shared.b64 %p2, [%r2], 0;",
    "bar.sync 7, 64;",
    "barrier.sync 7, 64;",
    "barrier.cluster.wait;",
    "cp.async.bulk.tensor.1d.global.shared::cta.tile.bulk_group [%rd4, {%r2}], [%r2];",
    "tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r2, 32;",
    "tcgen05.mma.cta_group::1.kind::f16 [%r2], %rd4, %rd4, %r2, %p2;",
]


@pytest.mark.parametrize("instruction", NEVER)
def test_an_instruction_whose_guard_holds_nowhere_does_nothing(instruction):
    body = f"""
    mov.b32 %r2, 12;
    mov.b64 %rd4, 12;
    mov.b32 %r9, 3;
    add.u32 %r1, %r0, 5;
    setp.eq.u32 %p2, %r0, 3;
    setp.gt.u32 %p1, %r0, 99;
    @%p1 {instruction}
    setp.le.u32 %p3, %r0, 99;
    @!%p3 {instruction}
    @%p2 add.u32 %r1, %r1, 1;
    """
    assert (run(body + STORE_R1 + "ret;", module_scope=WORDS) == LANES + 5 + (LANES == 3)).all()


@pytest.mark.parametrize("lanes", ["gt.u32 %p1, %r0, 30", "lt.u32 %p1, %r0, 99"])
def test_a_trap_that_is_reached_is_reported(lanes):
    with pytest.raises(Fault, match=r"PTX line \d+: (@%p1 )?trap"):
        run(f"setp.{lanes}; @%p1 trap; ret;")


def test_a_trap_behind_a_branch_that_is_not_taken_is_not_reached():
    body = "add.u32 %r1, %r0, 1; setp.lt.u32 %p1, %r0, 99; @%p1 bra OVER; trap; OVER:"
    assert (run(body + STORE_R1 + "ret;") == LANES + 1).all()


# ---- guards that hold for some ----


def test_guarded_stores_loads_and_atomics_act_in_the_lanes_of_the_guard():
    body = """
    and.b32 %r2, %r0, 3; setp.eq.u32 %p1, %r2, 2;
    shl.b32 %r4, %r0, 2;
    mov.b32 %r3, words;
    add.u32 %r4, %r4, %r3;
    st.shared.b32 [%r4], %r0;
    add.u32 %r5, %r0, 100;
    @%p1 st.shared.b32 [%r4], %r5;
    mov.b32 %r6, 7;
    @!%p1 ld.shared.b32 %r6, [%r4];
    mov.b32 %r7, 0;
    @%p1 atom.shared.add.u32 %r7, [%r4], 1000;
    ld.shared.b32 %r8, [%r4];
    mul.lo.u32 %r6, %r6, 10000; add.u32 %r1, %r6, %r7;
    add.u32 %r1, %r1, %r8;
    """
    chosen = LANES % 4 == 2
    expected = np.where(chosen, 70000 + (LANES + 100) + (LANES + 1100), LANES * 10000 + LANES)
    assert (run(body + STORE_R1 + "ret;", module_scope=WORDS) == expected).all()


@pytest.mark.parametrize("lanes", [1, 5, 16, 31, 32])
def test_a_guarded_arrival_counts_the_lanes_of_the_guard(lanes):
    body = f"""
    mov.b32 %r3, words;
    setp.ne.u32 %p1, %r0, 0; @%p1 bra READY;
    mbarrier.init.shared.b64 [%r3], {{count}};
    READY: bar.warp.sync -1;
    setp.lt.u32 %p1, %r0, {lanes};
    @%p1 mbarrier.arrive.shared.b64 %rd9, [%r3];
    AGAIN: mbarrier.try_wait.parity.shared.b64 %p2, [%r3], 0; @!%p2 bra AGAIN;
    mov.b32 %r1, 1;
    """
    assert (run(body.format(count=lanes) + STORE_R1 + "ret;", module_scope=WORDS) == 1).all()
    with pytest.raises(Deadlock, match=f"1 of {lanes + 1} arrivals"):
        run(body.format(count=lanes + 1) + STORE_R1 + "ret;", module_scope=WORDS)


def test_a_guarded_branch_into_an_unknown_instruction_is_reported_only_where_it_is_reached():
    text = "setp.{}.u32 %p1, %r0, 99; @%p1 bra OVER; multimem.red.relaxed.sys.global.add.u32 [%rd0], %r0; OVER: ret;"
    run(text.format("lt").replace("ret;", "mov.b32 %r1, 0;" + STORE_R1 + "ret;"))
    device = Device()
    module = Module.from_text(source(text.format("gt")))
    with pytest.raises(Fault, match="multimem"):
        device.launch(module, grid=1, block=32, arguments=[device.alloc(4)])
