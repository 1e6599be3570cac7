"""Lanes of one warp that wait apart: for one another, or on different barriers, each released by its own."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from ptx_programs import STORE_R1, WORDS, launch, run

from emugpu.emulator import Deadlock, Device, Fault
from emugpu.emulator.native.library import library_for

LANES = np.arange(32)
SCHEDULES = [("fifo", 0), *(("random", seed) for seed in range(8))]


def everywhere(body: str, **options) -> list[np.ndarray]:
    """``out`` under several schedules."""
    return [run(body + STORE_R1 + "ret;", schedule=s, seed=n, module_scope=WORDS, **options) for s, n in SCHEDULES]


# ---- bar.sync with a count ----

HALVES = """
setp.ge.u32 %p2, %r0, 32; @%p2 bra OTHERS;
and.b32 %r6, %r0, 31; setp.lt.u32 %p1, %r6, 16; @%p1 bra FIRST;
barrier.sync 1{second}; bra OVER;
FIRST: barrier.sync 1{first}; bra OVER;
OTHERS: {others}
OVER: mov.u32 %r1, %r0;
"""


@pytest.mark.parametrize("others", ["barrier.sync 1{};", "bar.arrive 1, 64;", "exit;"])
@pytest.mark.parametrize(("first", "second"), [(", 64", ", 64"), (", 64", ", 32"), (", 32", ", 64"), (", 64", "")])
def test_both_halves_of_a_warp_name_as_many_threads_at_a_barrier(first, second, others):
    """In whatever order the halves and the other warp come to it."""
    text = HALVES.format(first=first, second=second, others=others.format(first))
    if first == second and "exit" not in others:
        assert all((out == np.arange(64)).all() for out in everywhere(text, threads=64))
        return
    for schedule, seed in SCHEDULES:
        with pytest.raises(Deadlock if first == second else Fault) as caught:
            run(text + STORE_R1 + "ret;", threads=64, schedule=schedule, seed=seed, module_scope=WORDS)
        assert first == second or (caught.value.rule == "barrier" and "named before" in str(caught.value))


# ---- bar.warp.sync ----

SIDES = """
mov.b32 %r3, words;
shl.b32 %r4, %r0, 2; add.u32 %r4, %r4, %r3;
xor.b32 %r5, %r4, 4;
and.b32 %r6, %r0, 1; setp.eq.u32 %p1, %r6, 1; @%p1 bra ODD;
add.u32 %r7, %r0, 100;
st.shared.b32 [%r4], %r7;
bar.warp.sync {mask};
ld.shared.b32 %r1, [%r5];
bra JOIN;
ODD:
{delay}
add.u32 %r7, %r0, 200;
st.shared.b32 [%r4], %r7;
bar.warp.sync {mask};
ld.shared.b32 %r1, [%r5];
JOIN:
"""
"""Even and odd lanes exchange words; each side of the branch has its own bar.warp.sync."""

DELAY = """
mov.b32 %r8, 20;
DELAY: sub.u32 %r8, %r8, 1; setp.ne.u32 %p2, %r8, 0; @%p2 bra DELAY;
"""


@pytest.mark.parametrize("delay", ["", DELAY], ids=["at once", "later"])
@pytest.mark.parametrize("mask", ["-1", "0xffffffff"])
def test_the_sides_of_a_branch_meet_at_their_own_warp_barriers(mask, delay):
    expected = np.where(LANES % 2, LANES - 1 + 100, LANES + 1 + 200)
    for out in everywhere(SIDES.format(mask=mask, delay=delay)):
        assert (out == expected).all()


def test_the_sides_of_a_branch_may_meet_more_than_once():
    body = """
    mov.b32 %r3, words;
    shl.b32 %r4, %r0, 2; add.u32 %r4, %r4, %r3;
    xor.b32 %r5, %r4, 64;
    mov.b32 %r1, 0;
    mov.b32 %r9, 0;
    setp.ge.u32 %p1, %r0, 16; @%p1 bra HIGH;
    LOW: st.shared.b32 [%r4], %r9;
    bar.warp.sync -1;
    ld.shared.b32 %r6, [%r5];
    add.u32 %r1, %r1, %r6;
    bar.warp.sync -1;
    add.u32 %r9, %r9, 1; setp.lt.u32 %p2, %r9, 4; @%p2 bra LOW;
    bra JOIN;
    HIGH: mul.lo.u32 %r7, %r9, 10;
    st.shared.b32 [%r4], %r7;
    bar.warp.sync -1;
    ld.shared.b32 %r6, [%r5];
    add.u32 %r1, %r1, %r6;
    bar.warp.sync -1;
    add.u32 %r9, %r9, 1; setp.lt.u32 %p2, %r9, 4; @%p2 bra HIGH;
    JOIN:
    """
    for out in everywhere(body):
        assert (out == np.where(LANES < 16, 60, 6)).all()


def test_a_warp_barrier_leaves_the_lanes_outside_its_mask_alone():
    """Lanes 8 to 15 and 16 to 23 meet; the others wait at the end of the branch."""
    body = """
    mov.b32 %r3, words;
    shl.b32 %r4, %r0, 2; add.u32 %r4, %r4, %r3;
    xor.b32 %r5, %r4, 96;
    mov.b32 %r1, 1;
    shr.u32 %r6, %r0, 3;
    setp.eq.u32 %p1, %r6, 1;
    setp.eq.u32 %p2, %r6, 2;
    @%p1 bra FIRST;
    @%p2 bra SECOND;
    bra JOIN;
    FIRST: st.shared.b32 [%r4], %r0;
    bar.warp.sync 0x00ffff00;
    ld.shared.b32 %r1, [%r5];
    bra JOIN;
    SECOND: st.shared.b32 [%r4], %r0;
    bar.warp.sync 0x00ffff00;
    ld.shared.b32 %r1, [%r5];
    JOIN:
    """
    for out in everywhere(body):
        assert (out == np.where((LANES >= 8) & (LANES < 24), LANES ^ 24, 1)).all()


def test_a_warp_barrier_does_not_wait_for_lanes_that_have_exited():
    body = """
    setp.ge.u32 %p1, %r0, 20; @%p1 exit;
    setp.ge.u32 %p1, %r0, 10; @%p1 bra SECOND;
    bar.warp.sync -1;
    mov.b32 %r1, 1;
    bra JOIN;
    SECOND: bar.warp.sync -1;
    mov.b32 %r1, 2;
    JOIN:
    """
    for schedule, seed in SCHEDULES:
        out = launch(body + STORE_R1 + "ret;", schedule=schedule, seed=seed).words(20)
        assert (out == np.where(LANES[:20] < 10, 1, 2)).all()


def test_a_warp_barrier_that_nobody_else_reaches_is_reported():
    body = """
    mov.b32 %r3, words;
    elect.sync %r5|%p3, -1;
    @!%p3 bra READY;
    mbarrier.init.shared.b64 [%r3], 1;
    READY: bar.warp.sync -1;
    setp.ge.u32 %p1, %r0, 16; @%p1 bra SECOND;
    bar.warp.sync -1;
    bra JOIN;
    SECOND: mbarrier.try_wait.parity.shared.b64 %p2, [%r3], 0; @!%p2 bra SECOND;
    JOIN: ret;
    """
    with pytest.raises((Deadlock, Fault), match=r"bar\.warp\.sync"):
        run(body, module_scope=WORDS)


def test_a_lane_outside_the_mask_of_its_warp_barrier_is_reported():
    with pytest.raises(Fault, match=r"bar\.warp\.sync 0x0000ffff"):
        run("bar.warp.sync 0x0000ffff; ret;")


# ---- elect.sync, and instructions that carry values ----

APART = """
mov.b32 %r1, 99;
setp.ge.u32 %p1, %r0, 12; @%p1 bra HIGH;
setp.lt.u32 %p2, %r0, {first}; @%p2 bra JOIN;
{low}
bra JOIN;
HIGH:
{high}
JOIN:
"""
"""The sides of a branch: of the lanes below 12 those from ``first`` on do what ``low`` says."""


@pytest.fixture(params=["python", "native"])
def engine(request):
    library = library_for(request.param)
    if request.param == "native" and library is None:
        pytest.skip("no Mojo compiler")
    return library


def with_engine(body: str, engine, schedule: str = "fifo", seed: int = 0) -> np.ndarray:
    device = Device(schedule=schedule, seed=seed, library=engine)
    return launch(body + STORE_R1 + "ret;", device=device, initial=np.full(32, 7), module_scope=WORDS).words(32)


ELECT = "elect.sync %r1|%p2, -1; @%p2 add.u32 %r1, %r1, 100;"
SOME = ELECT.replace("-1", "0xff00")
ELECTIONS = {
    "all": (0, ELECT, ELECT, np.where(LANES == 0, 100, 0)),
    "some": (8, SOME, "setp.ge.u32 %p3, %r0, 16; @%p3 bra JOIN;" + SOME,
             np.where(LANES == 8, 108, np.where((LANES > 8) & (LANES < 16), 8, 99))),
    "one exits": (0, ELECT, "setp.eq.u32 %p3, %r0, 20; @%p3 bra END;" + ELECT + "bra JOIN; END: exit;",
                  np.where(LANES == 0, 100, np.where(LANES == 20, 7, 0))),
    "all others exit": (0, ELECT, "exit;", np.where(LANES >= 12, 7, np.where(LANES == 0, 100, 0))),
    "the elected one exits then": (0, ELECT + "exit;", ELECT, np.where(LANES < 12, 7, 0)),
}  # fmt: skip
"""From where on, what lanes below 12 do, what the others do, and what lanes then hold; 7 is what was there."""


@pytest.mark.parametrize("name", ELECTIONS)
def test_lanes_that_elect_wait_for_those_that_come_later(name, engine):
    first, low, high, expected = ELECTIONS[name]
    for lane, delays in itertools.product(("%r1", "_"), (("", ""), (DELAY, ""), ("", DELAY))):
        body = APART.format(first=first, low=delays[0] + low, high=delays[1] + high)
        body = body.replace("elect.sync %r1", f"mov.b32 %r1, {first}; elect.sync {lane}")
        for schedule in SCHEDULES[:4]:
            assert (with_engine(body, engine, *schedule) == expected).all()


def test_an_election_and_a_warp_barrier_do_not_meet(engine):
    with pytest.raises(Deadlock) as said:
        with_engine(APART.format(first=0, low=ELECT, high="bar.warp.sync -1;"), engine)
    for lanes, others, what in (("00000fff", "fffff000", "elect"), ("fffff000", "00000fff", "bar.warp")):
        assert f"lanes 0x{lanes}: waits for lanes 0x{others}, PTX line" in str(said.value)
        assert f"{what}.sync of warp 0" in str(said.value)


def test_an_election_that_some_never_come_to_is_a_deadlock_that_names_them(engine):
    """Lanes from 12 on wait for an mbarrier that nobody completes; lane 20 has come."""
    high = "setp.ne.u32 %p3, %r0, 20; @%p3 bra AGAIN;" + ELECT + "bra JOIN;"
    high += "AGAIN: mbarrier.try_wait.parity.shared.b64 %p2, [%r3], 0; @!%p2 bra AGAIN;"
    ready = "mov.b32 %r3, words; setp.ne.u32 %p1, %r0, 0; @%p1 bra READY; mbarrier.init.shared.b64 [%r3], 1; READY:"
    with pytest.raises(Deadlock) as said:
        with_engine(ready + "bar.warp.sync -1;" + APART.format(first=0, low=ELECT, high=high), engine)
    for lanes in ("00000fff", "00100000"):
        assert f"lanes 0x{lanes}: waits for lanes 0xffeff000, PTX line" in str(said.value)


EXCHANGES = {
    "vote.sync.ballot.b32 %r1, %p1, M;": lambda here: sum(1 << lane for lane in here if lane >= 12),
    "vote.sync.all.pred %p3, %p1, M; selp.b32 %r1, 1, 0, %p3;": lambda here: min(here) >= 12,
    "shfl.sync.idx.b32 %r1, %r2, 31, 31, M;": lambda here: SQUARES[31],
    "shfl.sync.down.b32 %r1|%p3, %r2, 1, 31, M; selp.b32 %r1, %r1, 99, %p3;":
        lambda here: np.where(here == 31, 99, SQUARES[here + 1 & 31]),
    "redux.sync.add.u32 %r1, %r2, M;": lambda here: SQUARES[here].sum(),
    "match.any.sync.b32 %r1, %r2, M;":
        lambda here: [sum(1 << m for m in here if SQUARES[m] == SQUARES[n]) for n in here],
    "cvt.u64.u32 %rd3, %r2; match.all.sync.b64 %r1|%p3, %rd3, M;": lambda here: 0,
}  # fmt: skip
"""What lanes do with the members of a mask, and what those then hold."""
SQUARES = LANES * LANES % 11


@pytest.mark.parametrize("first", [0, 8, 11], ids=["all", "four and the others", "one and the others"])
@pytest.mark.parametrize("text", EXCHANGES)
def test_lanes_that_exchange_values_wait_for_those_that_come_later(text, first, engine):
    here, expected = LANES[first:], LANES * 0 + 99
    expected[here] = EXCHANGES[text](here)
    squares = "mul.lo.u32 %r2, %r0, %r0; rem.u32 %r2, %r2, 11;"
    for low, high in (("", ""), (DELAY, ""), ("", DELAY)):
        for schedule in SCHEDULES[:3]:
            now = text.replace("M", str(sum(1 << lane for lane in here.tolist())))
            body = squares + APART.format(first=first, low=low + now, high=high + now)
            assert (with_engine(body, engine, *schedule) == expected).all()


def test_values_that_are_not_all_defined_are_exchanged_by_lanes_apart(engine):
    """Lanes 0 and 1 have written no value, and nobody but they themselves gets it."""
    text = "setp.ge.u32 %p3, %r0, 2; @%p3 mov.b32 %r2, %r0; shfl.sync.bfly.b32 %r1, %r2, 1, 31, -1;"
    body = APART.format(first=0, low=text, high=text) + "@!%p3 mov.b32 %r1, 0;"
    assert (with_engine(body, engine) == np.where(LANES < 2, 0, LANES ^ 1)).all()
    with pytest.raises(Fault, match="register %r2, which was never written in lanes 0x00000003"):
        with_engine(APART.format(first=0, low=text, high=text), engine)


# ---- waits on different mbarriers ----

BARRIERS = """
mov.b32 %r3, words;
setp.ne.u32 %p1, %r0, 0; @%p1 bra READY;
mbarrier.init.shared.b64 [%r3], 1;
mbarrier.init.shared.b64 [%r3+8], 1;
mbarrier.init.shared.b64 [%r3+16], 16;
READY: bar.warp.sync -1;
bar.sync 0;
setp.ge.u32 %p4, %r0, 32; @%p4 bra SIGNAL;
setp.ge.u32 %p1, %r0, 16;
selp.b32 %r5, 8, 0, %p1;
add.u32 %r5, %r5, %r3;
"""
"""Lanes 0 to 15 of warp 0 are to wait on the barrier at 0, the others on that at 8; %r5 is its address."""

SIGNAL = """
bra STORE;
SIGNAL: mov.b32 %r1, 0;
setp.ne.u32 %p5, %r0, 32; @%p5 bra STORE;
mbarrier.arrive.shared.b64 %rd9, [%r3+{first}];
{between}
mbarrier.arrive.shared.b64 %rd9, [%r3+{second}];
STORE:
"""

ANSWERED = """
ANSWER: mbarrier.try_wait.parity.shared.b64 %p6, [%r3+16], 0; @!%p6 bra ANSWER;
"""
"""The second barrier is signalled only once the 16 lanes that wait for the first have answered."""

BRANCHES = """
@%p1 bra SECOND;
FIRST: mbarrier.try_wait.parity.shared.b64 %p2, [%r3], 0; @!%p2 bra FIRST;
{answer}
mov.b32 %r1, 1;
bra STORE;
SECOND: mbarrier.try_wait.parity.shared.b64 %p2, [%r3+8], 0; @!%p2 bra SECOND;
{answer}
mov.b32 %r1, 2;
"""

ANSWER = "mbarrier.arrive.shared.b64 %rd9, [%r3+16];"

ONE_LOOP = """
AGAIN: mbarrier.try_wait.parity.shared.b64 %p2, [%r5], 0; @!%p2 bra AGAIN;
{answer}
selp.b32 %r1, 2, 1, %p1;
"""

WHOLE_WARP_LOOP = """
setp.eq.u32 %p7, %r0, %r0;
AGAIN: mbarrier.try_wait.parity.shared.b64 %p2, [%r5], 0;
and.pred %p8, %p2, %p7;
@%p8 mbarrier.arrive.shared.b64 %rd9, [%r3+16];
@%p8 setp.ne.u32 %p7, %r0, %r0;
vote.sync.any.pred %p6, %p7, -1;
@%p6 bra AGAIN;
selp.b32 %r1, 2, 1, %p1;
"""
"""The warp goes round together until all its lanes have seen their barrier; each lane answers when it has."""

ORDERS = [(0, 8), (8, 0)]


@pytest.mark.parametrize("loop", [BRANCHES, ONE_LOOP], ids=["branches", "one loop"])
@pytest.mark.parametrize(("first", "second"), ORDERS)
def test_lanes_wait_on_different_barriers(first, second, loop):
    body = BARRIERS + loop.format(answer="") + SIGNAL.format(first=first, second=second, between=DELAY)
    for out in everywhere(body, threads=64):
        assert (out == np.repeat([1, 2, 0, 0], 16)).all()


@pytest.mark.parametrize(
    "loop", [BRANCHES, ONE_LOOP, WHOLE_WARP_LOOP], ids=["branches", "one loop", "a loop of the whole warp"]
)
@pytest.mark.parametrize(("first", "second"), ORDERS)
def test_lanes_that_are_released_answer_while_others_of_their_warp_wait(first, second, loop):
    """A try_wait ends for every lane by itself: those of the first barrier must get on for the second to complete."""
    body = BARRIERS + loop.format(answer=ANSWER) + SIGNAL.format(first=first, second=second, between=ANSWERED)
    for out in everywhere(body, threads=64):
        assert (out == np.repeat([1, 2, 0, 0], 16)).all()


@pytest.mark.parametrize("loop", [BRANCHES, ONE_LOOP], ids=["branches", "one loop"])
def test_a_barrier_that_never_completes_is_named(loop):
    body = BARRIERS + loop.format(answer="") + SIGNAL.format(first=0, second=0, between=ANSWERED)
    body = body.replace("mbarrier.try_wait.parity.shared.b64 %p6, [%r3+16], 0; @!%p6 bra ANSWER;", "bra STORE;")
    with pytest.raises(Deadlock, match="mbarrier at shared 0x408") as error:
        run(body + "ret;", threads=64, module_scope=WORDS)
    assert "mbarrier at shared 0x400" not in str(error.value)


def test_one_wait_for_phases_of_its_own_in_every_lane():
    """One instruction, one barrier, two parities: the lanes that ask for the finished phase go on at once."""
    body = """
    mov.b32 %r3, words;
    setp.ne.u32 %p1, %r0, 0; @%p1 bra READY;
    mbarrier.init.shared.b64 [%r3], 16;
    READY: bar.warp.sync -1;
    setp.lt.u32 %p1, %r0, 16;
    selp.b32 %r4, 1, 0, %p1;
    mov.b32 %r1, 0;
    AGAIN: add.u32 %r1, %r1, 1;
    mbarrier.try_wait.parity.shared.b64 %p2, [%r3], %r4; @!%p2 bra AGAIN;
    @%p1 mbarrier.arrive.shared.b64 %rd9, [%r3];
    min.u32 %r1, %r1, 1;
    """
    for out in everywhere(body):
        assert (out == 1).all()


@pytest.mark.parametrize("apart", [1, 2, 4, 0x80000000, 0xFFFFFFFE, 0xFFFF0000])
def test_lanes_that_were_apart_know_again_who_they_are(apart, engine):
    """The lane that comes first may have been alone."""
    body = f"""
    mov.u32 %r4, {apart}; shr.u32 %r4, %r4, %r0; and.b32 %r4, %r4, 1; setp.ne.u32 %p1, %r4, 0; @%p1 bra JOIN;
    add.u32 %r5, %r0, 1;
    JOIN: mov.u32 %r6, %tid.x; mov.u32 %r7, %laneid; mad.lo.u32 %r1, %r6, 100, %r7;
    """
    assert (with_engine(body, engine) == 101 * LANES).all()
    backwards = body.replace("@%p1", "@!%p1")
    assert (with_engine(backwards, engine) == 101 * LANES).all()


@pytest.mark.parametrize("alone", [0, 5, 31])
@pytest.mark.parametrize("schedule", [("fifo", 0), ("random", 1), ("random", 2)])
def test_a_lane_alone_elects_itself_and_others_keep_what_they_had(alone, schedule, engine):
    """Many times, as places are given to Python and to native code in turns; the predicate is used where lanes meet."""
    body = f"""
    setp.eq.u32 %p1, %r0, {alone}; and.b32 %r4, %r0, 1; mov.b32 %r5, 0; mov.b32 %r1, 0;
    AGAIN: setp.eq.u32 %p2, %r4, 1;
    @!%p1 bra JOIN;
    elect.sync _|%p2, {1 << alone}; xor.b32 %r1, %r1, 1; add.u32 %r1, %r1, 3; xor.b32 %r1, %r1, 1; sub.u32 %r1, %r1, 3;
    JOIN: selp.b32 %r6, 100, 1, %p2; add.u32 %r1, %r1, %r6;
    add.u32 %r5, %r5, 1; setp.lt.u32 %p3, %r5, 20; @%p3 bra AGAIN;
    """
    found = with_engine(body, engine, *schedule)
    others = alone != LANES
    assert (found[others] == np.where(LANES % 2, 2000, 20)[others]).all()
    expected = 0
    for _ in range(20):
        expected = ((expected ^ 1) + 3 ^ 1) - 3 + 100
    assert found[alone] == expected
