"""The native engine against the Python one: the same results, counters, schedules and faults, to the word."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from native_engine import PREFIX, Listener, library, listened, outcome, same, watched
from ptx_programs import WORDS, module_of, source

from emugpu.emulator import Device, Fault, Livelock, Module
from emugpu.emulator.machine import machine
from emugpu.emulator.machine.machine import Machine
from emugpu.emulator.native import trace
from emugpu.emulator.native.engine import NativeEngine
from emugpu.emulator.native.layout import StopReason
from emugpu.emulator.native.plan import SHORTEST
from emugpu.errors import CannotRun
from emugpu.launch.launch_file import read_launch_file
from emugpu.launch.launching import EmulationOptions, run
from harness.paths import ROOT

SGEMM = (ROOT / "tests" / "data" / "cuda" / "sgemm.ptx").read_text()
LAUNCHES = sorted((ROOT / "tests" / "data" / "launches").glob("*.toml"))


# ---- pieces, turns and loops ----


def test_later_launches_of_a_kernel_find_its_memory_as_new():
    """Twelve launches one after the other, each of which leaves the rows and the tables as they come, or faults."""
    body = """
    setp.lt.u32 %p1, %r0, 16; mul.wide.u32 %rd1, %r0, 4; add.s64 %rd1, %rd0, %rd1; ld.param.u32 %r9, [n];
    @%p1 mov.b32 %r5, %r0; setp.gt.u32 %p2, %r0, %r9; @%p2 bra A; add.u32 %r5, %r5, %r9; A: bar.sync 0;
    @%p1 st.global.u32 [%rd1], %r5; setp.eq.u32 %p3, %r9, 7; @!%p3 bra B; setp.gt.u32 %p4, %r5, 3; @%p4 bra B; B: ret;
    """
    module = Module(source(body, parameters=["u32 n"]))
    kept = []
    for n in range(12):
        found = []
        for modules, has in ((module, True), (Module(source(body, parameters=["u32 n"])), False)):
            device = Device(library=library() if has else None)
            out = device.alloc(256)
            device.memset(out, 0xEE, 256)
            try:
                device.launch(modules, grid=2, block=64, arguments=[out, n])
                found.append(device.download(out, np.uint32, 64).tolist())
            except Fault as error:
                found.append(str(error))
        assert found[0] == found[1]
        assert isinstance(found[0], str) == (n == 7)
        kept += module.code(None).native(True, True).workspaces
    assert len(kept) == 11  # not that of the launch that has failed
    assert len({id(one) for one in kept}) == 2


def test_what_python_does_in_a_block_is_done_between_native_pieces():
    body = f"""
    {PREFIX}
    st.shared.u32 [%r7], %r0;
    add.u32 %r1, %r0, 1;
    {"add.u32 %r1, %r1, 1;" * SHORTEST}
    match.any.sync.b32 %r2, %r1, -1;
    add.u32 %r3, %r2, %r1;
    {"add.u32 %r3, %r3, %r1;" * SHORTEST}
    mul.lo.u32 %r3, %r3, 3;
    xor.b32 %r3, %r3, %r2;
    st.global.u32 [%rd1], %r3;
    ret;
    """
    found = same(source(body, WORDS))
    assert found["stops"][StopReason.LEFT]
    assert "error" not in found


@pytest.mark.parametrize(
    ("accesses", "plain", "is_native"),
    [(0, 12, True), (0, 11, False), (1, 8, True), (1, 7, False), (3, 0, True), (2, 3, False)],
)
def test_a_piece_is_native_if_it_costs_python_as_much_as_twelve_plain_instructions(accesses, plain, is_native):
    python = "match.any.sync.b32 %r2, %r0, -1;"
    piece = "st.shared.u32 [%r7], %r0;" * accesses + "add.u32 %r1, %r0, 1;" * plain
    with watched() as stops:
        assert "error" not in outcome(source(PREFIX + python + piece + python + "ret;", WORDS), native=True)
    assert bool(stops) == is_native


COLLATZ = """
    mul.wide.u32 %rd1, %r0, 4; add.s64 %rd1, %rd0, %rd1;
    mov.b32 %r1, 0;
    add.u32 %r2, %r0, 1;
    LOOP:
    setp.eq.u32 %p1, %r2, 1;
    @%p1 bra DONE;
    add.u32 %r1, %r1, 1;
    and.b32 %r3, %r2, 1;
    setp.eq.u32 %p2, %r3, 0;
    @%p2 bra EVEN;
    mad.lo.u32 %r2, %r2, 3, 1;
    bra LOOP;
    EVEN:
    shr.u32 %r2, %r2, 1;
    bra LOOP;
    DONE:
    st.global.u32 [%rd1], %r1;
    ret;
