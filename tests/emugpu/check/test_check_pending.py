"""Accesses that are looked at many at a time: the same findings, in the same words and numbers, as one by one."""

from __future__ import annotations

import random
from typing import Any

import pytest
from ptx_programs import WORDS, module_of, source

from emugpu.check import pending, shadow, single_barrier
from emugpu.check.checker import Checker
from emugpu.check.unused_loads import UnusedLoads
from emugpu.emulator import Device, Fault
from emugpu.emulator.native import trace

SETUP = """
mov.b32 %r5, words; shl.b32 %r6, %r0, 2; add.u32 %r6, %r5, %r6; shl.b32 %r7, %r0, 4; add.u32 %r7, %r5, %r7;
add.u32 %r8, %r0, 32; and.b32 %r8, %r8, 127; shl.b32 %r8, %r8, 2; add.u32 %r8, %r5, %r8; add.u32 %r9, %r5, %r0;
setp.lt.u32 %p1, %r0, 32; setp.eq.u32 %p2, %r0, 70; mov.b32 %r1, 0; mov.b32 %r2, 1; mov.b32 %r3, 2; mov.b32 %r4, 3;
mov.b32 %r11, 0; st.shared.v4.b32 [%r7], {%r11, %r11, %r11, %r11}; bar.sync 0;
"""
PLACES = ("%r6", "%r6", "%r8", "%r7", "%r5+64", "%r6+1024", "%r9")
STEPS = (
    *["ld.shared.b32 %r1, [{at}];"] * 6, *["st.shared.b32 [{at}], %r0;"] * 3,
    "ld.shared.v4.b32 {{%r1,%r2,%r3,%r4}}, [%r7];",
    "st.shared.v4.b32 [%r7], {{%r1,%r2,%r3,%r4}};", "st.shared.u8 [%r9], %r0;", "ld.volatile.shared.b32 %r1, [{at}];",
    "atom.shared.add.u32 %r1, [{at}], 1;", "st.volatile.shared.b32 [{at}], %r0;", "bar.warp.sync -1;",
)  # fmt: skip


@pytest.fixture(autouse=True)
def no_load_is_unused(monkeypatch):
    """Otherwise findings about loads wait until the value is used, which is seen later if accesses are."""
    monkeypatch.setattr(UnusedLoads, "holds", lambda self, conflict, rule, tell: False)


def program(choose: random.Random, barriers: float) -> str:
    """Four warps that read and write the same words, with a barrier here and there."""
    steps = []
    for _ in range(24):
        guard = choose.choice(["", "", "", "@%p1 ", "@!%p1 ", "@%p2 "])
        step = choose.choice(STEPS)
        at = choose.choice(PLACES if "{at}" in step and ("b32" not in step or choose.random() < 0.1) else PLACES[:-1])
        steps.append(("" if "warp" in step else guard) + step.format(at=at if at != "%r9" else "%r5+128"))
        if choose.random() < barriers:
            steps.append("bar.sync 0;")
    return source(SETUP + "\n".join(steps) + "ret;", WORDS)


IN_GLOBAL_MEMORY = """
mul.wide.u32 %rd1, %r0, 4; add.s64 %rd1, %rd0, %rd1; mul.wide.u32 %rd2, %r0, 16; add.s64 %rd2, %rd0, %rd2;
setp.lt.u32 %p1, %r0, 32; setp.eq.u32 %p2, %r0, 70; mov.b32 %r2, 1; mov.b32 %r3, 2; mov.b32 %r4, 3; mov.b32 %r1, 0;
"""
GLOBAL_STEPS = (
    *["ld.global.b32 %r1, [%rd1];"] * 3, *["st.global.b32 [%rd1], %r2;"] * 4,
    "st.global.v2.b32 [%rd2+2048], {%r1, %r2};", "ld.global.v4.b32 {%r1,%r2,%r3,%r4}, [%rd2];",
    "st.global.u8 [%rd0+5], %r0;", "atom.global.add.u32 %r1, [%rd0+64], 1;", "ld.global.u16 %r1, [%rd0+128];",
    "ld.volatile.global.b32 %r1, [%rd0+64];", "st.global.b32 [%rd1+4096], %r0;",
)  # fmt: skip


