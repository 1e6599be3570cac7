"""Threads that have exited: barriers that wait for all threads no longer wait for them, and count no thread twice.

PTX ISA: 9.7.13.1 and 9.7.13.3 (barriers), 9.7.12.7 (exit: barriers that wait for all threads are released where only
exiting threads hold them up).
"""

from __future__ import annotations

import numpy as np
import pytest
from ptx_programs import STORE_R1, WORDS, launch, run

from emugpu.emulator import Deadlock, Device, Fault
from emugpu.emulator.native.library import library_for

SCHEDULES = [("fifo", 0), *(("random", seed) for seed in range(6))]

LATE_WORD = """
mov.b32 %r3, words;
mov.u32 %r4, %cluster_ctarank;
setp.ge.u32 %p1, %r0, {first_to_leave}; @%p1 bra LEAVE;
setp.ne.u32 %p2, %r4, 0; @%p2 bra READY;
mov.b32 %r5, 300;
DELAY: sub.u32 %r5, %r5, 1; setp.ne.u32 %p3, %r5, 0; @%p3 bra DELAY;
mov.b32 %r6, 77; st.shared.b32 [%r3], %r6;
READY: barrier.cluster.arrive; barrier.cluster.wait;
mapa.shared::cluster.u32 %r7, %r3, 0;
ld.shared::cluster.b32 %r1, [%r7];
barrier.cluster.arrive; barrier.cluster.wait;
bra STORE;
LEAVE:
{leave}
exit;
STORE:
"""
"""Two CTAs. The early threads of rank 0 write a word late; those of both ranks read it after the cluster barrier."""

LEAVING = {
    "without arriving": "",
    "after arriving": "barrier.cluster.arrive;",
    "after arriving and waiting": "barrier.cluster.arrive; barrier.cluster.wait;",
}


@pytest.mark.parametrize("leave", LEAVING)
@pytest.mark.parametrize(("threads", "first_to_leave"), [(64, 32), (128, 32), (96, 64)])
def test_the_cluster_barrier_counts_warps_that_leave_once(threads, first_to_leave, leave):
    body = LATE_WORD.format(first_to_leave=first_to_leave, leave=LEAVING[leave])
    shape = dict(grid=2, cluster=2, threads=threads, module_scope=WORDS)
    for schedule, seed in SCHEDULES:
        out = launch(body + STORE_R1 + "ret;", schedule=schedule, seed=seed, **shape)
        assert (out.words(first_to_leave) == 77).all()


@pytest.mark.parametrize("leave", LEAVING)
def test_the_cluster_barrier_counts_lanes_that_leave_once(leave):
    body = LATE_WORD.format(first_to_leave=8, leave=LEAVING[leave])
    for schedule, seed in SCHEDULES:
        out = launch(body + STORE_R1 + "ret;", grid=2, cluster=2, module_scope=WORDS, schedule=schedule, seed=seed)
        assert (out.words(8) == 77).all()


def test_the_cluster_barrier_still_waits_for_a_thread_that_stays_away():
    body = """
    setp.ge.u32 %p1, %r0, 32; @%p1 bra LEAVE;
    mov.u32 %r4, %cluster_ctarank; setp.eq.u32 %p2, %r4, 0; @%p2 bra STUCK;
    barrier.cluster.arrive; barrier.cluster.wait;
    ret;
    LEAVE: barrier.cluster.arrive;
    ret;
    STUCK: mov.b32 %r3, words;
    elect.sync %r5|%p3, -1;
    @!%p3 bra WAIT;
    mbarrier.init.shared.b64 [%r3], 1;
    WAIT: bar.warp.sync -1;
    AGAIN: mbarrier.try_wait.parity.shared.b64 %p4, [%r3], 0; @!%p4 bra AGAIN;
    ret;
    """
    with pytest.raises(Deadlock, match="cluster barrier"):
        launch(body, grid=2, cluster=2, threads=64, module_scope=WORDS)


# ---- bar.sync without a count ----

EXCHANGE = """
setp.ge.u32 %p1, %r0, {first_to_leave};
{leave}
shl.b32 %r2, %r0, 2;
mov.b32 %r3, words;
add.u32 %r4, %r3, %r2;
st.shared.b32 [%r4], %r0;
{barrier};
xor.b32 %r5, %r2, {flip};
add.u32 %r5, %r3, %r5;
ld.shared.b32 %r1, [%r5];
"""
"""The threads that stay exchange words in shared memory across a barrier."""