"""


@pytest.mark.parametrize("schedule, seed", [("fifo", 0), ("random", 1), ("random", 2), ("random", 3)])
def test_lanes_that_go_separate_ways(schedule, seed):
    found = same(source(COLLATZ), schedule=schedule, seed=seed, threads=48)
    stops = found["stops"]
    assert stops.keys() <= {StopReason.EXITS, StopReason.CANNOT_SPLIT, StopReason.STRANGER, StopReason.NOTHING_LEFT}
    assert stops[StopReason.EXITS] == (1 if schedule == "fifo" else 2)  # CTAs that Python ends

    def steps(n: int) -> int:
        return 0 if n == 1 else 1 + steps(n // 2 if n % 2 == 0 else 3 * n + 1)

    assert np.frombuffer(found["out"], np.uint32)[:48].tolist() == [steps(n + 1) for n in range(48)]


@pytest.mark.parametrize("most", [1, 3, 50])
def test_turns_may_be_broken_off_while_lanes_are_apart(monkeypatch, most):
    """Splits and joins of the turns before are handed over then, and others of these turns take their numbers."""
    monkeypatch.setattr(machine, "NATIVE_TURNS", most)
    assert same(source(COLLATZ), threads=48)["stops"][StopReason.TURNS_OVER] > 3


def test_lanes_that_leave_a_long_loop_one_by_one_need_python_only_to_end_the_last_cta():
    """They go on natively in the window, too, in which it is watched whether the loop only polls."""
    stops = same(source(COLLATZ), threads=64)["stops"]
    assert stops.keys() <= {StopReason.EXITS, StopReason.CANNOT_SPLIT, StopReason.TURNS_OVER}
    assert stops[StopReason.EXITS] == 1


def test_fragments_that_python_knew_at_a_barrier_go_on_natively_once_it_completes():
    """Three warps wait while Python runs an instruction of the last one; then all wait for each other 200 times."""
    body = f"""
    {PREFIX} mov.b32 %r1, 0; setp.lt.u32 %p2, %r0, 96; @%p2 bra MEET; mbarrier.init.shared.b64 [words+2048], 1;
    MEET: bar.sync 0;
    LOOP: st.shared.u32 [%r7], %r1; bar.sync 0; xor.b32 %r3, %r7, 128; ld.shared.u32 %r2, [%r3]; bar.sync 0;
    add.u32 %r1, %r2, 1; setp.lt.u32 %p1, %r1, 100; @%p1 bra LOOP; st.global.u32 [%rd1], %r1; ret;
    """
    found = same(source(body, WORDS), threads=128)
    assert (np.frombuffer(found["out"], np.uint32)[:128] == 100).all()
    assert found["stops"][StopReason.OTHERS_FIRST] and found["stops"].total() < 60


def test_a_loop_that_only_polls_is_found_out_all_the_same():
    body = "LOOP: ld.global.u32 %r1, [%rd0]; add.u32 %r2, %r1, 1; setp.ne.u32 %p1, %r2, 0; @%p1 bra LOOP; ret;"
    assert Livelock.__name__ in same(source(body))["error"]


@pytest.mark.parametrize("split", ["", "@!%p2 bra SECOND;"])
@pytest.mark.parametrize("schedule, seed", [("fifo", 0), ("random", 3)])
def test_what_lanes_hold_that_are_elsewhere_does_not_make_a_loop_more_than_one_that_polls(split, schedule, seed):
    """Half a warp multiplies zeros while it polls; the row's other lanes grow. The other warp is done later."""
    body = f"""
    {PREFIX}
    setp.lt.u32 %p1, %r0, 16; setp.lt.u32 %p2, %r0, 8; setp.ge.u32 %p3, %r0, 32;
    mov.b32 %r4, 0; bar.sync 0; @%p3 bra OTHER; @!%p1 bra END; {split}
    selp.u32 %r4, 0, %r0, %p1; bra LOOP;
    SECOND: mov.b32 %r4, 0;
    LOOP: mul.lo.u32 %r4, %r4, 3; ld.global.u32 %r1, [%rd0+4096]; setp.ne.u32 %p4, %r1, 1; @%p4 bra LOOP;
    END: st.global.u32 [%rd1], %r4; ret;
    OTHER: mov.b32 %r2, 0;
    WORK: add.u32 %r2, %r2, 1; setp.lt.u32 %p4, %r2, 3000; @%p4 bra WORK;
    st.global.u32 [%rd0+4096], 1; ret;
    """
    found = same(source(body, WORDS), threads=64, schedule=schedule, seed=seed)
    assert "error" not in found and not np.frombuffer(found["out"], np.uint32)[:16].any()
    if schedule == "fifo":
        # Of a turn of 64 blocks and a round of polling: not of a window of 256 blocks, or of several.
        assert found["counters"].instructions["memory"] < 2 * 2 * 80