def in_global_memory(choose: random.Random, own: int) -> str:
    """The same in global memory; the first accesses, so many, are to words of one's own."""
    steps = []
    for n in range(own + 6):
        guard = choose.choice(["", "", "@%p1 ", "@!%p1 ", "@%p2 "])
        steps.append(guard + choose.choice(GLOBAL_STEPS[:7] if n < own else GLOBAL_STEPS))
        if choose.random() < 0.3:
            steps.append("bar.sync 0;")
    return source(IN_GLOBAL_MEMORY + "\n".join(steps) + "ret;", WORDS)


def found(text: str, at_once: bool, schedule: Any, seed: int) -> Any:
    """The findings of a run of one CTA: of several it may be another one that is named."""
    checker = Checker(on_finding=(lambda finding: None) if at_once else None)
    device = Device(schedule=schedule, seed=seed)
    module = module_of(text)
    out = device.alloc(8192)
    device.memset(out, 0, 8192)
    try:
        device.launch(module, grid=1, block=128, arguments=[out], sinks=[checker])
    except Fault as error:
        if "never written" not in str(error):
            raise
        checker.failed(error)
    return [finding.as_dict() for finding in checker.report().findings]


@pytest.mark.thorough
@pytest.mark.parametrize("barriers", [0.9, 0.4])
@pytest.mark.parametrize("gives_up", [False, True])
def test_random_programs_give_the_same_findings(monkeypatch, barriers, gives_up):
    if gives_up:
        monkeypatch.setattr(pending, "TRIALS", 3)
        monkeypatch.setattr(pending, "FEWEST", 1000)
    rules: set[str] = set()
    for seed in range(12) if gives_up else range(25):
        text = program(random.Random(seed), barriers)
        for schedule, number in (("fifo", 0), ("random", seed)):
            expected = found(text, True, schedule, number)
            assert found(text, False, schedule, number) == expected, text
            rules |= {finding["rule"] for finding in expected}
    assert {"race-shared", "race-lanes"} <= rules


@pytest.mark.thorough
@pytest.mark.parametrize("room", [10, 1 << 17])
def test_so_do_accesses_to_global_memory(monkeypatch, room):
    monkeypatch.setattr(shadow, "PENDING", room)
    clean = raced = 0
    for seed in range(25):
        text = in_global_memory(random.Random(seed), 8 if seed % 2 else 0)
        for schedule, number in (("fifo", 0), ("random", seed)):
            expected = found(text, True, schedule, number)
            assert found(text, False, schedule, number) == expected, text
            clean, raced = clean + (not expected), raced + bool(expected)
    assert clean and raced


