"""A CTA that goes round a loop gives way to what it waits for, under every schedule and engine, or is reported."""

from __future__ import annotations

import numpy as np
import pytest
from ptx_programs import source

from emugpu.check import Checker
from emugpu.emulator import Deadlock, Device, Fault, LaunchResult, LimitExceeded, Livelock, Module
from emugpu.emulator.machine.machine import SLICE
from emugpu.emulator.native.library import library_for

RUNS = [("fifo", 0, "native"), ("fifo", 0, "python"), ("declining", 0, "native"), ("reversed", 0, "native"),
        *(("random", seed, "native") for seed in range(2))]  # fmt: skip
everywhere = pytest.mark.parametrize(("schedule", "seed", "engine"), RUNS)

SEEN = ".shared .align 8 .b8 seen[16];\n.shared .align 128 .b8 data[128];"
START = "mov.u32 %r20, %ctaid.x; mov.u32 %r21, %nctaid.x; setp.ne.u32 %p0, %r0, 0; mov.u32 %r22, seen;\n"
"""%r20 and %r21: the CTA's number and their count; %p0: not thread 0."""


def spin(look: str, name: str = "", meanwhile: str = "") -> str:
    """A loop of all threads with two barriers inside: thread 0 sets %r5 by ``look``, until that is not 0."""
    return f"""
SPIN{name}: bar.sync 0;
@%p0 bra MEET{name};
{look}
st.shared.u32 [%r22], %r5;
MEET{name}: bar.sync 0;
{meanwhile}
ld.shared.u32 %r6, [%r22];
setp.eq.u32 %p1, %r6, 0; @%p1 bra SPIN{name};
"""


FLAG = "ld.acquire.gpu.global.u32 %r5, [%rd0];"
RAISE = "bar.sync 0; @%p0 bra RAISED; mov.u32 %r7, 1; st.release.gpu.global.u32 [%rd0], %r7; RAISED: ret;\n"
WAITER_FIRST = "setp.ne.u32 %p2, %r20, 0; @%p2 bra OTHER;\n"
DONE = "bar.sync 0; @%p0 bra END; mov.u32 %r7, 7; st.global.u32 [%rd0+4], %r7; END: ret;\n"


def run(
    body: str, schedule="fifo", seed=0, engine="native", grid=2, threads=64, initial=(0, 0, 0), **options
) -> tuple[LaunchResult, list[int]]:
    """Launches CTAs with a few words in global memory. Returns the result, and the words."""
    device = Device(schedule=schedule, seed=seed, library=library_for(engine))
    words = device.upload(np.array(initial, np.uint32), "words")
    module = Module.from_text(source(START + body, SEEN, target="sm_90a"))
    result = device.launch(module, grid=grid, block=threads, arguments=[words], **options)
    return result, device.download(words, np.uint32, len(initial)).tolist()


# ---- what is waited for comes ----


@everywhere
@pytest.mark.parametrize("threads", [32, 128])
def test_a_cta_that_spins_with_barriers_waits_for_one_that_has_not_started(schedule, seed, engine, threads):
    body = WAITER_FIRST + spin(FLAG) + DONE + "OTHER: " + RAISE
    assert run(body, schedule, seed, engine, threads=threads)[1] == [1, 7, 0]


def test_so_it_does_with_a_plain_load():
    """This is a race, but no hang: without a strong access nothing says that CTAs depend on one another."""
    body = WAITER_FIRST + spin("ld.global.u32 %r5, [%rd0];") + DONE + "OTHER: " + RAISE.replace("release.gpu.", "")
    assert run(body)[1] == [1, 7, 0]


@everywhere
def test_a_lock_is_taken_by_all_threads_of_a_cta_together(schedule, seed, engine):
    """As Triton compiles ``while tl.atomic_cas(lock, 0, 1) == 1``. The last CTA holds the lock when the first comes."""
    take = "atom.acquire.gpu.global.cas.b32 %r4, [%rd0], 0, 1; xor.b32 %r5, %r4, 1;"
    body = f"""
add.u32 %r8, %r20, 1; setp.eq.u32 %p2, %r8, %r21; @%p2 bra HAS;
{spin(take)}
HAS: bar.sync 0;
@%p0 bra END;
ld.global.u32 %r9, [%rd0+4]; add.u32 %r9, %r9, %r8; st.global.u32 [%rd0+4], %r9;
atom.release.gpu.global.exch.b32 %r4, [%rd0], 0;
END: ret;
"""
    checker = Checker()
    assert run(body, schedule, seed, engine, 5, initial=(1, 0), sinks=[checker])[1] == [0, 1 + 2 + 3 + 4 + 5]
    assert not checker.report().errors