ROUND = "add.u32 %r1, %r1, 1; setp.lt.u32 %p1, %r1, 3000; @%p1 bra LOOP;"
LOOPS = {
    "counts": ROUND,
    "looks at one place": f"ld.global.u32 %r2, [%rd0]; {ROUND}",
    "looks at five places": "".join(f"ld.global.u32 %r2, [%rd0+{4 * n}];" for n in range(5)) + ROUND,
    "adds to a place": f"ld.global.u32 %r2, [%rd1]; add.u32 %r2, %r2, 1; st.global.u32 [%rd1], %r2; {ROUND}",
    "stores much": (
        "mad.wide.u32 %rd2, %r0, 128, %rd0;"
        f"{''.join(f'st.global.u32 [%rd2+{4096 + 4 * n}], %r1;' for n in range(8))} {ROUND}"
    ),
    "faults at last": f"mad.wide.u32 %rd2, %r1, 64, %rd1; st.global.u32 [%rd2], %r1; {ROUND}",
    "stores, and splits in a window": (
        f"st.global.u32 [%rd1], %r1; add.u32 %r3, %r0, 100; setp.eq.u32 %p2, %r1, %r3; @%p2 bra DONE; {ROUND}"
    ),
    "splits at last": f"add.u32 %r3, %r0, 2000; setp.eq.u32 %p2, %r1, %r3; @%p2 bra DONE; {ROUND}",
    "counts to 8": f"add.u32 %r1, %r1, 1; and.b32 %r1, %r1, 7; {ROUND}",
    "counts to 8, and stores": f"st.global.u32 [%rd1], %r1; and.b32 %r1, %r1, 7; {ROUND}",
    "stands still, reading": "ld.global.u32 %r2, [%rd0]; setp.ne.u32 %p1, %r2, 7; @%p1 bra LOOP;",
}


@pytest.mark.parametrize("schedule, seed", [("fifo", 0), ("random", 4)])
@pytest.mark.parametrize("name", LOOPS)
def test_long_loops(monkeypatch, name, schedule, seed):
    """The windows in which it is watched whether a loop only polls; they go by natively where that is certain."""
    in_python = 0
    window, polls = NativeEngine.pass_window, Machine._polls
    passed: list[Any] = [None]

    def noted(self: NativeEngine, f: Any, blocks: int) -> Any:
        passed[0] = window(self, f, blocks)
        return passed[0]

    def counted(self: Machine, *arguments: Any) -> bool | None:
        nonlocal in_python
        passed[0] = None
        answer = polls(self, *arguments)
        in_python += answer is False and passed[0] is None and self.engine is not None
        return answer

    monkeypatch.setattr(NativeEngine, "pass_window", noted)
    monkeypatch.setattr(Machine, "_polls", counted)
    body = f"{PREFIX} mov.b32 %r1, 0; LOOP: {LOOPS[name]} DONE: st.global.u32 [%rd1+4096], %r1; ret;"
    found = same(source(body, WORDS), schedule=schedule, seed=seed, max_steps=200_000)
    if schedule == "fifo":
        assert bool(in_python) == (name == "looks at five places")
    assert ("error" in found) == (
        name in ("faults at last", "counts to 8", "counts to 8, and stores", "stands still, reading")
    )


