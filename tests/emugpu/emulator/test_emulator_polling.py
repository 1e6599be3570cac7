"""Loops that poll memory, a barrier or a clock: they make progress, end by themselves, or are reported by name."""

from __future__ import annotations

import re

import numpy as np
import pytest
from cuda_programs import cuda
from ptx_programs import STORE_R1, launch, run

from emugpu.emulator import Deadlock, Device, Livelock
from emugpu.emulator.native.library import library_for

SCHEDULES = [("fifo", 0), *(("random", seed) for seed in range(6))]
in_every_schedule = pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)


class Polling:
    """A kernel of polling.cu on its way: a word to poll, and words to write."""

    def __init__(self, schedule="fifo", seed=0, kind=np.uint32, words=2):
        self.device = Device(schedule=schedule, seed=seed)
        self.kind, self.words = kind, words
        self.word = self.device.upload(np.zeros(1, np.uint32), "polled word")
        self.results = self.device.upload(np.zeros(words, kind), "results")

    def launch(self, entry, *arguments, grid=2, block=32, **options):
        self.device.launch(cuda("polling"), entry, grid=grid, block=block, arguments=list(arguments), **options)
        return self.device.download(self.results, self.kind, self.words)

    def report(self, *arguments, **options) -> str:
        with pytest.raises(Livelock) as error:
            self.launch(*arguments, **options)
        return str(error.value)


def names_the_poll(report: str, address: int, instruction: str, name: str = "polled word") -> bool:
    """Whether one line says which PTX line polls which word."""
    words = (name, f"{address:#x}", instruction)
    return any(re.search(r"PTX line \d+", line) and all(w in line for w in words) for line in report.splitlines())


# ---- words in global memory ----


@in_every_schedule
def test_a_volatile_word_is_polled_until_another_cta_writes_it(schedule, seed):
    p = Polling(schedule, seed)
    state, seen = p.launch("wait_for_volatile", p.word, p.results, 300, 7)
    expected = 1
    for _ in range(300):
        expected = (expected * 1664525 + 1013904223) % 2**32
    assert (state, seen) == (expected, 7)


@in_every_schedule
def test_a_volatile_word_that_never_gets_the_value_is_reported(schedule, seed):
    p = Polling(schedule, seed)
    report = p.report("wait_for_volatile", p.word, p.results, 20, 8)
    assert names_the_poll(report, p.word, "ld.volatile.global.u32")
    assert "CTA (1, 0, 0)" in report and "CTA (0, 0, 0)" not in report


LOCKS = ["lock_by_cas", "lock_by_exchange", "lock_by_or", "lock_with_back_off"]


@in_every_schedule
@pytest.mark.parametrize("entry", LOCKS)
def test_a_spin_lock_is_passed_around(entry, schedule, seed):
    p = Polling(schedule, seed, np.int32, 1)
    assert p.launch(entry, p.word, p.results, 3, grid=4) == 3 * (1 + 2 + 3 + 4)


@pytest.mark.parametrize("entry", ["lock_never_given_back", "lock_with_back_off_never_given_back"])
@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES[:3])
def test_a_lock_that_is_never_given_back_is_reported(entry, schedule, seed):
    """The compare-and-swap that fails writes nothing, and pauses between the tries change nothing."""
    p = Polling(schedule, seed, np.int32, 1)
    report = p.report(entry, p.word, p.results, 1, grid=3)
    assert names_the_poll(report, p.word, "atom.relaxed.global.cas.b32")
    assert len(set(re.findall(r"CTA \((\d), 0, 0\)", report))) == 2, "one of three CTAs has come through"


