"""Whole little programs on the emulated machine: what they compute, or exactly how they are stopped."""

from __future__ import annotations

import numpy as np
import pytest
from ptx_programs import STORE_R1, run, source

from emugpu.emulator import Deadlock, Device, Fault, LaunchError, Module, PtxSyntaxError, TensorMap

LANES = np.arange(32, dtype=np.uint32)


# ---- divergence ----


def test_both_sides_of_a_branch_run_and_rejoin():
    body = """
    and.b32 %r2, %r0, 1; setp.eq.s32 %p1, %r2, 0; @%p1 bra EVEN;
    add.s32 %r1, %r0, 100;
    bra.uni JOIN;
    EVEN: mul.lo.s32 %r1, %r0, 3;
    JOIN: bar.warp.sync -1;
    add.s32 %r1, %r1, 1;
    """
    assert (run(body + STORE_R1 + "ret;") == np.where(LANES % 2, LANES + 101, 3 * LANES + 1)).all()


def test_lanes_leave_a_loop_one_by_one_and_meet_after_it():
    body = """
    mov.b32 %r1, 0;
    mov.b32 %r2, %r0;
    LOOP: add.s32 %r1, %r1, %r2;
    setp.eq.s32 %p1, %r2, 0; @%p1 bra DONE;
    sub.s32 %r2, %r2, 1;
    bra LOOP;
    DONE: bar.warp.sync -1;
    """
    assert (run(body + STORE_R1 + "ret;") == LANES * (LANES + 1) // 2).all()


def test_nested_divergence_inside_an_elected_region():
    body = """
    mov.b32 %r1, 7;
    elect.sync %r3|%p1, -1;
    @!%p1 bra JOIN;
    mov.b32 %r1, 0;
    mov.b32 %r2, 5;
    LOOP: add.s32 %r1, %r1, %r2;
    sub.s32 %r2, %r2, 1; setp.ne.s32 %p2, %r2, 0; @%p2 bra LOOP;
    JOIN:
    """
    assert (run(body + STORE_R1 + "ret;") == np.where(LANES == 0, 15, 7)).all()


def test_branch_tables_and_early_exit():
    body = """
    and.b32 %r2, %r0, 3;
    T: .branchtargets A, B, C, D;
    brx.idx %r2, T;
    A: mov.b32 %r1, 10; bra STORE;
    B: mov.b32 %r1, 20; bra STORE;
    C: mov.b32 %r1, 30; bra STORE;
    D: mov.b32 %r1, 40;
    STORE:
    """
    assert (run(body + STORE_R1 + "ret;") == (LANES % 4 + 1) * 10).all()


def test_lanes_may_exit_early_and_the_rest_still_counts_as_a_whole_warp():
    body = (
        STORE_R1.replace("%r1;", "%r0;")
        + """
    setp.lt.u32 %p1, %r0, 4;
    @%p1 ret;
    bar.warp.sync 0xfffffff0;
    barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
    add.s32 %r1, %r0, 1;
    """
    )
    assert (run(body + STORE_R1 + "ret;") == np.where(LANES < 4, LANES, LANES + 1)).all()


def test_scoped_registers_and_labels_of_inline_assembly():
    body = """
    mov.b32 %r1, 0;
    { .reg .pred P; .reg .b32 t; mov.b32 t, 3; AGAIN: add.s32 %r1, %r1, 1; sub.s32 t, t, 1;
      setp.ne.s32 P, t, 0; @P bra AGAIN; }
    { .reg .pred P; .reg .b32 t; mov.b32 t, 4; AGAIN: add.s32 %r1, %r1, 10; sub.s32 t, t, 1;
      setp.ne.s32 P, t, 0; @P bra AGAIN; }
    """
    assert (run(body + STORE_R1 + "ret;") == 43).all()


# ---- shared memory and barriers ----

STATIC = ".shared .align 8 .b8 words[512];"


def test_threads_exchange_values_through_shared_memory():
    body = """
    shl.b32 %r2, %r0, 2;
    mov.b32 %r3, words;
    add.s32 %r3, %r3, %r2;
    st.shared.b32 [%r3], %r0;
    bar.sync 0;
    xor.b32 %r4, %r2, 252;
    mov.b32 %r5, words;
    add.s32 %r5, %r5, %r4;
    ld.shared.b32 %r1, [%r5];
    """
    out = run(body + STORE_R1 + "ret;", threads=64, module_scope=STATIC)
    assert (out == 63 - np.arange(64)).all()


def test_own_shared_addresses_carry_the_rank_in_bits_24_and_up():
    body = """
    mov.b32 %r1, words;
    mov.u32 %r4, %cluster_ctarank;
    shl.b32 %r8, %r4, 5; add.s32 %r0, %r0, %r8;
    """
    out = run(body + STORE_R1 + "ret;", words=128, grid=4, cluster=4, module_scope=STATIC)
    assert (out >> 24 == np.repeat(np.arange(4), 32)).all()
    assert (out & 0xFFFFFF == 1024).all()


PRODUCER = """
mov.b32 %r3, words;
setp.ne.u32 %p1, %r0, 0; @%p1 bra READY;
mbarrier.init.shared.b64 [%r3], {count};
READY: bar.sync 0;
mbarrier.arrive.shared.b64 %rd5, [%r3];
WAIT: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r3], 0; @!%p2 bra WAIT;
mov.b32 %r1, 9;
"""


def test_arrivals_count_lanes_and_release_the_waiters():
    assert (run(PRODUCER.format(count=64) + STORE_R1 + "ret;", threads=64, module_scope=STATIC) == 9).all()


@pytest.mark.parametrize("schedule", ["fifo", "random"])
def test_a_missing_arrival_is_a_deadlock_that_names_barrier_and_waiter(schedule):
    with pytest.raises(Deadlock) as error:
        run(PRODUCER.format(count=65) + STORE_R1 + "ret;", threads=64, module_scope=STATIC, schedule=schedule)
    report = str(error.value)
    assert "mbarrier at shared 0x400 of CTA rank 0: phase 0 (parity 0), pending: 1 of 65 arrivals, last" in report
    assert "warps 0-1 lanes 0xffffffff: waits for parity 0, PTX line" in report
    assert "mbarrier.try_wait.parity" in report


def test_too_many_arrivals_are_reported():
    with pytest.raises(Fault, match=r"arrives 20 time.*phase 0 awaits only 13 more of 33 arrivals"):
        run(
            PRODUCER.format(count=33).replace("bar.sync 0;", "bar.sync 0; mbarrier.arrive.shared.b64 %rd5, [%r3], 20;"),
            module_scope=STATIC,
        )


def test_negative_byte_counts_are_legal_until_the_phase_ends():
    body = """
    mov.b32 %r3, words;
    setp.ne.u32 %p1, %r0, 0; @%p1 bra STORE;
    mbarrier.init.shared.b64 [%r3], 1;
    mbarrier.complete_tx.relaxed.cta.shared.b64 [%r3], 48;
    mbarrier.test_wait.parity.shared::cta.b64 %p2, [%r3], 0;
    mbarrier.arrive.expect_tx.shared.b64 %rd4, [%r3], 48;
    mbarrier.test_wait.parity.shared::cta.b64 %p3, [%r3], 0;
    selp.b32 %r4, 1, 0, %p2;
    selp.b32 %r5, 2, 0, %p3;
    or.b32 %r0, %r4, %r5;
    STORE: mov.b32 %r1, %r0;
    mov.u32 %r0, %tid.x;
    """
    assert run(body + STORE_R1 + "ret;", module_scope=STATIC)[0] == 2


def test_fresh_barriers_have_completed_the_phase_before():
    body = """
    mov.b32 %r3, words;
    elect.sync %r9|%p1, -1;
    @!%p1 bra JOIN;
    mbarrier.init.shared.b64 [%r3], 1;
    W: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r3], 1; @!%p2 bra W;
    JOIN: mov.b32 %r1, 1;
    """
    assert (run(body + STORE_R1 + "ret;", module_scope=STATIC) == 1).all()


# ---- poison, bounds, unsupported ----


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("add.s32 %r1, %r9, 1; st.shared.b32 [%r1], %r0;", r"register %r1, which comes from register %r9, which was"),
        ("mov.b32 %r3, words; ld.shared.b32 %r1, [%r3];", r"never written"),
        ("mov.b32 %r3, words; ld.shared.b32 %r1, [%r3+508]; ld.shared.b32 %r1, [%r3+4096];", r"0x|outside|written"),
        ("mov.b32 %r3, words; st.shared.b32 [%r3+510], %r0;", r"align|multiple"),
        ("mov.b32 %r3, 16; ld.shared.b32 %r1, [%r3];", r"0x10 is in the first 1024 bytes"),
        ("mov.u64 %rd4, 64; ld.global.b32 %r1, [%rd4];", r"outside|allocation"),
        ("vadd.u32.u32.u32 %r1, %r0, %r0;", r"not implemented: scalar video .*: vadd.u32.u32.u32"),
        ("mov.b32 %r3, words; ld.shared.b32.unknown %r1, [%r3];", r"not implemented: ld.shared.b32.unknown"),
        ("setp.lt.s32 %p1, %r8, 3; @%p1 bra L; L: ", r"register %r8"),
        ("@%p5 bra L; L: ", r"predicate %p5, which was never written"),
    ],
)
def test_undefined_behaviour_stops_with_line_instruction_cta_and_warp(body, message):
    with pytest.raises(Fault, match=message) as error:
        run(body + " ret;", module_scope=STATIC)
    text = str(error.value)
    assert "kernel 'kernel', PTX line " in text and "by CTA (0, 0, 0) (rank 0 of its cluster), warp 0" in text
    excerpt = text.splitlines()[3:]
    assert 1 <= len(excerpt) <= 5 and sum(line.startswith("  >") for line in excerpt) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no .target directive"),
        (".version 8.8\n.target sm_100a\n.wrong", "PTX line 3: unknown directive '.wrong'"),
        (source("mov.b32 %r1, %q7;"), r"PTX line \d+: unknown register '%q7'"),
        (source("bra NOWHERE;"), r"PTX line \d+: unknown label 'NOWHERE'"),
        (source("mov.b32 %r99, 1;"), r"unknown register '%r99'"),
    ],
)
def test_unreadable_ptx_names_the_line(text, message):
    with pytest.raises(PtxSyntaxError, match=message):
        Module.from_text(text)