@pytest.mark.parametrize("rounds", [1250, 2500])
@pytest.mark.parametrize("schedule, seed", [("fifo", 0), ("random", 4)])
def test_a_long_loop_gives_way_natively_and_ends_so_after_it_might_have(monkeypatch, rounds, schedule, seed):
    """Both warps of a CTA count how many ended before them; the second one has fewer rounds, and may overtake."""
    monkeypatch.setattr(machine, "SLICE", 1024)
    loop = f"""
    st.global.u32 [%rd0+32768], 0; bar.sync 0;
    setp.lt.u32 %p2, %r0, 32; selp.u32 %r3, {rounds}, 950, %p2; mov.b32 %r1, 0;
    LOOP: st.global.u32 [%rd1+4096], %r1; add.u32 %r1, %r1, 1; setp.lt.u32 %p1, %r1, %r3; @%p1 bra LOOP;
    atom.global.add.u32 %r2, [%rd0+32768], 1; st.global.u32 [%rd1], %r2; ret;
    """
    found = same(source(f"{PREFIX} {loop}", WORDS), schedule=schedule, seed=seed, threads=64)
    stops = found["stops"]
    assert StopReason.HAD_TURN not in stops and (stops[StopReason.STANDS_BY] or rounds == 1250)


@pytest.fixture
def windows(monkeypatch) -> Counter[bool]:
    """Counts the windows that are offered to the native engine, by whether it takes them."""
    found: Counter[bool] = Counter()
    passes = Machine._passes_natively

    def noted(self: Machine, *arguments: Any) -> bool:
        answer = passes(self, *arguments)
        found[answer] += 1
        return answer

    monkeypatch.setattr(Machine, "_passes_natively", noted)
    return found


def test_a_loop_of_scalars_is_worth_its_windows(windows):
    """While other warps poll for its end: a turn of many short blocks is not nothing."""
    body = f"""
    {PREFIX} mov.b32 %r1, 0; st.shared.u32 [%r5+4092], 0; bar.sync 0; setp.ge.u32 %p3, %r0, 32; @%p3 bra OTHERS;
    LOOP: add.u32 %r1, %r1, 1; setp.lt.u32 %p1, %r1, 20000; @%p1 bra LOOP; st.shared.u32 [%r5+4092], 1; bra END;
    OTHERS: and.b32 %r8, %r0, 3; setp.eq.u32 %p2, %r8, 1; @%p2 bra END;
    POLL: ld.volatile.shared.u32 %r2, [%r5+4092]; setp.eq.u32 %p1, %r2, 0; @%p1 bra POLL;
    END: st.global.u32 [%rd1], %r1; ret;
    """
    device = Device(library=library())
    device.launch(module_of(source(body, WORDS)), grid=4, block=128, arguments=[device.alloc(4096)])
    assert windows[False] < 50  # those of the polling loops are Python's


def test_a_loop_that_was_short_in_an_earlier_launch_is_native_once_it_is_long(monkeypatch, windows):
    monkeypatch.setattr(NativeEngine, "may_begin", lambda *_: False)
    body = f"""
    {PREFIX} ld.param.u32 %r9, [n]; mov.b32 %r1, 0;
    LOOP: add.u32 %r1, %r1, 1; setp.lt.u32 %p1, %r1, %r9; @%p1 bra LOOP; st.global.u32 [%rd1], %r1; ret;
    """
    module = Module(source(body, WORDS, parameters=["u32 n"]))
    for n in (1, 3000):
        device = Device(library=library(), schedule="random", seed=1)
        device.launch(module, grid=4, block=128, arguments=[device.alloc(4096), n])
    assert windows[True] > 5 * windows[False]


@pytest.mark.parametrize("rounds", range(319, 323))
@pytest.mark.parametrize("schedule, seed", [("fifo", 0), ("random", 4)])
def test_a_window_may_end_where_lanes_meet(rounds, schedule, seed):
    """A turn of 64 blocks and a window of 256 come to their end in one of these rounds."""
    loop = f"""
    setp.lt.u32 %p1, %r0, 16; selp.u32 %r3, {rounds}, 0, %p1; mov.b32 %r1, 0;
    LOOP: add.u32 %r1, %r1, 1; setp.lt.u32 %p1, %r1, %r3; @%p1 bra LOOP;
    st.global.u32 [%rd1], %r1; ret;
    """
    found = same(source(f"{PREFIX} {loop}", WORDS), schedule=schedule, seed=seed, threads=64)
    assert np.frombuffer(found["out"], np.uint32)[:17].tolist() == [rounds] * 16 + [1]