@pytest.mark.parametrize("operation", ["exch.b32 %r5, [%rd4], 1", "or.b32 %r5, [%rd4], 4", "max.u32 %r5, [%rd4], 1"])
def test_polling_that_writes_the_same_value_again_is_reported(operation):
    """Nobody sees a difference in memory: this is polling, though every round writes."""
    body = f"""
    add.s64 %rd4, %rd0, 0;
    mov.b32 %r4, 5; st.global.b32 [%rd4], %r4;
    POLL: atom.global.{operation};
    setp.ne.s32 %p1, %r5, 0; @%p1 bra POLL;
    ret;
    """
    with pytest.raises(Livelock, match=rf"PTX line \d+.*atom.global.{operation.split('.')[0]}"):
        run(body, threads=1)


def test_polling_that_counts_in_memory_is_no_livelock():
    """The word changes in every round, and after 3000 of them the loop ends."""
    body = """
    mov.b32 %r4, 0; st.global.b32 [%rd0], %r4;
    POLL: atom.global.add.u32 %r5, [%rd0], 1;
    setp.lt.u32 %p1, %r5, 3000; @%p1 bra POLL;
    ret;
    """
    assert run(body, threads=1) == 3001


@in_every_schedule
def test_a_loop_that_gives_up_after_many_looks_ends_by_itself(schedule, seed):
    p = Polling(schedule, seed)
    assert (p.launch("wait_with_patience", p.word, p.results, 5000) == 5000).all()


def test_lanes_of_one_warp_wait_for_each_other():
    """Lane 0 polls what lane 31 writes after a divergent branch: every lane makes progress on its own."""
    body = """
    add.s64 %rd4, %rd0, 128;
    setp.eq.u32 %p1, %r0, 0;
    setp.eq.u32 %p2, %r0, 31;
    mov.b32 %r1, %r0;
    mov.b32 %r4, 0;
    @%p1 st.global.b32 [%rd4], %r4;
    bar.warp.sync -1;
    @%p1 bra POLL;
    @!%p2 bra JOIN;
    mov.b32 %r4, 55; st.volatile.global.b32 [%rd4], %r4;
    bra JOIN;
    POLL: ld.volatile.global.b32 %r1, [%rd4];
    setp.ne.s32 %p3, %r1, 55; @%p3 bra POLL;
    JOIN: bar.warp.sync -1;
    """
    for schedule, seed in SCHEDULES:
        out = run(body + STORE_R1 + "ret;", words=33, schedule=schedule, seed=seed)
        assert (out == [55, *range(1, 32), 55]).all()


def test_only_the_lanes_whose_flag_is_missing_are_reported():
    body = """
    mul.wide.u32 %rd4, %r0, 4; add.s64 %rd4, %rd0, %rd4;
    shr.u32 %r4, %r0, 4;
    st.volatile.global.b32 [%rd4], %r4;
    POLL: ld.volatile.global.b32 %r5, [%rd4];
    setp.eq.s32 %p1, %r5, 0; @%p1 bra POLL;
    ret;
    """
    with pytest.raises(Livelock, match=r"0x0000ffff(.|\n)*ld.volatile.global.b32|ld.volatile(.|\n)*0x0000ffff"):
        run(body)


# ---- words and barriers in shared memory ----

SHARED = ".shared .align 8 .b8 words[64];"


@in_every_schedule
def test_a_word_in_shared_memory_is_polled_until_another_warp_writes_it(schedule, seed):
    body = """
    mov.b32 %r3, words;
    mov.b32 %r4, 0;
    setp.eq.u32 %p1, %r0, 0;
    @%p1 st.shared.b32 [%r3], %r4;
    bar.sync 0;
    setp.ge.u32 %p2, %r0, 32; @%p2 bra WRITE;
    POLL: ld.volatile.shared.b32 %r1, [%r3];
    setp.eq.s32 %p3, %r1, 0; @%p3 bra POLL;
    bra STORE;
    WRITE: mov.b32 %r1, 3; st.volatile.shared.b32 [%r3], %r1;
    STORE:
    """
    out = run(body + STORE_R1 + "ret;", threads=64, module_scope=SHARED, schedule=schedule, seed=seed)
    assert (out == 3).all()