def uncounted(findings: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """But for how often a race was seen: what is looked at together is one time."""
    return [{**finding, "count": 0} for finding in findings]


BRANCHES = (
    "@{p} bra E{n}; {a} bra J{n}; E{n}: {b} J{n}:",
    "@{p} bra J{n}; {a} J{n}:",
    """
    mov.b32 %r2{depth}, 0;
    L{n}: {a} add.u32 %r2{depth}, %r2{depth}, 1; setp.le.u32 %p5, %r2{depth}, %r12; @%p5 bra L{n};
    """,
)
APART_STEPS = (
    *["ld.shared.b32 %r1, [{at}];"] * 4, *["st.shared.b32 [{at}], %r0;"] * 2, "st.shared.u8 [%r9], %r0;",
    "ld.shared.v4.b32 {{%r1,%r2,%r3,%r4}}, [%r7];", "ld.global.b32 %r1, [%rd1];", "st.global.b32 [%rd1], %r2;",
    "ld.global.b32 %r1, [%rd1+4];", "st.global.b32 [%rd1+4096], %r0;", "@%p2 st.shared.b32 [%r6], %r0;",
)  # fmt: skip


def with_branches(choose: random.Random) -> str:
    """Warps whose lanes are apart now and then, and load and store meanwhile; later, perhaps, an atomic."""
    labels = iter(range(100))

    def step(depth: int) -> str:
        plain = choose.choice(APART_STEPS).format(at=choose.choice(PLACES[:-1]))
        if depth == 2 or choose.random() < 0.4:
            return plain
        a, b = (" ".join(step(depth + 1) for _ in range(choose.choice((1, 2)))) for _ in "ab")
        p = choose.choice(("%p1", "%p2", "%p3", "!%p3", "%p4", "!%p6"))
        return choose.choice(BRANCHES).format(p=p, n=next(labels), a=a, b=b, depth=depth)

    steps = []
    for _ in range(choose.choice((4, 8, 12))):
        steps.append(step(0))
        if choose.random() < 0.6:
            steps.append(choose.choice(("bar.sync 0;", "bar.sync 0;", "bar.warp.sync -1;")))
    if choose.random() < 0.2:
        steps.insert(len(steps) // 3, choose.choice(("@%p2 ret;", "@%p6 ret;")))
    if choose.random() < 0.4:
        steps.insert(len(steps) // 2, "@%p2 atom.shared.add.u32 %r1, [%r5+2048], 1;")
    setup = f"""
    {IN_GLOBAL_MEMORY} {SETUP.replace("bar.sync 0;", "@%p1 st.shared.b32 [%r5+2048], %r11; bar.sync 0;")}
    and.b32 %r12, %r0, 1; setp.eq.u32 %p3, %r12, 0; setp.lt.u32 %p4, %r0, 40;
    and.b32 %r13, %r0, 31; setp.lt.u32 %p6, %r13, 4;
    """
    return source(setup + "\n".join(steps) + "ret;", WORDS)


@pytest.mark.thorough
@pytest.mark.parametrize(("entries", "kept"), [(64, 16), (1 << 16, 1 << 20)])
def test_so_do_programs_whose_lanes_are_apart(monkeypatch, entries, kept):
    monkeypatch.setattr(single_barrier, "KEPT", kept)
    rules: set[str] = set()
    for seed in range(60):
        text = with_branches(random.Random(seed))
        expected = found(text, True, "fifo", 0)
        with monkeypatch.context() as patch:
            patch.setattr(trace, "ENTRIES", entries)
            told = found(text, False, "fifo", 0)
        assert uncounted(told) == uncounted(expected), text
        rules |= {finding["rule"] for finding in expected}
    assert {"race-shared", "race-lanes", "race-global"} <= rules


LOOP = """
mov.b32 %r10, 0;
LOOP: st.shared.v4.b32 [%r7], {%r0, %r0, %r0, %r0}; bar.sync 0;
ld.shared.b32 %r1, [%r8]; ld.shared.b32 %r2, [%r6+256]; ld.shared.b32 %r3, [%r5+64];
WAIT add.u32 %r10, %r10, 1; setp.lt.u32 %p3, %r10, 40; @%p3 bra LOOP;
LAST ret;
"""

APART = {
    "each part stores its own words": ("st.shared.b32 [%r6], %r0;", "st.shared.b32 [%r6], %r1;", ""),
    "both parts store to one word": ("st.shared.b32 [%r13], %r0;", "st.shared.b32 [%r13], %r1;", "race-shared"),
    "one loads what the other stores": (
        "st.shared.b32 [%r6], %r0;", "ld.shared.b32 %r1, [%r6+-64];", "race-shared race-lanes",
    ),
    "one loads what the other has stored after its own lanes have met": (
        "st.shared.b32 [%r6], %r0; shfl.sync.bfly.b32 %r1, %r0, 1, 31, 0xffff;", "ld.shared.b32 %r1, [%r6+-64];",
        "race-shared race-lanes",
    ),
    "both load what one stores then": (
        "ld.shared.b32 %r1, [%r6+64];", "ld.shared.b32 %r1, [%r6]; st.shared.b32 [%r6], %r0;", "race-shared",
    ),
    "both load one word": ("ld.shared.b32 %r1, [%r5];", "ld.shared.b32 %r1, [%r5];", ""),
    "one updates its words": ("ld.shared.b32 %r1, [%r6]; st.shared.b32 [%r6], %r1;", "", ""),
    "one stores to global memory": ("st.global.b32 [%rd1], %r0;", "", ""),
    "both load from global memory": ("ld.global.b32 %r1, [%rd1];", "ld.global.b32 %r1, [%rd1+-64];", ""),
    "one stores to global memory, the other loads it": (
        "st.global.b32 [%rd1], %r0;", "ld.global.b32 %r1, [%rd1+-64];", "race-global",
    ),
    "one loads from global memory, the other stores it": (
        "ld.global.b32 %r1, [%rd1+64];", "st.global.b32 [%rd1], %r0;", "race-global",
    ),
}  # fmt: skip


@pytest.mark.parametrize("before", ["", LOOP.replace("WAIT", "bar.sync 0;").replace("LAST ret;", "bar.sync 0;")])
@pytest.mark.parametrize("name", APART)
def test_lanes_that_are_apart_are_in_no_order(monkeypatch, name, before):
    """The upper half of each warp and the lower one; where they touch nothing of one another's no events are made."""
    if before:
        monkeypatch.setattr(trace, "ENTRIES", 256)
        monkeypatch.setattr(single_barrier, "KEPT", 600)
    low, high, rule = APART[name]
    setup = f"""
    {IN_GLOBAL_MEMORY} {SETUP} {before} and.b32 %r12, %r0, 31; setp.lt.u32 %p3, %r12, 16;
    and.b32 %r13, %r0, 96; shl.b32 %r13, %r13, 2; add.u32 %r13, %r13, %r5;
    """
    body = f"@%p3 bra LOW; {high} bra BOTH; LOW: {low} BOTH: bar.sync 0; ld.shared.b32 %r1, [%r6]; ret;"
    given_up: list[Any] = []
    give_up = single_barrier.SingleBarrierCtas._give_up

    def _give_up(self: single_barrier.SingleBarrierCtas, *about: Any) -> Any:
        given_up.append(about)
        return give_up(self, *about)

    monkeypatch.setattr(single_barrier.SingleBarrierCtas, "_give_up", _give_up)
    text = source(setup + body, WORDS)
    expected = found(text, True, "fifo", 0)
    assert not given_up and {finding["rule"] for finding in expected} == {*rule.split()}
    assert found(text, False, "fifo", 0) == expected
    assert bool(given_up) == bool(rule)


IN_AN_INTERVAL = {
    "a lane loads what it has stored": ("st.shared.b32 [%r6], %r0; ld.shared.b32 %r1, [%r6];", False),
    "a lane stores what it has loaded": ("ld.shared.b32 %r1, [%r6]; st.shared.b32 [%r6], %r0;", False),
    "a lane loads what another has stored": ("st.shared.b32 [%r6], %r0; ld.shared.b32 %r1, [%r6+4];", True),
    "a lane stores what another has loaded": ("ld.shared.b32 %r1, [%r6+4]; st.shared.b32 [%r6], %r0;", True),
    "the last word of what another has stored": (
        "st.shared.v4.b32 [%r7], {%r1,%r2,%r3,%r4}; ld.shared.b32 %r1, [%r7+28];", True,
    ),
    "one of the words that a lane has stored": (
        "st.shared.v4.b32 [%r7], {%r1,%r2,%r3,%r4}; ld.shared.b32 %r1, [%r7+8];", False,
    ),
    "what another has stored behind the first 128 bytes": (
        "st.shared.v4.b32 [%r7], {%r1,%r2,%r3,%r4}; setp.ge.u32 %p3, %r0, 16; @%p3 ld.shared.b32 %r1, [%r7+28];", True,
    ),
    "what another has loaded behind the first 128 bytes": (
        "ld.shared.v4.b32 {%r1,%r2,%r3,%r4}, [%r7]; setp.ge.u32 %p3, %r0, 16; @%p3 st.shared.b32 [%r7+28], %r0;", True,
    ),
    "one stores, all do, all load": (
        "st.shared.b32 [%r6], %r0; st.shared.b32 [%r5], %r2; ld.shared.b32 %r1, [%r5];", True,
    ),
    "all load, one stores": ("ld.shared.b32 %r1, [%r5]; st.shared.b32 [%r6], %r0;", True),
    "all load what one has stored after they met": (
        "st.shared.b32 [%r6], %r0; bar.warp.sync -1; ld.shared.b32 %r1, [%r5];", False,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", IN_AN_INTERVAL)
def test_lanes_of_a_warp_are_in_no_order_until_they_meet(monkeypatch, name):
    """Of one warp, for which no events are made unless there may be a race."""
    steps, races = IN_AN_INTERVAL[name]
    given_up: list[Any] = []
    give_up = single_barrier.SingleBarrierCtas._give_up

    def _give_up(self: single_barrier.SingleBarrierCtas, *about: Any) -> Any:
        given_up.append(about)
        return give_up(self, *about)

    monkeypatch.setattr(single_barrier.SingleBarrierCtas, "_give_up", _give_up)
    text = source(f"{SETUP} @!%p1 bra END; {steps} END: ret;", WORDS)
    assert {finding["rule"] for finding in found(text, True, "fifo", 0)} == ({"race-lanes"} if races else set())
    found(text, False, "fifo", 0)
    assert bool(given_up) == races


INNER = "@%p6 bra I{n}; add.u32 %r1, %r1, 1; I{n}: "
TIMES = {
    "the others split up once more": ("add.u32 %r1, %r1, 1;", INNER.format(n=1)),
    "the first ones split up, and are the last to arrive": (INNER.format(n=1) + INNER.format(n=2), ""),
    "both do": (INNER.format(n=1), INNER.format(n=2) + INNER.format(n=3)),
}


@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize("name", TIMES)
def test_what_was_taken_before_a_cta_is_given_up_has_its_time(name, waits):
    """A store to global memory behind lanes that were apart, and another warp's load of it that is looked at alone."""
    low, high = TIMES[name]
    body = f"""
    {IN_GLOBAL_MEMORY} {SETUP.replace("bar.sync 0;", "@%p1 st.shared.b32 [%r5+2048], %r11; bar.sync 0;")}
    and.b32 %r12, %r0, 31; setp.lt.u32 %p3, %r12, 16; and.b32 %r12, %r0, 7; setp.lt.u32 %p6, %r12, 3;
    setp.ge.u32 %p4, %r0, 96; setp.eq.u32 %p5, %r0, 40;
    @%p3 bra LOW; {high} bra BOTH; LOW: {low} BOTH: bar.sync 0;
    @%p4 st.global.b32 [%rd1], %r0; {"bar.sync 0;" if waits else ""}
    @%p5 atom.shared.add.u32 %r1, [%r5+2048], 1; @%p5 ld.global.b32 %r1, [%rd0+400]; ret;
    """
    text = source(body, WORDS)
    expected = found(text, True, "fifo", 0)
    assert bool(expected) != waits
    assert found(text, False, "fifo", 0) == expected


@pytest.mark.parametrize("races", [True, False])
def test_lanes_may_leave_apart(races):
    """Those of several warps store to one word in global memory before they do, or each to its own."""
    place = "%rd0" if races else "%rd1"
    text = source(f"{IN_GLOBAL_MEMORY} and.b32 %r12, %r0, 1; setp.eq.u32 %p3, %r12, 0; @%p3 bra LOW; ret;\n"
                  f"LOW: st.global.b32 [{place}], %r0; ret;")  # fmt: skip
    expected = found(text, True, "fifo", 0)
    assert bool(expected) == races
    assert found(text, False, "fifo", 0) == expected


@pytest.mark.parametrize("races", [True, False])
def test_it_is_not_forgotten_that_lanes_are_apart(monkeypatch, races):
    """In a long loop of loads from global memory, at the end of which others of the warp store there, or load."""
    monkeypatch.setattr(trace, "ENTRIES", 64)
    monkeypatch.setattr(single_barrier, "KEPT", 16)
    body = f"""
    {IN_GLOBAL_MEMORY} and.b32 %r12, %r0, 31; setp.lt.u32 %p3, %r12, 16; mov.b32 %r10, 0;
    @%p3 bra LOW; MORE: ld.global.b32 %r1, [%rd1+-64]; add.u32 %r10, %r10, 1; setp.lt.u32 %p4, %r10, 400; @%p4 bra MORE;
    bra BOTH; LOW: add.u32 %r10, %r10, 1; setp.lt.u32 %p4, %r10, 400; @%p4 bra LOW;
    {"st.global.b32 [%rd1], %r0;" if races else "ld.global.b32 %r1, [%rd1];"} BOTH: ret;
    """
    text = source(body)
    expected = found(text, True, "fifo", 0)
    assert bool(expected) == races
    assert found(text, False, "fifo", 0) == expected


def test_a_run_that_ends_while_lanes_are_apart_is_looked_at():
    """Parts of several warps store to one word in global memory, and one of the last ends the run."""
    setup = f"{IN_GLOBAL_MEMORY} {SETUP} and.b32 %r12, %r0, 31; setp.lt.u32 %p3, %r12, 16;"
    body = "@%p3 bra LOW; bra BOTH; LOW: st.global.b32 [%rd0], %r0; @%p2 ld.shared.b32 %r1, [%r6+2048]; BOTH: ret;"
    text = source(setup + body, WORDS)
    expected = found(text, True, "fifo", 0)
    assert {finding["rule"] for finding in expected} == {"race-global"}
    assert found(text, False, "fifo", 0) == expected


@pytest.fixture
def none_is_single_barrier(monkeypatch):
    """Nothing is looked at natively."""
    monkeypatch.setattr(single_barrier.SingleBarrierCtas, "start", lambda self, event: None)


@pytest.mark.usefixtures("none_is_single_barrier")
def test_what_was_noted_when_noting_ends_is_not_lost(monkeypatch):
    for name, value in (("TRIALS", 3), ("FEWEST", 8), ("MOST", 8)):
        monkeypatch.setattr(pending, name, value)
    text = program(random.Random(1268), 0.15)
    expected = found(text, True, "random", 0)
    assert len(expected) == 25 and found(text, False, "random", 0) == expected


@pytest.mark.usefixtures("none_is_single_barrier")
@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize("last", ["", "st.shared.b32 [%r8], %r0;", "@%p2 atom.shared.add.u32 %r1, [%r5+64], 1;"])
def test_what_is_forgotten_is_missed_by_nobody(monkeypatch, waits, last):
    """A tile that is written and read forty times, with and without a barrier before it is written again."""
    text = source(SETUP + LOOP.replace("WAIT", "bar.sync 0;" if waits else "").replace("LAST", last), WORDS)
    expected = found(text, True, "fifo", 0)
    for most in (16, 64, 1 << 14):
        monkeypatch.setattr(pending, "MOST", most)
        assert found(text, False, "fifo", 0) == expected, most
    assert bool(expected) == (not waits)


@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize("schedule", ["fifo", "random"])
@pytest.mark.parametrize("last", ["", "st.shared.b32 [%r8], %r0;", "@%p2 atom.shared.add.u32 %r1, [%r5+64], 1;"])
def test_nor_what_is_forgotten_of_a_single_barrier_cta(monkeypatch, waits, schedule, last):
    text = source(SETUP + LOOP.replace("WAIT", "bar.sync 0;" if waits else "").replace("LAST", last), WORDS)
    expected = found(text, True, schedule, 3)
    monkeypatch.setattr(trace, "ENTRIES", 256)
    for kept in (16, 600, 1 << 20):
        monkeypatch.setattr(single_barrier, "KEPT", kept)
        assert found(text, False, schedule, 3) == expected, kept
    assert bool(expected) == (not waits)


@pytest.mark.parametrize("schedule", ["fifo", "random"])
def test_of_a_single_barrier_cta_in_order_no_events_are_made(monkeypatch, schedule):
    """And what is kept of it is no more than the last generations."""
    text = source(SETUP + LOOP.replace("WAIT", "bar.sync 0;").replace("LAST", ""), WORDS)
    given_up: list[Any] = []
    kept: list[int] = []
    move = single_barrier.SingleBarrierCtas._move

    def _move(self: single_barrier.SingleBarrierCtas, *one: Any) -> bool:
        kept.append(self._count)
        return move(self, *one)

    monkeypatch.setattr(trace, "ENTRIES", 256)
    monkeypatch.setattr(single_barrier, "KEPT", 600)
    monkeypatch.setattr(single_barrier.SingleBarrierCtas, "_give_up", lambda self, *about: given_up.append(about))
    monkeypatch.setattr(single_barrier.SingleBarrierCtas, "_move", _move)
    assert found(text, False, schedule, 3) == []
    assert not given_up
    assert len(kept) >= 3 and max(kept) < 1000


@pytest.mark.parametrize("races", [True, False])
def test_a_run_that_ends_by_a_fault_is_looked_at_first(races):
    """Of memory that nobody has written is only told where nothing else was found."""
    text = SETUP + ("@%p1 st.shared.b32 [%r8], %r0; @!%p1 st.shared.b32 [%r6], %r11;" if races else "")
    text = source(text + "bar.sync 0; ld.shared.b32 %r1, [%r6+2048]; ret;", WORDS)
    expected = found(text, True, "fifo", 0)
    assert found(text, False, "fifo", 0) == expected
    assert {finding["rule"] for finding in expected} == ({"race-shared"} if races else {"memory"})


@pytest.mark.usefixtures("none_is_single_barrier")
@pytest.mark.parametrize("waits", [True, False])
def test_one_warp_may_access_more_than_is_noted_at_most(monkeypatch, waits):
    """With nothing in between: what is noted is one entry, and no half of it can be forgotten."""
    loop = "mov.b32 %r10, 0; LOOP: ld.shared.b32 %r1, [%r6]; add.u32 %r10, %r10, 1; setp.lt.u32 %p3, %r10, 50;"
    last = f"@%p3 bra LOOP; {'bar.sync 0;' if waits else ''} st.shared.b32 [%r8], %r0; ret;"
    text = source(SETUP + loop + last, WORDS)
    expected = found(text, True, "fifo", 0)
    monkeypatch.setattr(pending, "MOST", 16)
    assert found(text, False, "fifo", 0) == expected
    assert bool(expected) == (not waits)


@pytest.mark.usefixtures("none_is_single_barrier")
def test_a_program_in_order_never_asks_its_histories(monkeypatch):
    """Nor one whose places are read far more often than can be noted, if they are written, too."""
    text = source(SETUP + LOOP.replace("WAIT", "bar.sync 0;").replace("LAST", ""), WORDS)
    handed: list[Any] = []
    monkeypatch.setattr(pending.PendingAccesses, "_hand_over", lambda self: handed.append(self))
    monkeypatch.setattr(pending, "MOST", 64)
    assert found(text, False, "fifo", 0) == []
    assert not handed


@pytest.mark.parametrize("access", ["ld.shared.u32 %r1, [%r5+1048576];", "st.shared.u32 [%r5+1048576], %r0;"])
def test_an_access_beyond_all_shared_memory_is_the_fault_that_it_is(access):
    with pytest.raises(Fault, match="beyond the CTA's"):
        found(source(f"{SETUP} {access} ret;", WORDS), False, "fifo", 0)


FEW = {
    "a write after a read": "@%p1 ld.shared.b32 %r1, [%r8]; @!%p1 st.shared.b32 [%r6], %r0;",
    "a write after a read that histories have": """
        @%p1 ld.shared.b32 %r1, [%r8]; @%p1 atom.shared.add.u32 %r1, [%r5+2048], 1; @!%p1 st.shared.b32 [%r6], %r0;
        """,
    "a read after a write": "@%p1 st.shared.b32 [%r8], %r0; @!%p1 ld.shared.b32 %r1, [%r6];",
    "a read after another CTA's thread or an atomic": """
        @%p1 atom.shared.add.u32 %r1, [%r5+2048], 1; @!%p1 ld.shared.b32 %r1, [%r5+2048];
        """,
    "two writes": "@%p1 st.shared.b32 [%r8], %r0; @!%p1 st.shared.b32 [%r6], %r11;",
    "three writes": "st.shared.b32 [%r5], %r0; bar.sync 0; @%p1 st.shared.b32 [%r5], %r0;",
    "two parts of a chunk": """
        @%p1 st.shared.u8 [%r5+64], %r0; @!%p1 st.shared.u8 [%r5+65], %r0; @%p2 st.shared.u8 [%r5+64], %r0;
        """,
}


@pytest.mark.parametrize("starts", [True, False])
@pytest.mark.parametrize("name", FEW)
def test_one_race_is_found(name, starts):
    """As the first that is done with the memory, and after what was in order."""
    setup = SETUP if starts else SETUP.replace("st.shared.v4.b32 [%r7], {%r11, %r11, %r11, %r11};", "")
    if not starts and ("ld" in FEW[name] or "atom" in FEW[name]):
        setup = setup.replace("bar.sync 0;", "st.volatile.shared.v4.b32 [%r7], {%r11, %r11, %r11, %r11};\n"
                              "@%p1 st.volatile.shared.b32 [%r5+2048], %r11; bar.sync 0;")  # fmt: skip
    elif starts:
        setup = setup.replace("bar.sync 0;", "@%p1 st.shared.b32 [%r5+2048], %r11; bar.sync 0;")
    text = source(setup + FEW[name] + "ret;", WORDS)
    expected = found(text, True, "fifo", 0)
    assert "race-shared" in {finding["rule"] for finding in expected}
    assert found(text, False, "fifo", 0) == expected