def test_lanes_that_split_natively_keep_what_only_python_has_read_and_written():
    """A register that is live where native code begins, and that it does not need."""
    only_python = "vabsdiff4.u32.u32.u32.add"
    body = f"""
    {PREFIX} {only_python} %r3, %r0, 7, 0; mov.b32 %r1, 0; bar.sync 0;
    add.u32 %r1, %r1, 1; setp.lt.u32 %p1, %r0, 10; @%p1 bra LOW; add.u32 %r1, %r1, 1; bra BOTH;
    LOW: add.u32 %r1, %r1, 2;
    BOTH: {only_python} %r3, %r3, %r1, 0; st.global.u32 [%rd1], %r3; ret;
    """
    assert same(source(body, WORDS), threads=64)["stops"] == {StopReason.EXITS: 1}  # the last CTA


def test_a_kernel_that_does_nothing():
    device = Device(library=library())
    text = ".version 8.8\n.target sm_100a\n.address_size 64\n.visible .entry nothing()\n{\nret;\n}\n"
    assert device.launch(module_of(text), grid=2, block=64).counters.instructions == {"branch": 4}


def test_a_limit_of_steps_is_the_same():
    text = source("mov.b32 %r1, 0; LOOP: add.u32 %r1, %r1, 1; setp.ne.u32 %p1, %r1, 0; @%p1 bra LOOP; ret;")
    said = []
    for native in (None, library()):
        device = Device(library=native)
        with pytest.raises(Exception, match="warp instructions") as raised:
            device.launch(module_of(text), grid=1, block=32, arguments=[device.alloc(4)], max_steps=10_000)
        said.append(str(raised.value))
    assert said[0] == said[1]


def test_a_limit_is_the_same_behind_turns_that_python_has_given():
    """Five long turns in Python, and as many natively, before it is next looked at how many steps are left."""
    adds = "add.u32 %r1, %r1, 1;" + "xor.b32 %r3, %r3, %r1;" * 20
    body = f"""
    {PREFIX} mov.b32 %r1, 0; mov.b32 %r3, 0;
    PYTHON: vabsdiff4.u32.u32.u32.add %r3, %r1, 7, 0; {adds} setp.lt.u32 %p1, %r1, 1500; @%p1 bra PYTHON;
    NATIVE: xor.b32 %r3, %r3, %r1; {adds} setp.ne.u32 %p1, %r1, 0; @%p1 bra NATIVE; st.global.u32 [%rd1], %r3; ret;
    """
    for limit in (48_000, 50_000, 60_000):
        found = same(source(body, WORDS), max_steps=limit)["error"]
        steps = int(found.partition("it has executed ")[2].partition(" ")[0].replace(",", ""))
        assert limit < steps <= limit + 24


def test_a_store_counts_as_a_change():
    body = f"{PREFIX} mov.b32 %r1, 5; st.global.u32 [%rd1], %r1; st.shared.v2.u32 [%r5], {{%r1, %r1}}; ret;"
    assert same(source(body, WORDS))["changes"] >= 2


def test_who_does_not_take_runs_has_all_events_from_python():
    listener = Listener(is_deferred=False)
    device = Device(library=library())
    text = source("mul.wide.u32 %rd1, %r0, 4; add.s64 %rd1, %rd0, %rd1; st.global.u32 [%rd1], %r0; ret;")
    with watched() as stops:
        device.launch(module_of(text), grid=1, block=32, arguments=[device.alloc(4096)], sinks=[listener, Listener()])
    assert not stops.total()
    assert any(name == "Access" for name, *_ in listener.seen)


EVENTS = f"""
{PREFIX} mov.b32 %r8, words; shl.b32 %r9, %r0, 4; add.u32 %r8, %r8, %r9; setp.lt.u32 %p1, %r0, 20; mov.b32 %r2, 7;
@%p1 st.shared.v4.b32 [%r8], {{%r0, %r2, %r0, %r2}}; @!%p1 st.shared.u8 [%r8+1], %r0;
st.shared.b64 [words+1024], %rd1; st.shared.u16 [words+1032], %r0; bar.sync 0; ld.shared.u16 %r3, [words+1032];
shfl.sync.bfly.b32 %r4, %r0, 1, 31, -1; mov.b32 %r6, -1; vote.sync.ballot.b32 %r6, %p1, %r6;
@%p1 bra LOW; add.u32 %r2, %r2, 1; st.global.u32 [%rd1], %r2; bra JOIN;
LOW: st.global.u16 [%rd1], %r4;
JOIN: bar.sync 1, 64; @%p1 bra END; ld.global.u32 %r1, [%rd1];
END: ret;
"""