def test_a_word_in_shared_memory_that_nobody_writes_is_reported():
    body = """
    mov.b32 %r3, words;
    mov.b32 %r4, 0; st.shared.b32 [%r3+8], %r4;
    POLL: ld.volatile.shared.b32 %r1, [%r3+8];
    setp.eq.s32 %p3, %r1, 0; @%p3 bra POLL;
    ret;
    """
    with pytest.raises(Livelock, match=r"PTX line \d+.*ld.volatile.shared.b32") as error:
        run(body, module_scope=SHARED)
    assert "0x408" in str(error.value)


MBARRIER = """
mov.b32 %r3, words;
setp.eq.u32 %p1, %r0, 0;
@%p1 mbarrier.init.shared.b64 [%r3], {count};
bar.sync 0;
setp.ge.u32 %p2, %r0, 32; @%p2 bra ARRIVE;
{poll}
mov.b32 %r1, 1;
bra STORE;
ARRIVE: mov.b32 %r4, 0;
WORK: add.s32 %r4, %r4, 1; setp.lt.u32 %p3, %r4, 200; @%p3 bra WORK;
mbarrier.arrive.shared.b64 _, [%r3];
mov.b32 %r1, 2;
STORE:
"""
POLLS = {
    "test_wait": "POLL: mbarrier.test_wait.parity.shared::cta.b64 %p4, [%r3], 0; @!%p4 bra POLL;",
    "try_wait": "POLL: mbarrier.try_wait.parity.shared::cta.b64 %p4, [%r3], 0, 0x989680; @!%p4 bra POLL;",
    "state": """
    mbarrier.arrive.shared.b64 %rd5, [%r3];
    POLL: mbarrier.test_wait.shared.b64 %p4, [%r3], %rd5; @!%p4 bra POLL;
    """,
    "pause": """
    POLL: nanosleep.u32 20;
    mbarrier.test_wait.parity.shared::cta.b64 %p4, [%r3], 0; @!%p4 bra POLL;
    """,
}


@in_every_schedule
@pytest.mark.parametrize("how", POLLS)
def test_a_barrier_is_polled_until_another_warp_has_arrived(how, schedule, seed):
    body = MBARRIER.format(count=64 if how == "state" else 32, poll=POLLS[how])
    out = run(body + STORE_R1 + "ret;", threads=64, module_scope=SHARED, schedule=schedule, seed=seed)
    assert (out == np.repeat([1, 2], 32)).all()


@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES[:3])
@pytest.mark.parametrize("how", ["test_wait", "pause", "state"])
def test_a_barrier_that_never_completes_is_reported(how, schedule, seed):
    body = MBARRIER.format(count=65 if how == "state" else 33, poll=POLLS[how])
    with pytest.raises(Livelock) as error:
        run(body + STORE_R1 + "ret;", threads=64, module_scope=SHARED, schedule=schedule, seed=seed)
    report = str(error.value)
    assert "mbarrier at shared 0x400 of CTA rank 0: phase 0 (parity 0), pending: 1 of" in report
    assert re.search(r"PTX line \d+: mbarrier.test_wait", report)


def test_a_suspended_wait_that_never_ends_is_a_deadlock_and_no_livelock():
    with pytest.raises(Deadlock, match=r"mbarrier.try_wait") as error:
        run(MBARRIER.format(count=33, poll=POLLS["try_wait"]) + STORE_R1 + "ret;", threads=64, module_scope=SHARED)
    assert not isinstance(error.value, Livelock)