@pytest.mark.parametrize("barrier", ["bar.sync 0", "bar.sync 5", "barrier.sync 0", "barrier.sync.aligned 3"])
@pytest.mark.parametrize("threads", [96, 256])
def test_warps_that_have_exited_are_not_waited_for(threads, barrier):
    body = EXCHANGE.format(first_to_leave=64, leave="@%p1 exit;", barrier=barrier, flip=4 * 63)
    for schedule, seed in SCHEDULES:
        out = launch(body + STORE_R1 + "ret;", threads=threads, module_scope=WORDS, schedule=schedule, seed=seed)
        assert (out.words(64) == 63 - np.arange(64)).all()


LEAVE_LATE = """
@!%p1 bra STAY;
mov.b32 %r6, 200;
DELAY: sub.u32 %r6, %r6, 1; setp.ne.u32 %p2, %r6, 0; @%p2 bra DELAY;
exit;
STAY:
"""


@pytest.mark.parametrize("barrier", ["bar.sync 0", "barrier.sync 1"])
def test_warps_may_exit_while_the_others_wait(barrier):
    for schedule, seed in SCHEDULES:
        body = EXCHANGE.format(first_to_leave=32, leave=LEAVE_LATE, barrier=barrier, flip=4 * 31)
        out = launch(body + STORE_R1 + "ret;", threads=96, module_scope=WORDS, schedule=schedule, seed=seed)
        assert (out.words(32) == 31 - np.arange(32)).all()


LEAVE = {
    "exit": "@%p1 exit;",
    "a branch to the end": "@%p1 bra END;",
    "an exit after work": LEAVE_LATE,
    "an exit after a copy": """
    @!%p1 bra STAY;
    mov.b32 %r6, words;
    st.global.b32 [%rd0+252], 0;
    cp.async.ca.shared.global [%r6+1024], [%rd0+252], 4;
    cp.async.wait_all;
    exit;
    STAY:
    """,
}
BARRIERS = {
    "bar.sync": "bar.sync 0",
    "barrier.sync": "barrier.sync 1",
    "bar.red": "bar.red.popc.u32 %r7, 0, %p1",
    "barrier.cluster": "barrier.cluster.arrive; barrier.cluster.wait.aligned",
    "barrier.cluster.arrive.aligned": "barrier.cluster.arrive.aligned; barrier.cluster.wait",
    "bar.sync with a count": "bar.sync 1, 64",
    "barrier.sync with a count": "barrier.sync 1, 64",
    "bar.arrive": "bar.arrive 1, 64; bar.sync 2, 64",
}


@pytest.mark.parametrize("barrier", BARRIERS)
@pytest.mark.parametrize("leave", LEAVE)
def test_lanes_that_have_exited_are_not_waited_for(barrier, leave):
    """Of the second warp only lanes 0 to 15 stay, whichever lanes run first. With a count, the warp counts as 32."""
    body = EXCHANGE.format(first_to_leave=48, leave=LEAVE[leave], barrier=BARRIERS[barrier], flip=0)
    body = body.replace("xor.b32 %r5, %r2, 0;", "sub.u32 %r5, 188, %r2;")
    for schedule, seed in SCHEDULES:
        out = launch(body + STORE_R1 + "END: ret;", threads=64, module_scope=WORDS, schedule=schedule, seed=seed)
        assert (out.words(48) == 47 - np.arange(48)).all()


def test_lanes_may_wait_for_other_warps_before_they_exit():
    """The upper halves of two warps meet by a counter and exit; meanwhile the lower halves wait at bar.sync."""
    leave = f"""
    and.b32 %r6, %r0, 16; setp.ne.u32 %p1, %r6, 0;
    mov.b32 %r7, words;
    @!%p1 bra STAY;
    atom.shared.add.u32 %r8, [%r7+1024], 1;
    MEET: ld.volatile.shared.b32 %r8, [%r7+1024];
    setp.ne.u32 %p2, %r8, 32; @%p2 bra MEET;
    xor.b32 %r1, %r0, 32;
    {STORE_R1}
    exit;
    STAY:
    """
    body = EXCHANGE.format(first_to_leave=64, leave=leave, barrier="bar.sync 0", flip=4 * 32)
    body = "mov.b32 %r7, words; st.shared.b32 [%r7+1024], 0; bar.sync 0;" + body
    for schedule, seed in SCHEDULES:
        out = launch(body + STORE_R1 + "ret;", threads=64, module_scope=WORDS, schedule=schedule, seed=seed)
        assert (out.words(64) == np.arange(64) ^ 32).all()