@pytest.mark.parametrize(("schedule", "seed"), [("fifo", 0), ("random", 1), ("random", 4)])
def test_events_are_the_same_in_the_same_order(monkeypatch, schedule, seed):
    """Also where there is no room to write more down in the middle of a turn."""
    text = source(EVENTS, WORDS)
    for entries in (None, 2):
        if entries:
            monkeypatch.setattr(trace, "ENTRIES", entries)
        python, native = (
            listened(text, engine, schedule=schedule, seed=seed, threads=64) for engine in (None, library())
        )
        assert native.runs
        assert python.seen == native.seen
    kinds = {name for name, *_ in python.seen}
    assert kinds >= {"Access", "Diverged", "Rejoined", "WarpSynced", "GroupArrived", "GroupCompleted", "GroupLeft"}
    assert kinds >= {"Exited", "Resumed", "Suspended"}


SHORT = {
    "an undefined address": "add.u32 %r1, %r0, 1; ld.global.u32 %r1, [%rd9];",
    "a shuffle of what all lanes have": "mov.u32 %r1, %ctaid.x; shfl.sync.idx.b32 %r2, %r1, 3, 0x1803, -1; "
    "shfl.sync.bfly.b32 %r3, %r1, 1, 31, -1; st.global.u32 [%rd1], %r2; st.global.u32 [%rd1+128], %r3;",
    "a shuffle with bounds of each lane": "shl.b32 %r1, %r0, 3; or.b32 %r1, %r1, 3; "
    "shfl.sync.idx.b32 %r2, %r0, 9, %r1, -1; shfl.sync.down.b32 %r3, %r2, 1, %r0, -1; "
    "st.global.u32 [%rd1], %r2; st.global.u32 [%rd1+128], %r3;",
    "a guard that writes all lanes for the first time": "setp.lt.u32 %p1, %r0, 99; @%p1 mov.b32 %r20, 7; "
    "st.global.u32 [%rd1], %r20; st.global.u32 [%rd1+128], %r20;",
    "lanes that were alone, and whose values agree": "mov.b32 %r1, 6; setp.lt.u32 %p1, %r0, 2; "
    "@%p1 mov.b32 %r1, -7; @!%p1 ret; setp.eq.u32 %p2, %r0, 0; @%p2 bra ZERO; mov.b32 %r2, 3; bra.uni MEET; "
    "ZERO: mov.b32 %r2, 4; MEET: st.global.u32 [%rd1], %r1; st.global.u32 [%rd1+128], %r2;",
}


@pytest.mark.parametrize("name", SHORT)
def test_events_of_short_programs_are_the_same(name):
    """Also values that are one for all lanes, or one for each."""
    text = source(f"{PREFIX} {SHORT[name]} ret;", WORDS)
    python, native = (listened(text, engine, schedule="fifo", seed=0, threads=32) for engine in (None, library()))
    assert [name for name, *_ in python.seen].count("Access") >= 2
    assert python.seen == native.seen


# ---- registers, block by block ----


@pytest.mark.thorough
def test_registers_are_the_same_after_every_turn(monkeypatch):
    """What is live at the start of the next block, as scalars or arrays, under a schedule of short turns."""
    traces: list[list[Any]] = []
    turn = Machine._run

    def noted(self: Machine, fragment: Any) -> bool:
        answer = turn(self, fragment)
        block = fragment.block
        live = self.code.live_in[block] if block >= 0 else 0
        values = fragment.values(live)
        shown = [v.tolist() if isinstance(v, np.ndarray) else (type(v).__name__, v) for v in values]
        traces[-1].append((fragment.warp.index, fragment.mask, block, shown, self.wakeups.changes))
        return answer

    monkeypatch.setattr(Machine, "_run", noted)
    monkeypatch.setattr(NativeEngine, "may_begin", lambda *_: False)
    for text, threads in ((source(COLLATZ), 48), (SGEMM, 0)):
        for seed in (1, 2, 3):
            traces.clear()
            for native in (None, library()):
                traces.append([])
                device = Device(schedule="random", seed=seed, library=native)
                if threads:
                    device.launch(module_of(text), grid=1, block=threads, arguments=[device.alloc(4096)])
                else:
                    buffers = [device.upload(np.ones((64, 64), np.float32)) for _ in range(3)]
                    shape = {"grid": (2, 1), "block": (32, 32)}
                    device.launch(module_of(text), "sgemm", **shape, arguments=[*buffers, 64, 64])
            assert traces[0] == traces[1]