@in_every_schedule
@pytest.mark.parametrize("verb", ["test_wait", "try_wait"])
@pytest.mark.parametrize("hint", ["", ", 100"])
def test_a_wait_that_is_tried_a_few_times_ends_by_itself(verb, hint, schedule, seed):
    """A try_wait suspends the thread for a time at most: then it returns false."""
    if verb == "test_wait" and hint:
        pytest.skip("only try_wait has a suspend-time hint")
    poll = f"""
    mov.b32 %r5, 0;
    POLL: mbarrier.{verb}.parity.shared::cta.b64 %p4, [%r3], 0{hint};
    @%p4 bra JOIN;
    add.s32 %r5, %r5, 1; setp.lt.u32 %p5, %r5, 9; @%p5 bra POLL;
    mov.b32 %r1, %r5;
    bra STORE;
    JOIN:
    """
    body = MBARRIER.format(count=33, poll=poll)
    out = run(body + STORE_R1 + "ret;", threads=64, module_scope=SHARED, schedule=schedule, seed=seed)
    assert (out == np.repeat([9, 2], 32)).all()


# ---- clocks ----


@in_every_schedule
@pytest.mark.parametrize(("entry", "kind"), [("wait_for_globaltimer", np.uint64), ("wait_for_clock", np.int64)])
def test_a_wait_for_a_clock_ends_by_itself(entry, kind, schedule, seed):
    """A millisecond of the global timer, a million cycles of the clock."""
    p = Polling(schedule, seed, kind)
    elapsed = p.launch(entry, p.results, 1_000_000)
    assert (elapsed >= 1_000_000).all()


@in_every_schedule
@pytest.mark.parametrize("entry", ["wait_with_timeout", "wait_with_globaltimer_timeout"])
def test_a_wait_with_a_timeout_ends_by_itself(entry, schedule, seed):
    p = Polling(schedule, seed)
    assert (p.launch(entry, p.word, p.results, 1_000_000) == 0xDEAD).all()


def test_a_timeout_does_not_strike_while_the_others_are_at_work():
    """What is waited for comes in a moment: a clock that runs away from the work would report a hang."""
    p = Polling()
    p.device.launch(cuda("polling"), "wait_for_volatile", grid=1, block=32, arguments=[p.word, p.results, 10, 7])
    assert (p.launch("wait_with_timeout", p.word, p.results, 1_000_000) == 1).all()


# ---- no polling at all ----


@pytest.mark.thorough
def test_a_long_computation_is_no_livelock():
    """200,000 rounds without memory, barrier or clock; another warp's CTA waits for its turn meanwhile."""
    p = Polling(words=32)
    rounds = 200_000
    state = np.arange(1, 33, dtype=np.uint32)
    result = p.launch("compute_only", p.results, rounds, grid=1)
    factor, addend = 1, 0  # the linear congruence taken 200,000 times, by squaring
    step_factor, step_addend = 1664525, 1013904223
    left = rounds
    while left:
        if left & 1:
            factor, addend = factor * step_factor % 2**32, (addend * step_factor + step_addend) % 2**32
        step_factor, step_addend = step_factor**2 % 2**32, (step_factor + 1) * step_addend % 2**32
        left >>= 1
    assert (result == state * np.uint32(factor) + np.uint32(addend)).all()


@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES[:3])
def test_waiting_for_a_long_computation_is_no_livelock(schedule, seed):
    p = Polling(schedule, seed)
    assert p.launch("wait_for_volatile", p.word, p.results, 20_000, 7)[1] == 7


def test_a_register_may_be_uniform_in_one_round_of_a_loop_and_not_in_the_next():
    """A long loop is looked at as one that may be polling: its registers are compared with what they were."""
    body = """
    mov.u32 %r1, 5; mov.u32 %r2, 0; mov.u32 %r4, 0;
    AGAIN: xor.b32 %r4, %r4, %r1; and.b32 %r3, %r2, 2; setp.eq.u32 %p0, %r3, 0;
    @%p0 bra UNIFORM; mov.u32 %r1, %r0; bra NEXT;
    UNIFORM: mov.u32 %r1, 5;
    NEXT: add.u32 %r2, %r2, 1; setp.ne.u32 %p1, %r2, 2048; @%p1 bra AGAIN;
    """
    device = Device(library=library_for("python"))
    assert (launch(body + STORE_R1 + "ret;", device=device).words(32) == np.arange(32)).all()