@pytest.mark.parametrize("barrier", [barrier for barrier in BARRIERS if not barrier.startswith("barrier.sync")])
@pytest.mark.parametrize("where", ["at another barrier", "behind the branch"])
def test_lanes_that_are_elsewhere_are_waited_for(barrier, where):
    elsewhere = {"at another barrier": "bar.sync 7;", "behind the branch": ""}[where]
    body = f"""
    setp.ge.u32 %p1, %r0, 16; @!%p1 bra STAY;
    {elsewhere}
    bra.uni TOGETHER;
    STAY: {BARRIERS[barrier]};
    TOGETHER: mov.b32 %r1, 1;
    """
    for schedule, seed in SCHEDULES:
        with pytest.raises(Fault, match="needs the whole warp converged"):
            launch(body + STORE_R1 + "ret;", threads=32, schedule=schedule, seed=seed)


def test_exited_threads_do_not_complete_the_next_phase_of_a_barrier():
    """Two phases after warp 1 has left: warps 0 and 2 still wait for one another in each."""
    body = """
    shr.u32 %r2, %r0, 5;
    setp.eq.u32 %p1, %r2, 1; @%p1 exit;
    mov.b32 %r3, words;
    setp.eq.u32 %p2, %r2, 2;
    bar.sync 0;
    @!%p2 bra READ;
    mov.b32 %r6, 100;
    DELAY: sub.u32 %r6, %r6, 1; setp.ne.u32 %p3, %r6, 0; @%p3 bra DELAY;
    mov.b32 %r7, 5; st.shared.b32 [%r3], %r7;
    READ: bar.sync 0;
    ld.shared.b32 %r1, [%r3];
    """
    for schedule, seed in SCHEDULES:
        out = launch(body + STORE_R1 + "ret;", threads=96, module_scope=WORDS, schedule=schedule, seed=seed)
        assert (out.words(32) == 5).all()


def test_an_explicit_count_is_not_lowered_by_exits():
    body = EXCHANGE.format(first_to_leave=32, leave="@%p1 exit;", barrier="bar.sync 1, 64", flip=0)
    with pytest.raises(Deadlock, match="barrier 1 "):
        run(body + "ret;", threads=64, module_scope=WORDS)


def test_an_explicit_count_of_those_that_stay_is_enough():
    body = EXCHANGE.format(first_to_leave=32, leave="@%p1 exit;", barrier="bar.sync 1, 32", flip=124)
    out = launch(body + STORE_R1 + "ret;", threads=64, module_scope=WORDS)
    assert (out.words(32) == 31 - np.arange(32)).all()


@pytest.mark.parametrize("engine", ["native", "python"])
@pytest.mark.parametrize("count", [32, 64])
def test_a_count_is_of_whole_warps_also_where_the_cta_has_fewer_threads(engine, count):
    """The second warp of 48 threads has 16. It counts as 32, and so alone is all that a barrier for 32 waits for."""
    body = f"setp.lt.u32 %p1, %r0, {96 - count - 32}; @%p1 bra DONE; bar.sync 1, {count}; DONE: mov.b32 %r1, 5;"
    device = Device(library=library_for(engine))
    out = launch(body + STORE_R1 + "ret;", threads=48, device=device)
    assert (out.words(48) == 5).all()


IN_HALVES = """
setp.ge.u32 %p1, %r0, 32; @%p1 bra SECOND;
setp.ge.u32 %p1, %r0, 16; @%p1 bra OTHERS;
{first}
exit;
OTHERS:
{others}
ret;
SECOND:
{second}
mov.b32 %r1, 5;
"""
"""The halves of the first warp, and the second warp, at barrier 1 for 64 threads."""


