"""Loads that nothing orders with a store, by threads that use what they have read, or do not."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from handovers import CTA_BARRIER, Table, only, outcome, wait
from tensor_handovers import AFTER, BEFORE, LD, ST, WAIT_LD, WAIT_ST, freed, initialise
from test_check_pending import found, in_global_memory, program, with_branches

from emugpu.check import Checker
from emugpu.check.history import READS_KEPT
from emugpu.check.unused_loads import UnusedLoads
from emugpu.emulator import Device, Fault, Module
from emugpu.emulator.native.library import library_for

START = """
setp.ge.u32 %p0, %thread, 0; mov.b32 %r9, 0; mov.b32 %r11, 0; mov.u32 %r8, %ctaid.x;
shl.b32 %r1, %lane, 3; mov.b32 %r2, data; add.u32 %r1, %r1, %r2;
cvt.u64.u32 %d1, %lane; shl.b64 %d1, %d1, 3; add.s64 %d1, %d1, %m0;
shl.b32 %r3, %thread, 2; add.u32 %r3, %r3, %r2; add.u32 %r3, %r3, 1024; st.shared.b32 [%r3], %r9;
"""
"""%r1 and %d1: an element of the lane, of 8 bytes, in shared and global memory, the same for all warps. %r3: a word of
the thread's own. %p0 is true.
"""
STORES = {
    "warps": "setp.lt.u32 %p1, %thread, 32;",
    "CTAs": "setp.eq.u32 %p1, %r8, 0; setp.lt.and.u32 %p1, %thread, 32, %p1;",
}
"""%p1: whether the thread stores the element."""
LOAD, STORE, ADD = "ld.SPACE.b32 %r10, [ELEMENT];", "@%p1 st.SPACE.b32 [ELEMENT], %r11;", "add.u32 %r11, %r10, 1;"
VECTOR, ABOVE_5 = "ld.SPACE.v2.b32 {%r10, %r12}, [ELEMENT];", "setp.gt.u32 %p2, %r10, 5;"
STORE_SECOND, HALF = STORE.replace("ELEMENT", "ELEMENT+4"), "setp.lt.and.u32 %p1, %lane, 16, %p1;"
OWN, OTHER = "st.shared.b32 [%r3], %r11;", "st.shared.b32 [%r3], %r13;"
IN_PLACE = LOAD + ADD + STORE

UNUSED = {
    "arithmetic": IN_PLACE,
    "a guarded load": "mov.b32 %r10, 0; @%p0 " + IN_PLACE,
    "setp and selp": LOAD + ABOVE_5 + "selp.b32 %r11, 1, %r10, %p2;" + STORE,
    "a guarded move": LOAD + ABOVE_5 + "@%p2 mov.b32 %r11, %r10;" + STORE,
    "a branch around arithmetic": LOAD + ABOVE_5 + "@!%p2 bra ON; mov.b32 %r11, %r10; ON:" + STORE,
    "branches around arithmetic": LOAD + ABOVE_5
    + "@%p2 bra OTHER; add.u32 %r11, %r10, 5; @%p0 bra ON; add.u32 %r11, %r11, 6; bra ON; OTHER: mov.b32 %r11, 7; ON:"
    + STORE,
    "64 bits": LOAD + "mov.b64 %d5, {%r10, %r9}; add.s64 %d5, %d5, 1; mov.b64 {%r11, %r12}, %d5;" + STORE,
    "carry": LOAD + "add.cc.u32 %r12, %r10, %r10; addc.u32 %r11, %r9, %r9;" + STORE,
    "shfl": LOAD + "shfl.sync.bfly.b32 %r12, %r10, 1, 31, -1; add.u32 %r11, %r12, %r10;" + STORE,
    "vote": LOAD + ABOVE_5 + "vote.sync.ballot.b32 %r11, %p2, -1;" + STORE,
    "redux": LOAD + "redux.sync.add.u32 %r11, %r10, -1;" + STORE,
    "a vector": VECTOR + "add.u32 %r11, %r10, %r12;" + STORE,
    "an element of a vector": VECTOR + "add.u32 %r11, %r12, 1;" + STORE,
    "an element of a vector that is not stored": VECTOR + ADD + STORE + "st.shared.b32 [%r3], %r12;",
    "an element of a vector that nothing reads": VECTOR + ADD + STORE_SECOND + OWN,
    "a dropped element of a vector": VECTOR.replace("%r12", "_") + ADD + STORE_SECOND + OWN,
    "lanes that load what is not stored": LOAD + ADD + HALF + STORE + only("%lane ge 16", OWN),
    "lanes whose loads in two passes are not stored": "AGAIN:" + LOAD + ADD
    + "xor.b32 %r1, %r1, 4; xor.b64 %d1, %d1, 4; add.u32 %r9, %r9, 1; setp.lt.u32 %p4, %r9, 2; @%p4 bra AGAIN;"
    + HALF + STORE + only("%lane ge 16", OWN),
    "a loop": "AGAIN:" + IN_PLACE + "add.u32 %r9, %r9, 1; setp.lt.u32 %p4, %r9, 3; @%p4 bra AGAIN;",
    "a loop with barriers": "AGAIN:" + IN_PLACE
    + "bar.sync 0; add.u32 %r9, %r9, 1; setp.lt.u32 %p4, %r9, 3; @%p4 bra AGAIN;",
    "a store of something else": IN_PLACE + "st.shared.b32 [%r3], %thread;",
    "a later block": LOAD + ADD + CTA_BARRIER + only("%warp eq 0", STORE),
}  # fmt: skip
USED = {
    "a store": IN_PLACE + OWN,
    "a store of one lane": IN_PLACE + only("%thread eq 37", OWN),
    "a later block": IN_PLACE + CTA_BARRIER + only("%warp eq 1", OWN),
    "setp and selp": IN_PLACE + ABOVE_5 + "selp.b32 %r13, 1, 2, %p2;" + OTHER,
    "a guarded move": IN_PLACE + ABOVE_5 + "mov.b32 %r13, 0; @%p2 mov.b32 %r13, 1;" + OTHER,
    "an element of a vector": VECTOR + ADD + STORE_SECOND + "st.shared.b32 [%r3], %r12;",
    "one lane that loads what is stored": LOAD + ADD + HALF + STORE + only("%lane ge 15", OWN),
    "a lane whose load in the second pass is stored": "AGAIN:" + LOAD + ADD
    + "xor.b32 %r1, %r1, 4; xor.b64 %d1, %d1, 4; add.u32 %r9, %r9, 1; setp.lt.u32 %p4, %r9, 2; @%p4 bra AGAIN;"
    + HALF + STORE_SECOND + only("%lane ge 15", OWN),
    "shfl to another lane": IN_PLACE + "shfl.sync.idx.b32 %r13, %r11, 2, 31, -1;" + only("%thread eq 37", OTHER),
    "vote": IN_PLACE + ABOVE_5 + "vote.sync.ballot.b32 %r13, %p2, -1;" + only("%thread eq 37", OTHER),
    "a branch around a move": IN_PLACE + ABOVE_5 + "mov.b32 %r13, 0; @%p2 bra ON; mov.b32 %r13, 1; ON:" + OTHER,
    "a branch around a store": IN_PLACE + ABOVE_5 + "@%p2 bra ON; st.shared.b32 [%r3], 1; ON:",
    "a branch around a branch": IN_PLACE + ABOVE_5
    + "@%p2 bra OTHER; bra ON; OTHER: add.u32 %r9, %r9, 1; bra ON; st.shared.b32 [%r3], 1; ON:",
    "a branch to the end": IN_PLACE + ABOVE_5 + "@%p2 bra ON; ret; ON: st.shared.b32 [%r3], 1;",
    "a branch back": "AGAIN:" + IN_PLACE + ABOVE_5 + "@%p2 bra AGAIN;",
    "a way back": IN_PLACE + "AGAIN:" + ABOVE_5 + "@!%p2 bra ON; add.u32 %r9, %r9, 1; bra AGAIN; ON:",
    "a guard": LOAD + ADD + "setp.lt.u32 %p2, %r10, 9; and.pred %p1, %p1, %p2;" + STORE,
    "an address": IN_PLACE + "and.b32 %r13, %r10, 4; add.u32 %r13, %r3, %r13; ld.shared.b32 %r14, [%r13];",
    "the address of a store": IN_PLACE + "and.b32 %r13, %r10, 0; add.u32 %r13, %r3, %r13; st.shared.b32 [%r13], 1;",
    "atom": IN_PLACE + "atom.shared.add.u32 %r13, [%r3], %r11;",
    "red": IN_PLACE + "red.shared.add.u32 [%r3], %r11;",
    "barrier.red": IN_PLACE + ABOVE_5 + "barrier.red.popc.u32 %r13, 1, %p2;",
    "mma": IN_PLACE + "mov.b64 %d5, {%r10, %r9};"
    + "mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%d6, %d7}, {%d5}, {%d5}, {%d6, %d7};",
}  # fmt: skip
IN_DOUBT = {
    "a store before the load": OWN + IN_PLACE,
    "selp that chooses another value": IN_PLACE + "selp.b32 %r13, %r9, %r10, %p0;" + OTHER,
    "another load into the register": IN_PLACE + "ld.shared.b32 %r11, [%r3];" + OWN,
    "an atomic that is not executed": IN_PLACE + "@!%p0 atom.shared.add.u32 %r13, [%r3], %r11;",
    "local memory": ".local .b32 kept;" + IN_PLACE + "@!%p0 st.local.b32 [kept], %r11;",
    "a generic address": IN_PLACE + "cvt.u64.u32 %d5, %r3; cvta.shared.u64 %d5, %d5; @!%p0 st.b32 [%d5], %r11;",
    "a volatile load": IN_PLACE.replace("ld.", "ld.volatile."),
    "the lane of a shfl": IN_PLACE + "shfl.sync.idx.b32 %r13, %r9, %r10, 31, -1; @!%p0" + OTHER,
    "no instruction": LOAD + STORE,
}
"""Nothing uses the value, but the checker does not prove it."""


def in_place(s) -> str:
    """All warps load an element, and one of them stores it again."""
    body = {**UNUSED, **{f"used: {name}": text for name, text in {**USED, **IN_DOUBT}.items()}}[s.use]
    clear = only("%warp eq 0", "st.shared.v2.b32 [%r1], {%r9, %r9};") + CTA_BARRIER
    body = body.replace("SPACE", s.space).replace("ELEMENT", "%r1" if s.space == "shared" else "%d1")
    return START + STORES[s.who] + clear + body


def apart(s) -> str:
    """The halves of a warp diverge; both load elements, and the upper half stores them."""
    later = {"no": "", "store": only("%lane lt 16", OWN), "shfl": "shfl.sync.bfly.b32 %r11, %r11, 16, 31, -1;"}[s.later]
    lower = "add.s64 %d1, %d1, 128; ld.global.b32 %r10, [%d1];" + ADD
    return START + "setp.ge.u32 %p1, %lane, 16;" + f"""
    @%p1 bra UPPER; {lower} bra MET;
    UPPER: ld.global.b32 %r10, [%d1]; {ADD} @%p1 st.global.b32 [%d1], %r11;
    MET: {later} @%p1 st.shared.b32 [%r3], %r11;
    """  # fmt: skip


def passes(s) -> str:
    """Warp 0 loads in each pass with one half of its lanes, and some lanes use what they have read; warp 1 stores."""
    use = {
        "nobody": "",
        "lanes that read first": "setp.ge.u32 %p3, %lane, 16;",
        "others": "setp.lt.u32 %p3, %lane, 16;",
    }
    return (
        START
        + f"""
    and.b32 %r1, %lane, 15; cvt.u64.u32 %d1, %r1; shl.b64 %d1, %d1, 2; add.s64 %d1, %d1, %m0; mov.pred %p3, 0;
    setp.ge.u32 %p2, %lane, 16; setp.eq.u32 %p1, %warp, 1; @%p1 bra WRITE;
    AGAIN: @%p2 ld.global.b32 %r11, [%d1]; not.pred %p2, %p2;
    add.u32 %r9, %r9, 1; setp.lt.u32 %p4, %r9, {s.count}; @%p4 bra AGAIN;
    {use[s.use]} @%p3 {OWN} bra END;
    WRITE: st.global.b32 [%d1], 1;
    END:
    """
    )


def many(s) -> str:
    """Thread 0 loads an element and may use it, then warp 1 loads it often and does not, and then thread 64 stores it.
    Only relaxed accesses order that.
    """
    count, first = s.loads.split()
    load, signal = "ld.global.b32 %r11, [%m0];", "red.relaxed.cta.shared.add.u32 [slot], 1;"
    uses = "ld.global.b32 %r10, [%m0]; st.shared.b32 [%r3], %r10;" if first == "used" else load

    def after(signals: int) -> str:
        poll = f"AFTER{signals}: ld.relaxed.cta.shared.u32 %r13, [slot]; setp.lt.u32 %p2, %r13, {signals};"
        return f"{poll} @%p2 bra AFTER{signals};"

    return (
        START + only("%thread eq 0", "st.volatile.shared.b32 [slot], 0;") + CTA_BARRIER
        + only("%thread eq 0", uses + signal)
        + only("%warp eq 1", after(1) + load * int(count) + signal)
        + only("%thread eq 64", after(33) + "st.global.b32 [%m0], 1;") + f"@!%p0 {OWN}"
    )  # fmt: skip


def address_of_tensor_memory(s) -> str:
    """Warp 0 allocates and all warps load the address, which only relaxed synchronisation orders. Warp 1 may use it."""
    use = {
        "nobody": only("%warp eq 2", LD + WAIT_LD + ST + WAIT_ST + freed(1, warp=2)),
        "tcgen05.ld": LD + WAIT_LD,
        "tcgen05.st": ST + WAIT_ST,
        "tcgen05.dealloc": freed(1, warp=1),
        "a guard": "setp.eq.u32 %p7, %r10, 77; @%p7" + ST.replace("%r10", "%r11"),
    }
    relaxed = "mbarrier.arrive.relaxed.cta.shared::cta.b64 _, [bars];" + wait("bars", order=".relaxed.cta")
    return (
        "".join(f"mov.b32 %r{n}, 0;" for n in range(40, 56)) + only("%thread eq 0", initialise(64)) + CTA_BARRIER
        + only("%warp eq 0", "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [slot], 32;")
        + relaxed + "ld.shared.b32 %r10, [slot];" + CTA_BARRIER + "ld.shared.b32 %r11, [slot];"
        + ST.replace("%r10", "%r11") + WAIT_ST + BEFORE
        + CTA_BARRIER + AFTER + only("%warp eq 1", use[s.warp_1] + BEFORE) + CTA_BARRIER + AFTER
        + ("" if s.warp_1 == "tcgen05.dealloc" else freed(1).replace("%r10", "%r11"))
    )  # fmt: skip


USES = (*UNUSED, *(f"used: {name}" for name in (*USED, *IN_DOUBT)))


def data(device: Device) -> list[int]:
    return [device.upload(np.zeros(64, np.uint32))]


def expected(s):
    return outcome(s.use not in UNUSED and f"race-{s.space}")


BOTH = ("sm_90a", "sm_100a")
TABLES = [
    Table("global", dict(use=USES, who=("warps",), space=("global",)), in_place, expected, arguments=data,
          targets=BOTH),
    Table("shared", dict(use=USES, who=("warps",), space=("shared",)), in_place, expected, arguments=data,
          targets=BOTH),
    Table("CTAs", dict(use=USES, who=("CTAs",), space=("global",)), in_place, expected, grid=2, arguments=data,
          targets=BOTH),
    Table("lanes", dict(later=("no", "store", "shfl")), apart,
          lambda s: outcome(s.later != "no" and "race-global"), threads=32, arguments=data, targets=BOTH),
    Table("passes", dict(use=("nobody", "lanes that read first", "others"), count=(2, 3)), passes,
          lambda s: outcome(s.use != "nobody" and "race-global"), arguments=data, targets=BOTH),
    Table("many loads", dict(loads=("10 unused", "10 used", f"{READS_KEPT + 1} used")), many,
          lambda s: outcome("unused" not in s.loads and "race-global"), threads=96, arguments=data, targets=BOTH),
    Table("tensor memory", dict(warp_1=("nobody", "tcgen05.ld", "tcgen05.st", "tcgen05.dealloc", "a guard")),
          address_of_tensor_memory, lambda s: outcome(s.warp_1 != "nobody" and "race-shared")),
]  # fmt: skip


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_table(table):
    found = table.disagreements(table.targets[0], [("fifo", 0), ("random", 1)])
    assert not found, f"{len(found)} settings:\n" + "\n".join(found)


@pytest.mark.parametrize("architecture", [90, 100])
@pytest.mark.parametrize("who", ["warp 0", "each warp"])
def test_triton_works_in_place_on_rows_that_are_shorter_than_a_warp(who, architecture):
    text = (Path(__file__).parents[2] / "data" / "triton" / f"log_softmax_sm{architecture}.ptx").read_text()
    threads_that_do_not_store, lanes_that_do_not_store = ", 120;", ", 24;"
    assert text.count(threads_that_do_not_store) == 1
    if who == "each warp":
        text = text.replace(threads_that_do_not_store, lanes_that_do_not_store)
    rows = np.random.default_rng(0).normal(size=(3, 8)).astype(np.float32)
    device, checker = Device(), Checker()
    x = device.upload(rows)
    arguments = [x, 8, 0, 0]
    device.launch(Module.from_text(text), "log_softmax", grid=3, block=128, arguments=arguments, sinks=[checker])
    assert {one.rule for one in checker.report().errors} == ({"race-global"} if who == "each warp" else set())
    if who == "warp 0":
        expected = rows - np.log(np.exp(rows).sum(axis=1, keepdims=True))
        np.testing.assert_allclose(device.download(x, np.float32, (3, 8)), expected, rtol=1e-5)


@pytest.mark.parametrize("use", ["shfl", "a later block", "used: a later block", "used: a store", "used: an address"])
def test_it_does_not_matter_how_the_checker_gets_the_events(use):
    table = TABLES[0]
    number = next(n for n, s in enumerate(table.settings) if s.use == use)
    module = Module.from_text(table.text("sm_90a"))
    told = []
    at_once, one, other = Checker(on_finding=told.append), Checker(), Checker()
    for sinks in ([at_once], [one, other]):
        device = Device(schedule="random", seed=3)
        device.launch(module, f"setting{number}", grid=1, block=64, arguments=data(device), sinks=sinks)
    found = [{finding.rule for finding in checker.report().errors} for checker in (at_once, one, other)]
    assert found == [{"race-global"} if "used" in use else set()] * 3
    assert {finding.rule for finding in told} == found[0]


@pytest.mark.parametrize("element", ["%r10", "%r12"])
def test_the_first_store_of_a_launch_may_write_what_others_have_loaded(element):
    body = f"""
    mov.b32 %r2, data; shl.b32 %r1, %thread, 2; add.u32 %r1, %r1, %r2; ld.global.v2.b32 {{%r10, %r12}}, [%m0];
    setp.eq.u32 %p1, %thread, 40; @%p1 st.global.b32 [%m0+4], 1; bar.sync 0; st.shared.b32 [%r1], {element};
    """
    text = Table("", {}, lambda s: body, expected, arguments=data).text("sm_90a")
    checker, device = Checker(), Device(library=library_for("python"))
    device.launch(Module.from_text(text), "setting0", grid=1, block=64, arguments=data(device), sinks=[checker])
    assert {finding.rule for finding in checker.report().errors} == ({"race-global"} if element == "%r12" else set())


@pytest.mark.parametrize("ends", [True, False])
def test_a_value_may_be_used_after_the_point_at_which_a_run_breaks_off(ends):
    body = UNUSED["arithmetic"].replace("SPACE", "global").replace("ELEMENT", "%d1")
    fault = "" if ends else only("%thread eq 40", "ld.global.b32 %r13, [%d0+4];")
    program = Table("", {}, lambda s: START + STORES["warps"] + body + CTA_BARRIER + fault, expected, arguments=data)
    text = program.text("sm_90a")
    checker, device = Checker(), Device()
    try:
        device.launch(Module.from_text(text), "setting0", grid=1, block=64, arguments=data(device), sinks=[checker])
    except Fault as error:
        checker.failed(error)
    assert ends != ("race-global" in {finding.rule for finding in checker.report().errors})


def places(findings) -> set[tuple[object, ...]]:
    return {(one["rule"], one["severity"], one["first"]["line"], one["second"]["line"]) for one in findings}


@pytest.mark.thorough
@pytest.mark.parametrize("make", [program, in_global_memory, with_branches], ids=lambda make: make.__name__)
def test_random_programs_give_findings_at_the_same_places_at_once_and_later(make):
    for seed in range(20):
        arguments = {program: (0.4,), in_global_memory: (8 * (seed % 2),), with_branches: ()}[make]
        text = make(random.Random(seed), *arguments)
        for schedule in ("fifo", "random"):
            at_once, later = (places(found(text, way, schedule, seed)) for way in (True, False))
            assert at_once == later, text


STEPS = (
    *["{guard} ld.shared.b32 {d}, [%r1];"] * 3, "{guard} ld.shared.b32 {d}, [%r3];", "add.u32 {d}, {a}, {b};",
    "{guard} ld.shared.v2.b32 {{{d}, %r25}}, [%r1];", "{guard} ld.shared.v2.b32 {{%r25, {d}}}, [%r1];",
    "setp.lt.and.u32 %p1, %lane, 16, %p1;", "@%p1 st.shared.b32 [%r1+4], {a};", "{guard} ld.shared.b32 {d}, [%r1+4];",
    "xor.b32 {d}, {a}, {b};", "{guard} mov.b32 {d}, {a};", "setp.gt.u32 %p2, {a}, {b};", "selp.b32 {d}, {a}, {b}, %p2;",
    "shfl.sync.bfly.b32 {d}, {a}, 5, 31, -1;", *["@%p1 st.shared.b32 [%r1], {a};"] * 3,
    *["@%p3 st.shared.b32 [%r3], {a};"] * 3, "@%p2 bra ON{n}; add.u32 {d}, {a}, {b}; ON{n}:",
)  # fmt: skip


def elements_of_warp_0(choose: random.Random) -> str:
    """Two warps load and compute; warp 0 stores the elements, and one thread stores a word of its own."""
    steps = []
    for n in range(choose.choice((5, 8, 12))):
        guard = choose.choice(("", "", "@%p1", "@!%p1", "@%p2", "@%p3"))
        d, a, b = (f"%r{choose.randrange(20, 25)}" for _ in range(3))
        steps.append(choose.choice(STEPS).format(guard=guard, d=d, a=a, b=b, n=n))
    start = "".join(f"mul.lo.u32 %r{n}, %thread, {n};" for n in range(20, 25)) + "mov.pred %p2, 0;"
    thread = choose.randrange(32, 64)
    start += f"setp.eq.u32 %p3, %thread, {thread}; @%p1 st.shared.v2.b32 [%r1], {{%thread, %lane}};" + CTA_BARRIER
    start += "mov.b32 %r25, 3;"
    for n, word in enumerate(("%r1", "%r1+4", "%r3")):
        steps.append(f"ld.shared.b32 %r3{n}, [{word}]; st.global.b32 [%d1+{256 * n}], %r3{n};")
    end = CTA_BARRIER + "mul.wide.u32 %d1, %thread, 4; add.s64 %d1, %d1, %m0;" + "".join(steps[-3:])
    return START + STORES["warps"] + start + "".join(steps[:-3]) + end


@pytest.mark.thorough
def test_a_random_program_without_a_finding_has_one_result(monkeypatch):
    held = 0
    holds = UnusedLoads.holds

    def count(self, *about) -> bool:
        nonlocal held
        is_held = holds(self, *about)
        held += is_held
        return is_held

    monkeypatch.setattr(UnusedLoads, "holds", count)
    clean = raced = differ = 0
    for seed in range(200):
        table = Table("", {}, lambda s, seed=seed: elements_of_warp_0(random.Random(seed)), expected, arguments=data)
        module = Module.from_text(table.text("sm_90a"))
        results, held, is_clean = set(), 0, True
        for schedule in range(4):
            device, checker = Device(schedule="random", seed=schedule), Checker()
            out = device.alloc(768)
            device.launch(module, "setting0", grid=1, block=64, arguments=[out], sinks=[checker])
            is_clean &= not checker.report().errors
            results.add(device.download(out, np.uint32, 192).tobytes())
        assert not is_clean or len(results) == 1, module
        clean, raced, differ = clean + (is_clean and held > 0), raced + (not is_clean), differ + (len(results) > 1)
    assert min(clean, raced) > 10 and differ > 5, (clean, raced, differ)