@everywhere
def test_the_first_cta_adds_up_what_those_after_it_leave(schedule, seed, engine):
    """As in stream-K: the CTA that owns a tile waits for the parts of CTAs with higher numbers, one after the other."""
    body = f"""
mul.wide.u32 %rd4, %r20, 8; add.u64 %rd4, %rd0, %rd4;
add.u32 %r9, %r20, 10;
add.u32 %r8, %r20, 1; setp.eq.u32 %p2, %r8, %r21; @%p2 bra LAST;
{spin("ld.acquire.gpu.global.u32 %r5, [%rd4+8];")}
ld.global.u32 %r10, [%rd4+12]; add.u32 %r9, %r9, %r10;
LAST: bar.sync 0; @%p0 bra END;
st.global.u32 [%rd4+4], %r9; mov.u32 %r7, 1; st.release.gpu.global.u32 [%rd4], %r7;
END: ret;
"""
    assert run(body, schedule, seed, engine, 6, initial=[0] * 12)[1][1::2] == [75, 65, 54, 42, 29, 15]


@everywhere
def test_all_ctas_meet_although_each_spins_with_barriers(schedule, seed, engine):
    arrive = "@%p0 bra ARRIVED; mov.u32 %r7, 1; red.release.gpu.global.add.u32 [%rd0], %r7; ARRIVED:\n"
    look = "ld.acquire.gpu.global.u32 %r4, [%rd0]; setp.eq.u32 %p3, %r4, %r21; selp.u32 %r5, 1, 0, %p3;"
    assert run(arrive + spin(look) + DONE, schedule, seed, engine, 20)[1] == [20, 7, 0]


@everywhere
def test_a_copy_ends_although_its_cta_spins_with_barriers(schedule, seed, engine):
    body = f"""
mov.u32 %r23, data; add.u32 %r24, %r22, 8;
@%p0 bra READY;
mbarrier.init.shared.b64 [%r24], 1; fence.mbarrier_init.release.cluster;
mbarrier.arrive.expect_tx.shared.b64 _, [%r24], 16;
cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r23], [%rd0], 16, [%r24];
READY:
{spin("mbarrier.test_wait.parity.shared.b64 %p3, [%r24], 0; selp.u32 %r5, 1, 0, %p3;")}
ld.shared.u32 %r9, [%r23+8]; @%p0 bra END; st.global.u32 [%rd0+4], %r9; END: ret;
"""
    assert run(body, schedule, seed, engine, 1, initial=(1, 2, 3, 4))[1] == [1, 3, 3, 4]


@everywhere
def test_a_spin_that_writes_gives_way(schedule, seed, engine):
    """Each round counts in memory, so that it never looks like polling."""
    count = "atom.relaxed.gpu.global.add.u32 %r4, [%rd0+8], 1;"
    alone = f"SPIN: {count} {FLAG} setp.eq.u32 %p1, %r5, 0; @%p1 bra SPIN;"
    for loop in (spin(count + FLAG), *([alone] if schedule == "fifo" else [])):
        words = run(WAITER_FIRST + loop + DONE + "OTHER: " + RAISE, schedule, seed, engine)[1]
        assert words[:2] == [1, 7] and words[2] > 0


@pytest.mark.parametrize("engine", ["native", "python"])
def test_a_cta_that_computes_for_long_goes_on_while_another_one_spins(engine):
    work = f"mov.u32 %r8, 0; WORK: add.u32 %r8, %r8, 1; setp.lt.u32 %p3, %r8, {2 * SLICE}; @%p3 bra WORK;\n"
    assert run(WAITER_FIRST + spin(FLAG) + DONE + "OTHER: " + work + RAISE, engine=engine)[1] == [1, 7, 0]


