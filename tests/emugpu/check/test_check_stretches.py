"""What a CTA did before it hands something over: the checker keeps it, and looks at it only if a finding needs it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest
from native_engine import library
from ptx_programs import WORDS, module_of, source

from emugpu.check import Checker, clocks, generic, single_barrier
from emugpu.check.clocks import Clock, Components
from emugpu.check.generic import GenericProxy
from emugpu.check.shadow import ShadowMemory
from emugpu.check.signals_for_lanes import Found
from emugpu.check.threads import Thread
from emugpu.emulator import Device
from emugpu.emulator.native import trace

START = """
shl.b32 %r3, %r0, 4; mov.u32 %r4, words; add.u32 %r3, %r3, %r4; xor.b32 %r5, %r0, 32; shl.b32 %r5, %r5, 4;
add.u32 %r5, %r5, %r4; mov.u32 %r6, %ctaid.x; setp.eq.u32 %p1, %r0, 0;
st.shared.v4.u32 [%r3], {%r0, %r0, %r0, %r0};
bar.sync 0;
"""
ROUND = """
st.shared.v4.u32 [%r3], {%r0, %r0, %r0, %r0};
bar.sync 0;
ld.shared.u32 %r7, [%r5];
bar.sync 0;
"""
TICKET = """
fence.acq_rel.gpu;
bar.sync 0;
@%p1 red.global.add.u32 [%rd0], 1;
"""
SPLIT = "@%p1 bra ON;\nld.shared.u32 %r8, [%r3];\nON:\n"
SEND = "@%p1 cp.async.bulk.global.shared::cta.bulk_group [%rd0+1024], [%r4], 1024;\n@%p1 cp.async.bulk.commit_group;"
WAIT = "\n@%p1 cp.async.bulk.wait_group 0;"
UNORDERED = ROUND.replace("\nbar.sync 0;\nld", "\nld")
PROGRAMS = {
    "rounds, then a ticket": (8 * ROUND + TICKET, ()),
    "a round after the ticket": (ROUND + TICKET + ROUND, ()),
    "lanes part in a round": (ROUND + SPLIT + 2 * ROUND + TICKET, ()),
    "no barrier in the last round": (4 * ROUND + UNORDERED + TICKET, ("race-shared",)),
    "no barrier in the first round": (UNORDERED + 4 * ROUND + TICKET, ("race-shared",)),
    "no barrier after the ticket": (4 * ROUND + TICKET + UNORDERED, ("race-shared",)),
    "a copy after a proxy fence": (ROUND + TICKET + "fence.proxy.async;\nbar.sync 0;\n" + SEND + WAIT, ()),
    "a copy of what was stored before the ticket": (2 * ROUND + TICKET + SEND + WAIT, ("proxy-write-read",)),
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("grid", [1, 3])
def test_a_ticket_ends_no_round(name, grid):
    body, rules = PROGRAMS[name]
    module = module_of(source(START + body + "\nst.global.u32 [%rd0+4], 7;\nret;", WORDS))
    found = []
    for engine in (None, library()):
        checker, device = Checker(), Device(library=engine)
        out = device.upload(np.zeros(1024, np.uint32))
        with mock.patch.object(ShadowMemory, "_apply", autospec=True, side_effect=ShadowMemory._apply) as one_by_one:
            device.launch(module, grid=grid, block=64, arguments=[out], sinks=[checker])
        found.append({(f.rule, f.severity, f.first.line, f.second.line) for f in checker.report().errors})
        if engine is not None and not rules and "copy" not in name:
            assert not one_by_one.called
    assert found[0] == found[1]
    assert {rule for rule, *_ in found[0]} == set(rules)


FENCE = "fence.acq_rel.gpu;\n"
OWN = "st.global.u32 [%rd1], %r0;\nld.global.u32 %r7, [%rd1];\n"
FLAG = "@%p2 st.volatile.global.u32 [%rd0+8], 1;\n"
STORE = "@%p2 st.global.u32 [%rd0+4], 7;\n"
FIND = """
@%p3 bra END;
POLL: ld.volatile.global.u32 %r7, [%rd0+8];
setp.eq.u32 %p4, %r7, 0;
@%p4 bra POLL;
fence.acq_rel.gpu;
ld.global.u32 %r7, [%rd0+4];
st.global.u32 [%rd1+4], %r7;
END:
"""
FENCED = {
    "a fence in each round, and no flag": (4 * (ROUND + OWN + FENCE), True, ()),
    "a membar first, and no flag": ("membar.gl;\n" + 4 * (ROUND + OWN), True, ()),
    "a store, a fence, rounds and the flag": (STORE + FENCE + 2 * ROUND + FLAG + FIND, False, ()),
    "a store, a fence and the flag": (STORE + FENCE + FLAG + FIND, False, ()),
    "a fence, a store, rounds and the flag": (FENCE + STORE + 2 * ROUND + FLAG + FIND, False, ("race-global",)),
    "a fence, rounds, a store and the flag": (FENCE + 2 * ROUND + STORE + FLAG + FIND, False, ("race-global",)),
    "a store, a fence of the CTA, rounds and the flag": (
        STORE + FENCE.replace("gpu", "cta") + 2 * ROUND + FLAG + FIND, False, ("scope",)),
    "a store by all lanes, a fence and the flag of one": (
        STORE.replace("p2", "p5") + FENCE + FLAG + FIND, False, ("signal-for-lanes",)),
    "a store by all lanes, a fence, rounds and the flag of one": (
        STORE.replace("p2", "p5") + FENCE + 2 * ROUND + FLAG + FIND, False, ()),
}  # fmt: skip
PLACES = """
mad.lo.u32 %r9, %r6, 64, %r0; mul.wide.u32 %rd1, %r9, 16; add.s64 %rd1, %rd1, %rd0; add.s64 %rd1, %rd1, 4096;
setp.eq.u32 %p3, %r6, 0; and.pred %p2, %p1, %p3; setp.lt.u32 %p5, %r0, 32; and.pred %p5, %p5, %p3;
"""


@pytest.mark.parametrize("name", FENCED)
def test_a_fence_without_a_flag_ends_nothing(name):
    body, is_quiet, rules = FENCED[name]
    module = module_of(source(START + PLACES + body + "\nret;", WORDS))
    found = []
    for engine in (None, library()):
        checker, device = Checker(), Device(library=engine)
        out = device.upload(np.zeros(4096, np.uint32))
        with mock.patch.object(GenericProxy, "accesses", autospec=True, side_effect=GenericProxy.accesses) as runs:
            device.launch(module, grid=2, block=64, arguments=[out], sinks=[checker])
        assert not (engine is not None and is_quiet and runs.called), "nothing is checked one by one"
        found.append({(f.rule, f.severity, f.first.line, f.second.line) for f in checker.report().findings})
    assert found[0] == found[1]
    assert {rule for rule, *_ in found[0]} == set(rules)


ORIGIN = "mov.u32 %r6, %ctaid.x; setp.eq.u32 %p1, %r0, 0;"
LONG = """
mov.u32 %r10, 0;
MORE: STORE
ld.global.u32 %r7, [%rd1];
fence.acq_rel.gpu;
add.u32 %r10, %r10, 1;
setp.lt.u32 %p6, %r10, 100;
@%p6 bra MORE;
"""
LONG_LOOPS: dict[str, tuple[str, tuple[str, ...]]] = {
    "one lane stores": (LONG.replace("STORE", STORE), ()),
    "all lanes store": (LONG.replace("STORE", STORE.replace("p2", "p5")), ("signal-for-lanes",)),
    "it stores once more": (LONG.replace("STORE", STORE) + STORE, ("race-global",)),
    "all lanes store, and only load from then on": (
        STORE.replace("p2", "p5") + LONG.replace("STORE", "").replace(FENCE, "") + FENCE,
        ("signal-for-lanes",),
    ),
    "all lanes store and meet, and only load from then on": (
        STORE.replace("p2", "p5") + "bar.warp.sync -1;\n" + LONG.replace("STORE", "").replace(FENCE, "") + FENCE,
        (),
    ),
    "all lanes store and meet, and load once": (
        STORE.replace("p2", "p5") + "bar.warp.sync -1;\nld.global.u32 %r7, [%rd1];\n" + FENCE,
        (),
    ),
}


@pytest.mark.parametrize("name", LONG_LOOPS)
def test_a_long_loop_of_fences_without_a_barrier_is_not_forgotten(monkeypatch, name):
    monkeypatch.setattr(trace, "ENTRIES", 64)
    monkeypatch.setattr(single_barrier, "KEPT", 100)
    body, rules = LONG_LOOPS[name]
    module = module_of(source(ORIGIN + PLACES + body + FLAG + FIND + "\nret;"))
    found = []
    for engine in (None, library()):
        checker, device = Checker(), Device(library=engine)
        out = device.upload(np.zeros(4096, np.uint32))
        device.launch(module, grid=2, block=64, arguments=[out], sinks=[checker])
        found.append({(f.rule, f.severity, f.first.line, f.second.line) for f in checker.report().findings})
    assert found[0] == found[1]
    assert {rule for rule, *_ in found[0]} == set(rules)


def test_what_relaxed_reads_find_is_joined():
    """A thread that polls ever new flags and never fences keeps little, and its next fence acquires all of it."""
    space, site = Components(0, 512), SimpleNamespace(index=3)
    thread = Thread(space.new(0), Clock(space), np.zeros(512, np.int32), 0, 1)
    for who in range(1, 500):
        clock = Clock(space)
        clock.set(who, 7)
        thread.find(Found(clock, clocks.ALL, 2, 1 + who % 2, site))
    assert len(thread.pending) < 300
    generic._acquire_by_fence(thread, 2, ())
    assert (thread.clock.rows[clocks.ORDER, 1:500:2] == 7).all(), "what its own lane has found"


def test_of_the_fences_of_a_long_loop_few_are_kept(monkeypatch):
    monkeypatch.setattr(trace, "ENTRIES", 64)
    monkeypatch.setattr(single_barrier, "KEPT", 100)
    kept: list[int] = []
    move = single_barrier.SingleBarrierCtas._move

    def _move(self: single_barrier.SingleBarrierCtas, cluster: int, one: Any) -> bool:
        has_moved = move(self, cluster, one)
        kept.extend(map(len, one.fences))
        return has_moved

    monkeypatch.setattr(single_barrier.SingleBarrierCtas, "_move", _move)
    loop = LONG.replace("STORE", "bar.sync 0;")
    module = module_of(
        source(ORIGIN + PLACES + loop + STORE + FENCE + loop.replace("MORE", "AGAIN") + FLAG + FIND + "\nret;")
    )
    checker, device = Checker(), Device(library=library())
    device.launch(module, grid=2, block=64, arguments=[device.upload(np.zeros(4096, np.uint32))], sinks=[checker])
    assert not checker.report().findings
    assert len(kept) > 10 and max(kept) < 30
