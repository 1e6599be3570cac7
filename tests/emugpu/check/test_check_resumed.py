"""A CTA that has handed something over is checked many accesses at a time again after a barrier of all its threads."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest
from native_engine import library
from ptx_programs import WORDS, module_of, source

from emugpu.check import Checker, pending, single_barrier
from emugpu.check.generic import GenericProxy
from emugpu.check.shadow import ShadowMemory
from emugpu.emulator import Device
from emugpu.emulator.native import trace

START = """
shl.b32 %r3, %r0, 4; mov.u32 %r4, words; add.u32 %r3, %r3, %r4; xor.b32 %r5, %r0, 32; shl.b32 %r5, %r5, 4;
add.u32 %r5, %r5, %r4; mov.u32 %r6, %ctaid.x; and.b32 %r8, %r0, 31; mov.b32 %r7, 0;
mad.lo.u32 %r9, %r6, 64, %r0; mul.wide.u32 %rd1, %r9, 16; add.s64 %rd1, %rd1, %rd0; add.s64 %rd1, %rd1, 4096;
setp.eq.u32 %p1, %r0, 0; setp.eq.u32 %p3, %r6, 0; and.pred %p2, %p1, %p3; setp.lt.u32 %p5, %r0, 32;
and.pred %p6, %p3, %p5; setp.eq.u32 %p7, %r0, 32; not.pred %p8, %p3; setp.lt.u32 %p9, %r8, 16;
xor.b32 %r12, %r0, 1; shl.b32 %r12, %r12, 4; add.u32 %r12, %r12, %r4;
st.shared.u32 [%r3+2048], %r0; bar.sync 0;
"""
"""%r3: a thread's 16 bytes; %r5: those of a thread of the other warp; %r12: those of the next lane; %rd1: a thread's
words in global memory. %p1 is thread 0, %p2 that of CTA 0, %p3 CTA 0, %p5 warp 0, %p6 that of CTA 0, %p7 thread 32,
%p8 CTA 1, %p9 lanes below 16.
"""
ROUND = """
st.shared.v4.u32 [%r3], {%r0, %r0, %r0, %r0}; st.global.u32 [%rd1], %r0;
bar.sync 0;
ld.shared.u32 %r7, [%r5]; ld.global.u32 %r7, [%rd1];
bar.sync 0;
"""
ROUNDS = f"""
{{ .reg .b32 c; .reg .pred q; mov.b32 c, 40;
MORE: {ROUND} sub.u32 c, c, 1; setp.ne.u32 q, c, 0; @q bra MORE; }}
"""
TICKET = """
fence.acq_rel.gpu;
@%p1 atom.global.add.u32 %r10, [%rd0], 1;
@%p1 st.shared.u32 [%r4+3072], %r10;
bar.sync 0;
ld.shared.u32 %r10, [%r4+3072];
"""
STORE = "@%p2 st.global.u32 [%rd0+4], 7;\n"
FENCE = "fence.acq_rel.gpu;\n"
FLAG = "@%p2 st.volatile.global.u32 [%rd0+8], 1;\n"
BARRIER = "bar.sync 0;\n"
POLL = """
@!%p8 bra FOUND; @!%p1 bra FOUND;
POLL: ld.volatile.global.u32 %r11, [%rd0+8]; setp.eq.u32 %p4, %r11, 0; @%p4 bra POLL;
FOUND:
"""
LOAD = "@%p8 ld.global.u32 %r11, [%rd0+4];\n"
LOAD_0 = "@!%p8 bra LAST; @!%p1 bra LAST; ld.global.u32 %r11, [%rd0+4];\nLAST:\n"
SHARED_STORE, SHARED_LOAD = "@%p1 st.shared.u32 [%r4+3500], %r0;\n", "@%p7 ld.shared.u32 %r11, [%r4+3500];\n"
OVERWRITE = "@%p7 st.shared.u32 [%r4+2048], %r0;\n"
TABLE = "@%p1 ld.shared.u32 %r11, [%r4+2048];\n"
LANES = "@%p6 st.global.u32 [%rd0+256], %r0;\n"
OTHERS_LOAD = "@%p8 ld.global.u32 %r11, [%rd0+256];\n"
APART = "@%p9 bra LOW;\nst.shared.u32 [%r3], %r0;\nbra.uni BOTH;\nLOW: {}\nBOTH:\n"
OTHER_HALF = "xor.b32 %r13, %r0, 16; shl.b32 %r13, %r13, 4; add.u32 %r13, %r13, %r4; st.shared.u32 [%r13], %r8;"
EXCHANGE = "st.shared.u32 [%r3], %r0;\n{}ld.shared.u32 %r7, [%r12];\n"
ROUNDS_2 = ROUNDS.replace("MORE", "ONCE_MORE")
ALONE = """
{{ .reg .b32 c; .reg .pred q; mov.b32 c, 40;
MORE: st.shared.u32 [%r3], %r0; {} ld.shared.u32 %r7, [%r12]; bar.sync 0;
sub.u32 c, c, 1; setp.ne.u32 q, c, 0; @q bra MORE; }}
"""
LANE_STORE = "setp.eq.u32 %p10, %r0, 5;\n@%p1 st.shared.u32 [%r4+3604], 5;\n"
LANE_FLAG, LANE_LOAD = "@%p10 ld.acquire.cta.shared.u32 %r7, [%r4+3600];\n", "@%p10 ld.shared.u32 %r7, [%r4+3604];\n"
ARRIVE_APART = "@%p9 bra A;\nbarrier.sync 0;\nbra.uni B;\nA: barrier.sync 0;\nB:\n"
PROGRAMS = {
    "rounds behind a ticket": (TICKET + ROUNDS, ()),
    "two tickets": (TICKET + ROUNDS + TICKET + ROUND + ROUND, ()),
    "a store before the barrier and a load after it": (TICKET + SHARED_STORE + BARRIER + SHARED_LOAD + ROUNDS, ()),
    "a store and a load in one round behind": (TICKET + ROUNDS + SHARED_STORE + SHARED_LOAD, ("race-shared",)),
    "a store and a load behind the ticket": (TICKET + SHARED_STORE + SHARED_LOAD + ROUNDS, ("race-shared",)),
    "a store in the rounds, a ticket, a load": (
        TICKET + ROUNDS + SHARED_STORE + FENCE + "@%p1 red.global.add.u32 [%rd0], 1;\n" + SHARED_LOAD + ROUND,
        ("race-shared",)),
    "what all read is overwritten behind a barrier": (TICKET + TABLE + ROUNDS + TABLE + BARRIER + OVERWRITE, ()),
    "what all read is overwritten": (TICKET + TABLE + ROUNDS + TABLE + OVERWRITE, ("race-shared",)),
    "what one reads first is overwritten": (TICKET + ROUNDS + TABLE + OVERWRITE, ("race-shared",)),
    "lanes apart, each its own": (TICKET + ROUNDS + APART.format("st.shared.u32 [%r3+4], %r0;"), ()),
    "lanes apart at the same words": (TICKET + ROUNDS + APART.format(OTHER_HALF), ("race-shared",)),
    "lanes exchange": (TICKET + ROUNDS + EXCHANGE.format("bar.warp.sync -1;\n"), ()),
    "lanes exchange and have not met": (TICKET + ROUNDS + EXCHANGE.format(""), ("race-lanes",)),
    "a flag behind rounds, and rounds behind the flag": (
        TICKET + ROUND + STORE + FENCE + FLAG + POLL + FENCE + BARRIER + ROUNDS + LOAD, ()),
    "no fence before the flag": (
        TICKET + FENCE + BARRIER + ROUNDS + STORE + FLAG + POLL + FENCE + BARRIER + ROUND + LOAD, ("race-global",)),
    "no fence after the flag": (
        TICKET + ROUND + STORE + FENCE + FLAG + POLL + BARRIER + ROUNDS + LOAD, ("race-global",)),
    "the fence after the flag comes behind the rounds": (
        TICKET + ROUND + STORE + FENCE + FLAG + POLL + BARRIER + ROUNDS + FENCE + LOAD_0, ()),
    "the fence after the flag comes before a barrier": (
        TICKET + ROUND + STORE + FENCE + FLAG + POLL + BARRIER + ROUNDS + FENCE + BARRIER + ROUNDS_2 + LOAD, ()),
    "the fence after the flag comes behind the load": (
        TICKET + ROUND + STORE + FENCE + FLAG + POLL + BARRIER + ROUNDS + LOAD_0 + FENCE, ("race-global",)),
    "a store in the rounds behind a ticket, then a flag": (
        TICKET + ROUNDS + STORE + BARRIER + ROUND + FENCE + FLAG + POLL + FENCE + BARRIER + ROUND + LOAD, ()),
    "a store behind the flag": (
        TICKET + ROUNDS + FENCE + FLAG + STORE + BARRIER + ROUND + POLL + FENCE + BARRIER + ROUND + LOAD,
        ("race-global",)),
    "no barrier after the wait of one thread": (
        TICKET + ROUNDS + STORE + FENCE + FLAG + POLL + FENCE + LOAD + BARRIER + ROUND,
        ("race-global", "wait-for-lanes")),
    "all lanes store, and one signals behind a barrier": (
        TICKET + ROUNDS + LANES + FENCE + BARRIER + FLAG + POLL + FENCE + BARRIER + ROUND + OTHERS_LOAD, ()),
    "all lanes store, and one signals": (
        TICKET + ROUNDS + LANES + FENCE + FLAG + POLL + FENCE + BARRIER + ROUND + OTHERS_LOAD, ("signal-for-lanes",)),
    "a lane finds a flag of its warp that was overwritten in the rounds": (
        TICKET + "@%p1 st.release.cta.shared.u32 [%r4+3600], 1;\n" + BARRIER + ROUNDS
        + "@%p1 st.shared.u32 [%r4+3600], 0;\n" + BARRIER + ROUNDS_2 + LANE_STORE + LANE_FLAG + LANE_LOAD,
        ("race-lanes",)),
    "a lane finds a flag of its warp": (
        TICKET + "@%p1 st.shared.u32 [%r4+3600], 0;\n" + BARRIER + ROUNDS + LANE_STORE
        + "@%p1 st.release.cta.shared.u32 [%r4+3600], 1;\n" + LANE_FLAG + LANE_LOAD, ()),
    "a warp leaves": (TICKET + "@%p5 ret;\n" + ALONE.format("bar.sync 0;"), ()),
    "a warp leaves, and lanes do not meet": (TICKET + "@%p5 ret;\n" + ALONE.format(""), ("race-lanes",)),
    "lanes arrive apart": (TICKET + ARRIVE_APART + ROUNDS, ()),
    "lanes arrive apart, and store to the same words": (
        TICKET + ARRIVE_APART + ROUNDS + APART.format(OTHER_HALF) + ROUNDS_2, ("race-shared",)),
}  # fmt: skip


@pytest.mark.parametrize("entries", [64, 1 << 16])
@pytest.mark.parametrize("name", PROGRAMS)
def test_rounds_behind_a_barrier_are_checked_together(monkeypatch, name, entries):
    body, rules = PROGRAMS[name]
    monkeypatch.setattr(trace, "ENTRIES", entries)
    module = module_of(source(START + body + "\nret;", WORDS))
    found, looks = [], []
    for engine in (None, library()):
        checker, device = Checker(), Device(library=engine)
        out = device.upload(np.zeros(4096, np.uint32))
        with mock.patch.object(GenericProxy, "accesses", autospec=True, side_effect=GenericProxy.accesses) as runs:
            device.launch(module, grid=2, block=64, arguments=[out], sinks=[checker])
        found.append([(f.rule, f.severity, f.first.line, f.second.line) for f in checker.report().findings])
        looks.append(runs.call_count)
    assert sorted(found[0]) == sorted(found[1])
    assert {rule for rule, *_ in found[0]} == set(rules)
    if not rules and body.startswith(TICKET + ROUNDS) and entries > 64:
        assert looks[1] < 100, "of 40 rounds hardly any is checked one by one"


def test_a_short_way_to_the_next_ticket_is_checked_one_by_one(monkeypatch):
    resumed = []
    resume = single_barrier.SingleBarrierCtas._resume
    monkeypatch.setattr(
        single_barrier.SingleBarrierCtas, "_resume", lambda self, *about: (resumed.append(about), resume(self, *about))
    )
    for body, times in ((8 * (TICKET + BARRIER), 1), (8 * (TICKET + 4 * ROUND), 8)):
        resumed.clear()
        checker, device = Checker(), Device(library=library())
        module = module_of(source(START + body + "\nret;", WORDS))
        device.launch(module, grid=1, block=64, arguments=[device.upload(np.zeros(4096, np.uint32))], sinks=[checker])
        assert not checker.report().findings and len(resumed) <= times
        assert len(resumed) >= times // 2


ASYNCHRONOUS = """
@%p1 cp.async.bulk.global.shared::cta.bulk_group [%rd0+16384], [%r4+3584], 16;
@%p1 cp.async.bulk.commit_group;
"""


@pytest.mark.parametrize("waits", [True, False])
def test_a_copy_may_still_read_what_is_stored_behind_a_barrier(waits):
    """So a CTA of a kernel with copies stays one that is checked one by one."""
    wait = "@%p1 cp.async.bulk.wait_group.read 0;\n" if waits else ""
    body = (
        "@%p1 st.shared.v4.u32 [%r4+3584], {%r0, %r0, %r0, %r0};\nfence.proxy.async;\n" + TICKET + ASYNCHRONOUS + wait
        + BARRIER + ROUND + "@%p7 st.shared.u32 [%r4+3584], %r0;\n" + ROUND + "@%p1 cp.async.bulk.wait_group 0;\nret;"
    )  # fmt: skip
    checker, device = Checker(), Device(library=library())
    out = device.upload(np.zeros(8192, np.uint32))
    device.launch(module_of(source(START + body, WORDS)), grid=1, block=64, arguments=[out], sinks=[checker])
    assert {f.rule for f in checker.report().findings} == (set() if waits else {"store-source-reused"})


FORGOTTEN = """
{ .reg .b32 c; .reg .pred q; mov.b32 c, 10;
SPLIT: @%p9 bra L; add.u32 %r7, %r7, 2; bra.uni J; L: add.u32 %r7, %r7, 1; J:
sub.u32 c, c, 1; setp.ne.u32 q, c, 0; @q bra SPLIT; mov.b32 c, 100;
AGAIN: @%p2 st.global.u32 [%rd0+4], c; st.global.u32 [%rd1], c;
sub.u32 c, c, 1; setp.ne.u32 q, c, 0; @q bra AGAIN; }
"""
LOOP = """
{ .reg .b32 c; .reg .pred q; mov.b32 c, 2000;
LOOP: st.global.u32 [%rd1], c; sub.u32 c, c, 1; setp.ne.u32 q, c, 0; @q bra LOOP; }
"""
SIGNAL = "@%p2 st.release.gpu.global.u32 [%rd0+8], 1;\n"
WAIT = POLL.replace("ld.volatile", "ld.acquire.gpu")


@pytest.mark.parametrize("before", ["", TICKET])
@pytest.mark.parametrize("last", ["", STORE])
def test_the_time_of_a_long_trace_without_a_barrier_is_not_forgotten(monkeypatch, last, before):
    """Lanes part, and then a long loop stores what the other CTA loads after an acquire."""
    monkeypatch.setattr(single_barrier, "KEPT", 30)
    start = START if before else START.replace("st.shared.u32 [%r3+2048], %r0; bar.sync 0;", "")
    module = module_of(source(start + before + FORGOTTEN + SIGNAL + last + WAIT + LOAD_0 + "ret;", WORDS))
    for entries in range(40, 130, 7):
        monkeypatch.setattr(trace, "ENTRIES", entries)
        checker, device = Checker(), Device(library=library())
        out = device.upload(np.zeros(4096, np.uint32))
        device.launch(module, grid=2, block=64, arguments=[out], sinks=[checker])
        assert {f.rule for f in checker.report().findings} == ({"race-global"} if last else set()), entries


@pytest.mark.parametrize("meets", [True, False])
def test_nor_that_lanes_have_met_at_the_barrier_before_it(monkeypatch, meets):
    monkeypatch.setattr(single_barrier, "KEPT", 300)
    monkeypatch.setattr(trace, "ENTRIES", 90)
    body = f"{FENCE}@%p1 red.global.add.u32 [%rd0], 1;\nst.shared.u32 [%r3], %r0;\nbar.sync 0;\n{LOOP}"
    body += "" if meets else "st.shared.u32 [%r3], %r0;\n"
    module = module_of(
        source(START + body + "@%p1 red.global.add.u32 [%rd0], 1;\nld.shared.u32 %r7, [%r12];\nret;", WORDS)
    )
    checker, device = Checker(), Device(library=library())
    device.launch(module, grid=1, block=64, arguments=[device.upload(np.zeros(4096, np.uint32))], sinks=[checker])
    assert {f.rule for f in checker.report().findings} == (set() if meets else {"race-lanes"})


def test_loads_of_a_table_that_stays_are_not_checked_one_by_one_before_a_ticket(monkeypatch):
    monkeypatch.setattr(pending, "MOST", 64)
    table = LOOP.replace("st.global.u32 [%rd1], c", "ld.shared.u32 %r7, [%r4+2048]")
    module = module_of(source(START + table + BARRIER + TICKET + ROUNDS + "ret;", WORDS))
    checker, device = Checker(), Device(library=library())
    out = device.upload(np.zeros(4096, np.uint32))
    with mock.patch.object(ShadowMemory, "_apply", autospec=True, side_effect=ShadowMemory._apply) as applied:
        device.launch(module, grid=1, block=64, arguments=[out], sinks=[checker])
    assert not checker.report().findings and applied.call_count < 400