@pytest.mark.parametrize(("schedule", "seed", "engine"), [run for run in RUNS if run[0] != "reversed"])
def test_a_wait_times_out_while_another_cta_spins(schedule, seed, engine):
    """CTA 1 leaves its wait for a phase that never ends because CTA 0 told it to, and then CTA 0 may go on."""
    tell = "bar.sync 0; @%p0 bra TOLD; mov.u32 %r7, 1; st.release.gpu.global.u32 [%rd0+8], %r7; TOLD:\n"
    wait = """
add.u32 %r24, %r22, 8; @%p0 bra READY; mbarrier.init.shared.b64 [%r24], 1; READY: bar.sync 0;
TRY: mbarrier.try_wait.parity.shared.b64 %p3, [%r24], 0; @%p3 bra RAISE;
ld.acquire.gpu.global.u32 %r9, [%rd0+8]; setp.eq.u32 %p4, %r9, 0; @%p4 bra TRY;
RAISE:
"""
    body = WAITER_FIRST + tell + spin(FLAG) + DONE + "OTHER: " + wait + RAISE
    assert run(body, schedule, seed, engine)[1] == [1, 7, 1]


@pytest.mark.parametrize("engine", ["native", "python"])
def test_a_spin_that_ends_by_itself_is_no_livelock(engine):
    """In registers or in memory, the rounds are counted."""
    for count in (
        "add.u32 %r8, %r8, 1;",
        "ld.shared.u32 %r8, [%r22+4]; add.u32 %r8, %r8, 1; st.shared.u32 [%r22+4], %r8;",
    ):
        look = count + "setp.gt.u32 %p3, %r8, 3000; selp.u32 %r5, 1, 0, %p3;"
        start = "mov.u32 %r8, 0; @%p0 bra GO; st.shared.u32 [%r22+4], %r8; GO:\n"
        assert run(start + spin(look) + DONE, engine=engine, grid=1)[1] == [0, 7, 0]


def test_both_engines_give_way_at_the_same_moment():
    body = WAITER_FIRST + spin("atom.relaxed.gpu.global.add.u32 %r4, [%rd0+8], 1;" + FLAG) + DONE + "OTHER: " + RAISE
    counters = [run(body, engine=engine)[0].counters for engine in ("native", "python")]
    assert counters[0] == counters[1] and counters[0].total_instructions() > 1000


# ---- what is waited for never comes ----


@everywhere
@pytest.mark.parametrize("threads", [32, 128])
def test_a_flag_that_nobody_raises_is_reported(schedule, seed, engine, threads):
    body = spin(FLAG) + DONE
    with pytest.raises(Livelock, match=r"CTA \(0, 0, 0\)(.|\n)*goes round a loop with barriers") as error:
        run(body, schedule, seed, engine, 3, threads)
    report = str(error.value)
    assert "'words'" in report and "ld.acquire.gpu.global.u32" in report and "CTA (2, 0, 0)" in report


@everywhere
def test_a_lock_that_is_never_given_back_is_reported(schedule, seed, engine):
    take = "atom.acquire.gpu.global.cas.b32 %r4, [%rd0], 0, 1; xor.b32 %r5, %r4, 1;"
    with pytest.raises(Livelock, match=r"polls global .*\('words' \+ 0\), PTX line \d+: atom.acquire.gpu.global.cas"):
        run(spin(take) + DONE, schedule, seed, engine, 4)


def test_ctas_without_room_are_named():
    look = "ld.acquire.gpu.global.u32 %r4, [%rd0]; setp.eq.u32 %p3, %r4, %r21; selp.u32 %r5, 1, 0, %p3;"
    arrive = "@%p0 bra ARRIVED; mov.u32 %r7, 1; red.release.gpu.global.add.u32 [%rd0], %r7; ARRIVED:\n"
    with pytest.raises(Livelock, match="1 of 4 clusters have not started: the GPU has room for 3"):
        run(arrive + spin(look) + DONE, grid=4, resident_clusters=3)


def test_a_spin_that_counts_its_rounds_without_end_reaches_the_limit():
    """Nothing proves that it never ends."""
    with pytest.raises(LimitExceeded, match="runs, at PTX line"):
        run(
            spin("add.u32 %r8, %r8, 1; mov.u32 %r5, 0;").replace("SPIN:", "mov.u32 %r8, 0; SPIN:", 1), max_steps=100_000
        )


# ---- pollers that nobody has answered ----