def test_launches_are_checked():
    device = Device()
    module = Module.from_text(source("ret;", directives=".reqnctapercluster 2, 1, 1 .maxntid 64"))
    out = device.alloc(4)
    for arguments, message in [
        (dict(grid=2, cluster=2, block=128), "128 threads; kernel 'kernel' says .maxntid 64"),
        (dict(grid=2, cluster=1, block=64), "was compiled for cluster"),
        (dict(grid=3, cluster=2, block=64), "grid.x = 3 is not a multiple of the cluster's 2"),
        (dict(grid=0, cluster=2, block=64), "grid 0: give 1 to 3 sizes of at least 1"),
        (dict(grid=2, cluster=2, block=64, dynamic_smem=240_000), "exceeds the limit of 232448"),
        (dict(grid=2, cluster=2, block=64, dynamic_smem=-1), "dynamic shared memory -1 bytes: must be 0 or more"),
    ]:
        with pytest.raises(LaunchError, match=message):
            device.launch(module, arguments=[out], **arguments)
    with pytest.raises(LaunchError, match=r"takes 1 arguments \(.*\), 2 given"):
        device.launch(module, grid=2, cluster=2, block=64, arguments=[out, 1])
    with pytest.raises(LaunchError, match=r"argument 0 = .* does not fit"):
        device.launch(module, grid=2, cluster=2, block=64, arguments=[1 << 65])
    tmap = TensorMap.tiled(device.alloc(1024), "u8", (32, 32), (8, 16))
    with pytest.raises(LaunchError, match="argument 0 is a tensor map, but parameter"):
        device.launch(module, grid=2, cluster=2, block=64, arguments=[tmap])
    with pytest.raises(LaunchError, match="no kernel 'other'"):
        device.launch(module, "other", grid=2, cluster=2, block=64, arguments=[out])