@pytest.mark.parametrize(
    ("first", "others"),
    [("barrier.arrive 1, 64;", "barrier.sync 1, 64;"), ("barrier.sync 1, 64;", ""), ("", "barrier.arrive 1, 64;")],
)
def test_a_warp_of_which_lanes_exit_counts_once(first, others):
    """Lanes that exit, before or after the others arrive, and with or without an arrival of their own."""
    for schedule, seed in SCHEDULES:
        where = dict(threads=64, schedule=schedule, seed=seed, initial=np.zeros(64))
        body = IN_HALVES.format(first=first, others=others, second="barrier.sync 1, 64;")
        assert (launch(body + STORE_R1 + "ret;", **where).words(64)[32:] == 5).all()
        with pytest.raises(Deadlock, match="32 of 64 threads have arrived"):
            launch(IN_HALVES.format(first=first, others="barrier.sync 1, 64;", second="") + "ret;", **where)


ARRIVE, SYNC = "barrier.cta.arrive 1, {count};", "barrier.cta.sync 1, {count};"
FORMS = {
    "halves of two warps arrive": (f"@%p2 bra DONE; {ARRIVE}", 64, False),
    "halves of two warps arrive, of three": (f"@%p2 bra DONE; {ARRIVE}", 96, True),
    "half of one warp arrives": (f"@%p2 bra DONE; @%p0 bra DONE; {ARRIVE}", 64, True),
    "half of one warp exits, and the rest arrives": (f"@%p0 bra DONE; @%p2 exit; {ARRIVE}", 64, True),
    "halves of two warps exit, and the rest arrives": (f"@%p2 exit; {ARRIVE}", 64, False),
    "halves of two warps exit, and the rest arrives, of three": (f"@%p2 exit; {ARRIVE}", 96, True),
    "half of one warp syncs": (f"@%p2 bra DONE; @%p0 bra DONE; {SYNC}", 64, True),
    "half of one warp exits, and the rest syncs": (f"@%p0 bra DONE; @%p2 exit; {SYNC}", 64, True),
    "half of one warp arrives twice": (
        f"@%p2 bra DONE; @%p0 bra DONE; {ARRIVE} bar.warp.sync 0xffff; {ARRIVE}", 64, False),
    "both halves of one warp arrive": (f"@%p0 bra DONE; @%p2 bra OTHER; {ARRIVE} bra DONE; OTHER: {ARRIVE}", 64, True),
    "both halves of one warp sync": (f"@%p0 bra DONE; @%p2 bra OTHER; {SYNC} bra DONE; OTHER: {SYNC}", 64, True),
    "both halves of one warp sync, of three": (
        f"@%p0 bra DONE; @%p2 bra OTHER; {SYNC} bra DONE; OTHER: {SYNC}", 96, False),
    "lane by lane": (
        "@%p0 bra DONE; mov.b32 %r9, 0; LANE: setp.ne.u32 %p3, %r8, %r9; @%p3 bra NEXT;"
        f"{ARRIVE} NEXT: bar.warp.sync -1; add.u32 %r9, %r9, 1; setp.lt.u32 %p3, %r9, 32; @%p3 bra LANE;", 64, False),
}  # fmt: skip
"""What warps 0 and 1 do at barrier 1, the count, and whether warp 2, which syncs, passes it even if it comes late. All
as measured on an H100 and an H200 on 2026-11-28 (driver 580)."""


@pytest.mark.parametrize("form", FORMS)
def test_lanes_wait_for_their_warp_which_counts_as_32(form):
    """PTX ISA 9.7.13.1: the threads wait for all threads of their warp that have not exited; then the warp counts."""
    does, count, passes = FORMS[form]
    body = f"""
    and.b32 %r8, %r0, 31; setp.ge.u32 %p2, %r8, 16; setp.ge.u32 %p0, %r0, 32; setp.ge.u32 %p1, %r0, 64;
    @%p1 bra LATE;
    {does.format(count=count)}
    DONE: exit;
    LATE: barrier.cta.sync 1, {count}; mov.b32 %r1, 5;
    """
    hangs = 0
    for schedule, seed in (*SCHEDULES, *(("random", seed) for seed in range(6, 20))):
        try:
            where = dict(threads=96, initial=np.zeros(96), schedule=schedule, seed=seed)
            assert (launch(body + STORE_R1 + "ret;", **where).words(96)[64:] == 5).all()
        except Deadlock:
            hangs += 1
    assert bool(hangs) != passes