@pytest.mark.parametrize("seed", range(2))
def test_a_cta_that_polls_looks_again_when_something_else_is_there_and_not_whenever_another_one_goes_on(seed):
    """Each CTA of a chain polls the word of the one before. How often does not depend on how many others poll."""

    def accesses(ctas: int) -> float:
        body = """
@%p0 bra END; mul.wide.u32 %rd2, %r20, 4; add.s64 %rd2, %rd0, %rd2; setp.eq.u32 %p1, %r20, 0; @%p1 bra GIVE;
POLL: ld.acquire.gpu.global.u32 %r5, [%rd2+-4]; setp.eq.u32 %p2, %r5, 0; @%p2 bra POLL;
GIVE: mov.u32 %r7, 1; st.release.gpu.global.u32 [%rd2], %r7; END: ret;
"""
        result, words = run(body, "random", seed, grid=ctas, threads=32, initial=[0] * ctas)
        assert words == [1] * ctas
        return result.counters.instructions["memory"] / ctas

    assert accesses(120) < 1.5 * accesses(30)


@pytest.mark.parametrize("schedule", ["fifo", "declining", "reversed"])
def test_a_cta_that_polls_sees_a_value_that_comes_and_goes(schedule):
    """CTA 1 counts modulo 4 in a word, until CTA 0, which polls it for 3, says that it has seen it."""
    body = """
@%p0 bra END; setp.ne.u32 %p2, %r20, 0; @%p2 bra COUNT;
POLL: ld.relaxed.gpu.global.u32 %r5, [%rd0]; setp.ne.u32 %p1, %r5, 3; @%p1 bra POLL;
st.relaxed.gpu.global.u32 [%rd0+4], 7; bra END;
COUNT: mov.u32 %r9, 0;
NEXT: and.b32 %r10, %r9, 3; st.relaxed.gpu.global.u32 [%rd0], %r10; add.u32 %r9, %r9, 1;
ld.relaxed.gpu.global.u32 %r6, [%rd0+4]; setp.eq.u32 %p3, %r6, 0; @%p3 bra NEXT; END: ret;
"""
    assert run(body, schedule, threads=32, max_steps=10_000_000)[1][1] == 7


# ---- spurious failures ----


@pytest.mark.parametrize("seed", range(3))
def test_many_ctas_that_wait_for_a_phase_that_never_ends_are_soon_reported(seed):
    body = """
@%p0 bra READY; mbarrier.init.shared.b64 [%r22], 2; mbarrier.arrive.shared.b64 _, [%r22]; READY: bar.sync 0;
TRY: mbarrier.try_wait.parity.shared.b64 %p3, [%r22], 0; @!%p3 bra TRY;
ret;
"""
    with pytest.raises(Deadlock, match="pending: 1 of 2 arrivals"):
        run(body, "random", seed, grid=130, threads=32, max_steps=30_000)


@pytest.mark.parametrize(("again", "passes"), [("@!%p3 bra TRY;", True), ("", False), ("@!%p3 bra ONCE; ONCE:", False)])
def test_a_wait_that_is_not_repeated_fails_under_most_random_schedules(again, passes):
    """PTX ISA 9.7.13.15.16: try_wait may return false before the phase is over."""
    body = f"""
@%p0 bra READY; mbarrier.init.shared.b64 [%r22], 1; READY: bar.sync 0;
setp.lt.u32 %p4, %r0, 32; @%p4 bra TRY;
mov.u32 %r8, 0; SPIN: add.u32 %r8, %r8, 1; setp.lt.u32 %p5, %r8, 200; @%p5 bra SPIN;
st.shared.b32 [%r22+8], 7; bar.warp.sync -1;
setp.eq.u32 %p5, %r0, 32; @%p5 mbarrier.arrive.shared.b64 _, [%r22]; bra DONE;
TRY: mbarrier.try_wait.parity.shared.b64 %p3, [%r22], 0; {again}
ld.shared.b32 %r9, [%r22+8]; st.global.b32 [%rd0], %r9;
DONE: ret;
"""
    failed = 0
    for seed in range(4):
        try:
            run(body, "random", seed, threads=64)
        except Fault as fault:
            assert fault.rule == "uninitialised"
            failed += 1
    assert failed == 0 if passes else failed >= 3