# ---- whole launches ----


@pytest.mark.thorough
@pytest.mark.parametrize("path", LAUNCHES, ids=lambda path: path.stem)
def test_launch_files_under_both_engines(path):
    what = read_launch_file(path)
    for schedule, seed in (("fifo", 0), ("random", 1), ("random", 5)):
        options = EmulationOptions(schedule=schedule, seed=seed, engine="python", strict=False)
        found: list[Any] = []
        for engine in ("python", "native"):
            try:
                done = run(what, replace(options, engine=engine))
                contents = {name: array.tobytes() for name, array in done.contents.items()}
                listener = Listener()
                run(what, replace(options, engine=engine, sinks=(listener,)), keep=())
                found.append((contents, done.counters, done.output, done.warnings, listener.seen))
            except CannotRun as error:
                found.append(str(error))
        assert found[0] == found[1]


def test_epilogues_begin_with_accumulators_of_wgmma():
    """Python puts them into the registers: native code begins there, and does not go on to there by itself."""
    what = read_launch_file(ROOT / "tests" / "data" / "launches" / "nvcc_wgmma_gemm.toml")
    plan = module_of(what.text).code(None).native(True, True)
    native = [
        (b, n, piece) for b, pieces in enumerate(plan.pieces) for n, piece in enumerate(pieces) if piece.start >= 0
    ]
    assert any(piece.publishes for _, _, piece in native)
    for block, number, piece in native:
        if number == 0:
            assert (plan.entries[block] < 0) == piece.publishes


@pytest.mark.thorough
def test_kernels_of_the_series_under_both_engines(series):
    from kernel_runs import problem

    # With K = 768 MMAs are still to be multiplied when the accumulator, which was written before, is loaded.
    for kernel, k in (*((kernel, 128) for kernel in sorted(series)), ("kernel7", 768)):
        _, what = problem(series[kernel], (256, 256, k), "integer")
        for schedule, seed in (("fifo", 0), ("random", 3)):
            options = EmulationOptions(schedule=schedule, seed=seed)
            python, native = (run(what, replace(options, engine=engine)) for engine in ("python", "native"))
            assert python.counters == native.counters
            assert all((python.contents[n] == native.contents[n]).all() for n in python.contents)


def test_without_the_library_python_runs_everything(monkeypatch, caplog):
    from emugpu.emulator.native import library as native

    native._library.cache_clear()
    monkeypatch.setenv("HARNESS_MOJO", "/nowhere/mojo")
    try:
        assert native.library_for("native") is None
        assert EmulationOptions().engine_used == "python"
        assert len(caplog.records) == 1 and "the Mojo compiler was not found" in caplog.text
    finally:
        native._library.cache_clear()


@pytest.mark.thorough
def test_the_library_is_compiled_once(monkeypatch, tmp_path, capsys):
    from emugpu.emulator.native import library as mojo

    counted = []
    build = mojo._answer

    def noted(command: list[Any], seconds: float) -> str:
        counted.append(command[1])
        return build(command, seconds)

    monkeypatch.setattr(mojo, "_answer", noted)
    monkeypatch.setenv("EMUGPU_CACHE_DIR", str(tmp_path))
    text = '@export\ndef nothing() abi("C") -> Int:\n    return 7\n'
    first, second = (mojo.shared_library({"library.mojo": text}, "nothing") for _ in range(2))
    assert first == second and first.exists()
    assert counted == ["--version", "build", "--version"]
    assert capsys.readouterr().err == "emugpu: compiling nothing, once on this machine\n"
    with pytest.raises(CannotRun, match="error"):
        mojo.shared_library({"library.mojo": "nonsense("}, "nonsense")
