"""What just breaks a rule, what is just legal, and which lane, rule and address a report names."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ptx_programs import ALLOCATE, FREE, STORE_R1, WORDS, launch, run, source

from emugpu.emulator import Deadlock, Device, Fault, Module, Region, device, workers


def fault(body: str, **options) -> Fault:
    with pytest.raises(Fault) as error:
        launch(body, module_scope=WORDS, **options)
    return error.value


# ---- barriers ----


@pytest.mark.parametrize("count", [0, 16, 33, 128, 96 + 4096])
def test_counts_that_a_barrier_cannot_have(count):
    error = fault(f"bar.sync 0, {count}; ret;", threads=96)
    assert error.rule == "barrier" and f"thread count {count} must be a multiple of 32" in str(error)


@pytest.mark.parametrize(("number", "legal"), [(0, True), (15, True), (16, False)])
def test_a_cta_has_sixteen_barriers(number, legal):
    body = f"barrier.sync {number}, 64; ret;"
    if legal:
        launch(body, threads=64)
    else:
        assert fault(body, threads=64).rule == "barrier"


def test_lanes_agree_on_the_barrier_they_name():
    assert fault("barrier.sync %r0; ret;").rule == "convergence"
    launch("mov.u32 %r1, %warpid; sub.u32 %r1, %r1, %r1; mul.lo.u32 %r2, %r0, 0; barrier.sync %r2; ret;", threads=64)


def test_a_cluster_barrier_is_arrived_at_once_and_waited_for_after_that():
    arrive, wait = "barrier.cluster.arrive;", "barrier.cluster.wait;"
    assert fault(arrive + arrive + wait + "ret;").rule == "barrier"
    assert fault(wait + "ret;").rule == "barrier"
    launch(arrive + wait + arrive + wait + "ret;", grid=2, cluster=2, threads=48)


@pytest.mark.parametrize("instruction", ["bar.sync 0;", "bar.arrive 0, 64;", "barrier.cluster.arrive.aligned;"])
def test_aligned_barriers_need_the_whole_warp(instruction):
    body = f"setp.eq.u32 %p1, %r0, 3; @%p1 bra SKIP; {instruction} SKIP: mov.b32 %r1, 1; ret;"
    found = fault(body, threads=64)
    assert found.rule == "convergence" and "lanes 0x00000008 are elsewhere" in str(found)


@pytest.mark.parametrize(
    "instruction",
    [
        "cp.async.mbarrier.arrive.noinc.shared.b64 [%r7];",
        "clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 [%r7], [%r3];",
        "clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 [%r3], [%r7];",
    ],
)
def test_what_acts_on_the_own_shared_memory_takes_no_address_of_a_peer(instruction):
    body = "mov.b32 %r3, words; mapa.shared::cluster.u32 %r7, %r3, 1;" + instruction + "ret;"
    error = fault(body, grid=2, cluster=2)
    assert error.rule == "address" and "is not in the CTA's own shared memory" in str(error)


# ---- lanes that leave ----


def test_lanes_that_leave_do_not_hold_up_those_they_would_have_met():
    """Of the lanes below 16, some leave on the one side and some on the other side of a second branch."""
    body = """
    mov.b32 %r1, 1;
    setp.ge.u32 %p1, %r0, 16; @%p1 bra MEET;
    and.b32 %r2, %r0, 1; setp.eq.u32 %p2, %r2, 0; @%p2 bra EVEN;
    setp.eq.u32 %p3, %r0, 5; @%p3 exit;
    add.u32 %r1, %r1, 10;
    bra.uni INNER;
    EVEN: setp.eq.u32 %p3, %r0, 8; @%p3 exit;
    add.u32 %r1, %r1, 20;
    INNER: add.u32 %r1, %r1, 100;
    MEET:
    """
    gone = {5, 8}
    expected = [7 if n in gone else 1 if n >= 16 else 121 if n % 2 == 0 else 111 for n in range(32)]
    for options in ({}, {"schedule": "random", "seed": 1}, {"schedule": "random", "seed": 2}):
        out = launch(body + STORE_R1 + "ret;", initial=np.full(32, 7), **options)
        assert out.words(32).tolist() == expected


def test_lanes_in_a_meeting_go_on_when_the_last_one_missing_leaves():
    body = """
    setp.eq.u32 %p1, %r0, 9; @%p1 bra ALONE;
    setp.eq.u32 %p2, %r0, 10; @%p2 bra OTHER;
    bar.warp.sync 0x3ff;
    mov.b32 %r1, 1;
    bra STORE;
    OTHER: mov.b32 %r1, 2;
    bra STORE;
    ALONE: exit;
    STORE:
    """.replace("bar.warp.sync 0x3ff;", "setp.gt.u32 %p3, %r0, 9; @%p3 bra NO; bar.warp.sync 0x3ff; NO:")
    for seed in range(6):
        out = launch(body + STORE_R1 + "ret;", initial=np.full(32, 7), schedule="random", seed=seed)
        assert out.words(32).tolist() == [7 if n == 9 else 2 if n == 10 else 1 for n in range(32)]


# ---- matrices ----

ROWS = "mov.b32 %r3, words; shl.b32 %r4, %r0, 4; add.u32 %r5, %r3, %r4; "
STORED = "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%r5], {%r0, %r0, %r0, %r0};"


def test_the_row_of_a_matrix_that_is_not_aligned_is_named():
    late = fault(ROWS + "setp.gt.u32 %p1, %r0, 20; @%p1 add.u32 %r5, %r5, 8;" + STORED + "ret;")
    assert late.rule == "alignment" and "(lane 21)" in str(late) and f"0x{0x400 + 21 * 16 + 8:x}" in str(late)
    every = fault(ROWS + "add.u32 %r5, %r5, 1;" + STORED + "ret;")
    assert "(lane 0)" in str(every)


def test_addresses_of_rows_that_are_not_used_may_be_anything():
    body = ROWS + "setp.ge.u32 %p1, %r0, 16; @%p1 add.u32 %r5, %r5, 8;"
    launch(body + STORED.replace("x4", "x2").replace("%r0, %r0, %r0, %r0", "%r0, %r0") + "ret;", module_scope=WORDS)


def test_rows_lie_in_the_ctas_own_shared_memory():
    for rank in (0, 1):
        body = f"mov.u32 %r20, %cluster_ctarank; setp.ne.u32 %p1, %r20, {rank}; @%p1 bra END;" + ROWS
        body += f"mapa.shared::cluster.u32 %r5, %r5, {1 - rank};" + STORED + "END: barrier.cluster.arrive;"
        assert fault(body + "barrier.cluster.wait; ret;", grid=2, cluster=2).rule == "address"


def test_matrices_need_the_whole_warp_and_an_address_a_lane():
    assert fault(ROWS + "setp.gt.u32 %p1, %r0, 7; @%p1 bra E;" + STORED + "E: ret;").rule == "convergence"
    assert fault("mov.b32 %r5, words;" + STORED + "ret;").rule == "address"
    launch(ROWS + STORED.replace("%r0, %r0, %r0, %r0", "%r0, 5, %r0, 7") + "ret;", module_scope=WORDS)


def test_matrices_of_constants_hold_them_everywhere():
    body = ROWS + "stmatrix.sync.aligned.m8n8.x2.shared.b16 [%r5], {%r0, 0x20003}; bar.warp.sync -1;"
    body += "shl.b32 %r6, %r0, 2; add.u32 %r6, %r6, %r3; ld.shared.b32 %r1, [%r6+128];"
    assert (run(body + STORE_R1 + "ret;", module_scope=WORDS) == 0x20003).all()


# ---- loads from tensor memory that nobody waited for ----

LOAD = "tcgen05.ld.sync.aligned.32x32b.x2.b32 {%r10, %r11}, [%r2];"
FILLED = ALLOCATE + "add.u32 %r8, %r0, 50; tcgen05.st.sync.aligned.32x32b.x2.b32 [%r2], {%r0, %r8};"
FILLED += "tcgen05.wait::st.sync.aligned;"
WAIT = "tcgen05.wait::ld.sync.aligned;"
LANES = np.arange(32)
SEEDS = [{}, *({"schedule": "random", "seed": seed} for seed in range(4))]


def test_a_register_written_after_the_load_keeps_what_was_written():
    body = FILLED + LOAD + "mov.b32 %r10, 3;" + WAIT + "mad.lo.u32 %r1, %r11, 100, %r10;" + FREE
    for options in SEEDS:
        out = launch(body + STORE_R1 + "ret;", module_scope=WORDS, **options)
        assert (out.words(32) == 100 * (LANES + 50) + 3).all() and not out.result.warnings


def test_memory_freed_before_the_wait_still_gives_its_values_and_a_warning():
    body = FILLED + LOAD + FREE + WAIT + "mad.lo.u32 %r1, %r11, 100, %r10;" + STORE_R1 + "ret;"
    for options in SEEDS:
        out = launch(body, module_scope=WORDS, **options)
        assert [w.rule for w in out.result.warnings] == ["tmem-freed"]
        assert (out.words(32) == 100 * (LANES + 50) + LANES).all()
    assert fault(body, strict=True).rule == "tmem-freed"


def test_a_generic_address_given_as_one_of_shared_memory_is_taken_with_a_warning():
    alloc = "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 "
    generic = f"cvt.u64.u32 %rd5, %r3; cvta.shared.u64 %rd5, %rd5; {alloc}[%rd5]"
    body = FILLED.replace(f"{alloc}[%r3]", generic)
    body += LOAD + WAIT + "mad.lo.u32 %r1, %r11, 100, %r10;" + FREE
    out = launch(body + STORE_R1 + "ret;", module_scope=WORDS)
    assert (out.words(32) == 100 * (LANES + 50) + LANES).all()
    assert [w.rule for w in out.result.warnings] == ["generic-address"]
    assert fault(body, strict=True).rule == "generic-address"


def test_memory_next_to_that_of_a_load_may_be_freed():
    other = "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r3+4], 32; bar.warp.sync -1;"
    other += "ld.shared.b32 %r9, [%r3+4];"
    free = "tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r9, 32;"
    tail = "tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;"
    tail += "tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r2, 32;"
    for load, columns in (("[%r2+30]", ""), ("[%r9]", "swap")):
        body = FILLED + other + "tcgen05.st.sync.aligned.32x32b.x2.b32 [%r2+30], {%r0, %r8};"
        body += "tcgen05.st.sync.aligned.32x32b.x2.b32 [%r9], {%r0, %r8}; tcgen05.wait::st.sync.aligned;"
        body += LOAD.replace("[%r2]", load)
        body += (tail + WAIT + free) if columns else (free + WAIT + tail)
        assert launch(body + "ret;", module_scope=WORDS, strict=True).result.warnings == ()


def test_lanes_that_read_one_by_one_get_their_own_values():
    body = FILLED + LOAD + "mov.b32 %r1, 9; setp.ne.u32 %p1, %r0, 6; @%p1 bra SKIP; add.u32 %r1, %r11, 1000; SKIP:"
    body += "bar.warp.sync -1;" + WAIT + "add.u32 %r1, %r1, %r10;" + FREE + STORE_R1 + "ret;"
    for options in SEEDS:
        out = launch(body, module_scope=WORDS, **options)
        assert out.words(32).tolist() == [9 + n if n != 6 else 1000 + 56 + 6 for n in range(32)]
        assert [w.rule for w in out.result.warnings] == ["register-before-wait"]


def test_lanes_that_write_a_register_of_a_load_leave_it_to_the_others():
    body = FILLED + LOAD + "setp.ne.u32 %p1, %r0, 6; @%p1 bra SKIP; mov.b32 %r10, 1000; SKIP:"
    body += "bar.warp.sync -1;" + WAIT + "mov.b32 %r1, %r10;" + FREE + STORE_R1 + "ret;"
    for options in SEEDS:
        out = launch(body, module_scope=WORDS, **options)
        assert out.words(32).tolist() == [n if n != 6 else 1000 for n in range(32)]


# ---- what reports name ----


def test_the_region_of_dynamic_shared_memory_is_named():
    regions = [Region("A", 0, 64), Region("B", 64, 32)]
    body = "mov.b32 %r3, words; ld.shared.b32 %r1, [%r3+{}]; ret;"

    def message(offset: int) -> str:
        scope = ".extern .shared .align 16 .b8 words[];"
        with pytest.raises(Fault) as error:
            launch(body.format(offset), module_scope=scope, dynamic_smem=128, regions=regions)
        return str(error.value)

    assert "that is A + 60" in message(60) and "that is B\n" in message(64) and "that is B + 28" in message(92)
    assert "that is" not in message(96)


def test_progress_is_told_cluster_by_cluster():
    told: list[tuple[int, int]] = []
    launch("ret;", grid=6, cluster=2, progress=lambda done, total: told.append((done, total)))
    assert told == [(1, 3), (2, 3), (3, 3)]


def test_every_sink_gets_every_event():
    first: list[Any] = []
    second: list[Any] = []
    launch("mov.b32 %r1, 1;" + STORE_R1 + "ret;", sinks=[first.append, second.append])
    assert first == second and len(first) > 3
    launch("ret;", sinks=[])


def test_shares_of_several_processes_add_up(monkeypatch):
    """The shares that processes would run, one after another in this one."""

    class Sender:
        def __init__(self) -> None:
            self.sent: list[int] = []

        def send(self, done: int) -> None:
            self.sent.append(done)

    senders = [Sender(), Sender()]

    def run_here(make_grid, count, clusters, progress):
        assert (count, clusters) == (2, 5)
        return workers._combine([workers._run_share(make_grid, n, count, senders[n]) for n in range(count)])

    monkeypatch.setattr(device, "run_in_processes", run_here)
    body = "mov.u32 %r2, %ctaid.x; mul.lo.u32 %r3, %r2, 32; add.u32 %r1, %r3, %r0; mov.b32 %r0, %r1;"
    out = launch(body + STORE_R1 + "ret;", grid=5, words=160, workers=2)
    assert (out.words(160) == np.arange(160)).all()
    assert [s.sent for s in senders] == [[1, 2, 3], [1, 2]]
    counters = out.result.counters
    assert (counters.clusters, counters.clusters_launched, counters.ctas, counters.warps_finished) == (5, 5, 5, 5)
    assert counters.instructions["memory"] == 5 * 2


def test_the_failure_of_the_first_cluster_is_the_one_that_is_told(monkeypatch):
    def run_here(make_grid, count, clusters, progress):
        quiet = type("Sender", (), {"send": lambda self, done: None})()
        return workers._combine([workers._run_share(make_grid, n, count, quiet) for n in range(count)])

    monkeypatch.setattr(device, "run_in_processes", run_here)
    body = "mov.u32 %r2, %ctaid.x; setp.gt.u32 %p1, %r2, 2; @%p1 trap; ret;"
    with pytest.raises(Fault, match=r"by CTA \(3, 0, 0\)"):
        launch(body, grid=8, workers=4)


def test_static_shared_memory_takes_room_on_an_sm():
    """228 KB hold two CTAs of 100 KB static and 13 KB dynamic shared memory and 1 KB each, but not of 14 KB."""
    text = source("mov.b32 %r1, words; ret;", f".shared .b8 words[{100 * 1024}];")
    code = Module.from_text(text)
    found = []
    for dynamic in (13 * 1024, 13 * 1024 + 1):
        gpu = Device()
        shape = device.KernelLaunch((1, 1, 1), (1, 1, 1), (32, 1, 1), dynamic, b"")
        found.append(device._capacity(code.code("kernel"), shape, code.target, None))
        assert gpu
    assert found == [2 * 148, 148]


# ---- warpgroups ----


@pytest.mark.parametrize(("threads", "whole"), [(96, False), (128, True), (160, False), (256, True)])
def test_a_warpgroup_has_four_warps(threads, whole):
    body = "wgmma.fence.sync.aligned; wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0; ret;"
    if whole:
        assert launch(body, threads=threads, target="sm_90a").result.counters.warps_finished == threads // 32
    else:
        assert fault(body, threads=threads, target="sm_90a").rule == "convergence"


def test_more_groups_than_a_wait_can_leave_pending_may_be_committed():
    body = "wgmma.fence.sync.aligned;" + 12 * "wgmma.commit_group.sync.aligned;"
    launch(body + "wgmma.wait_group.sync.aligned 7; ret;", threads=128, target="sm_90a")


# ---- waits that are counted, and who is left ----


def test_lanes_that_wait_at_barriers_of_their_own_stall_together():
    """Lane 0 and 1 of warp 0 wait at barriers that the two lanes of warp 1 complete one after the other."""
    body = """
    mov.b32 %r3, words;
    and.b32 %r4, %r0, 1;
    shl.b32 %r4, %r4, 3; add.u32 %r5, %r3, %r4;
    setp.gt.u32 %p1, %r0, 1; @%p1 bra READY;
    mbarrier.init.shared.b64 [%r5], 1;
    READY: bar.sync 0;
    setp.ge.u32 %p2, %r0, 32; @%p2 bra ARRIVE;
    LOOK: mbarrier.try_wait.parity.shared.b64 %p3, [%r5], 0; @!%p3 bra LOOK;
    bra END;
    ARRIVE: setp.gt.u32 %p4, %r0, 33; @%p4 bra END;
    mbarrier.arrive.shared.b64 _, [%r5];
    END: ret;
    """
    counters = launch(body, threads=64, module_scope=WORDS).result.counters
    assert (counters.mbarrier_stalls, counters.mbarrier_waits, counters.mbarrier_arrivals) == (1, 1, 2)


def test_a_report_leaves_out_the_lanes_that_have_gone():
    """Lanes 0 to 6 and warp 2 have exited. What is left of warp 0 counts as 32 (PTX ISA 9.7.13.1)."""
    body = "setp.lt.u32 %p1, %r0, 7; setp.ge.or.u32 %p1, %r0, 64, %p1; @%p1 exit; barrier.sync 1, 96; ret;"
    with pytest.raises(Deadlock) as error:
        launch(body, threads=96)
    report = str(error.value)
    assert "64 of 96 threads have arrived" in report and "warps 0-1: waits" in report and "re-join" not in report
