"""Both engines under the checker: strong accesses and atomics, many at a time and one by one."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest
from access_programs import draw, draw_rounds, findings
from native_engine import library, watched
from ptx_programs import WORDS, module_of, source

from emugpu.check import Checker, single_barrier
from emugpu.check.generic import GenericProxy
from emugpu.emulator import Device
from emugpu.emulator.native import trace


@pytest.mark.thorough
@pytest.mark.parametrize("first", range(0, 160, 20))
def test_the_checker_finds_the_same_under_both_engines(first):
    found = 0
    for seed in range(first, first + 20):
        program = draw(seed)
        expected = findings(program, native=False)
        assert findings(program, native=True) == expected, (seed, program.text)
        found += bool(expected[1])
    assert 0 < found < 20, "some programs race, and some do not"


@pytest.mark.thorough
@pytest.mark.parametrize(("first", "entries", "kept"), [(0, 1 << 16, 1 << 20), (30, 1 << 16, 1 << 20), (60, 64, 100)])
def test_and_behind_barriers_that_follow_strong_accesses(monkeypatch, first, entries, kept):
    monkeypatch.setattr(trace, "ENTRIES", entries)
    monkeypatch.setattr(single_barrier, "KEPT", kept)
    monkeypatch.setattr(single_barrier, "FEWEST", 1)
    resume = single_barrier.SingleBarrierCtas._resume
    found = 0
    with mock.patch.object(single_barrier.SingleBarrierCtas, "_resume", autospec=True, side_effect=resume) as resumed:
        for seed in range(first, first + 30):
            program = draw_rounds(seed)
            expected = findings(program, native=False)
            assert findings(program, native=True) == expected, (seed, program.text)
            found += bool(expected[1])
    assert 0 < found < 30 and resumed.call_count > 30


START = """
mov.u32 %r10, %ctaid.x; mov.b32 %r5, words; shl.b32 %r6, %r0, 2; add.u32 %r6, %r6, %r5; mov.b32 %r1, 0;
setp.eq.u32 %p1, %r0, 0; setp.eq.u32 %p2, %r10, 0; setp.eq.u32 %p3, %r10, 1; setp.ge.u32 %p5, %r0, 32;
mad.lo.u32 %r11, %r10, 64, %r0; mul.wide.u32 %rd1, %r11, 4; add.u64 %rd1, %rd0, %rd1; mov.b32 %r7, 0;
@%p1 st.shared.u32 [%r5], 0; bar.sync 0;
"""
ADD, READ = "red.shared.add.u32 [%r5], 1;", "ld.shared.u32 %r1, [%r5];"
ADD_GLOBAL = "red.relaxed.gpu.global.add.u32 [%rd0], 1;"
FIND = "ld.relaxed.gpu.global.u32 %r1, [%rd0]; ld.global.u32 %r1, [%rd0];"
DIVERGE = "@!%p1 bra ON; red.global.add.u32 [%rd0+64], 1; ON:"


def turns(first: str, second: str, other: str = "%p3") -> str:
    """One CTA executes the first part and then the other one the second part. Relaxed flags order nothing.

    Both CTAs run before the first part and after the second one, so that one part of the trace has both. ``other`` is
    the predicate of the other CTA.
    """
    wait = "W{0}: ld.relaxed.gpu.global.u32 %r7, [%rd0+{0}]; setp.ne.u32 %p6, %r7, {1}; @%p6 bra W{0};"
    pass_on = "bar.sync 0; st.relaxed.gpu.global.u32 [%rd0+{}], 1;"
    return (
        f"@%p1 red.relaxed.gpu.global.add.u32 [%rd0+128], 1; {wait.format(128, 2)} @{other} bra NEXT;"
        f"{first} {pass_on.format(192)} {wait.format(256, 1)} bra.uni END;"
        f"NEXT: {wait.format(192, 1)} {second} {pass_on.format(256)} END:"
    )


APART = "@%p1 bra A; {} bra.uni B; A: {} B:"
PROGRAMS = {
    "a barrier between atomics and a load": (ADD + "bar.sync 0;" + READ, ""),
    "no barrier between atomics and a load": (ADD + READ, "race-shared"),
    "no barrier between a store and atomics": ("st.shared.u32 [%r6], %r0;" + ADD, "race-shared"),
    "volatile accesses by all": ("st.volatile.shared.u32 [%r5], 1; ld.volatile.shared.u32 %r1, [%r5];", ""),
    "a volatile access and a plain one": ("st.volatile.shared.u32 [%r5], %r0;" + READ, "race-shared"),
    "a generic atomic": ("cvt.u64.u32 %rd2, %r5; cvta.shared.u64 %rd2, %rd2; red.add.u32 [%rd2], 1;", ""),
    "atomics of the GPU": (ADD_GLOBAL, ""),
    "atomics of one CTA, by several": (ADD_GLOBAL.replace("gpu", "cta"), "race-global"),
    "a plain store among atomics": ("@%p2 st.global.u32 [%rd0], 1;" + ADD_GLOBAL, "race-global"),
    "each thread's own word": (
        "st.global.u32 [%rd1], 1; atom.global.add.u32 %r1, [%rd1], 1; ld.global.u32 %r1, [%rd1];",
        "",
    ),
    "lanes apart, in shared memory": (
        "@%p5 exit;" + APART.format("st.volatile.shared.u32 [%r5], 1;", READ),
        "race-shared",
    ),
    "lanes apart, in global memory": (
        "@!%p2 exit; @%p5 exit;" + APART.format("st.volatile.global.u32 [%rd0], 1;", "ld.global.u32 %r1, [%rd0];"),
        "race-global",
    ),
    "atomics of one warp and a load of another": ("@!%p5 " + ADD + "@%p5 " + READ, "race-shared"),
    "a load of one warp and atomics of another": ("@!%p5 " + READ + "@%p5 " + ADD, "race-shared"),
    "atomics that Python executes": ("nanosleep.u32 1;" + ADD + ADD_GLOBAL + "nanosleep.u32 1;", ""),
}  # fmt: skip
IN_TURNS = {
    "adds; finds it": (ADD_GLOBAL, FIND, ""),
    "adds; diverges and finds it": (ADD_GLOBAL, DIVERGE + FIND, ""),
    "diverges and adds; finds it": (DIVERGE + ADD_GLOBAL, FIND, ""),
    "finds nothing; adds": (FIND, ADD_GLOBAL, "race-global"),
    "diverges and finds nothing; adds": (DIVERGE + FIND, ADD_GLOBAL, "race-global"),
    "finds nothing; diverges and adds": (FIND, DIVERGE + ADD_GLOBAL, "race-global"),
}
for name, (first, second, rule) in IN_TURNS.items():
    PROGRAMS[name + ", CTA 0 first"] = turns(first, second), rule
    PROGRAMS[name + ", CTA 1 first"] = turns(first, second, "%p2"), rule


@pytest.mark.parametrize("name", PROGRAMS)
def test_strong_accesses_of_a_kernel_that_hands_nothing_over(name):
    body, rule = PROGRAMS[name]
    text = source(START + body + "mov.b32 %r9, %r1; ret;", WORDS)
    for engine in (None, library()):
        checker, device = Checker(), Device(library=engine)
        out = device.upload(np.zeros(1024, np.uint32))
        one, run = (
            mock.patch.object(GenericProxy, name, autospec=True, side_effect=getattr(GenericProxy, name))
            for name in ("access", "accesses")
        )
        with watched() as stops, one as access, run as accesses:
            device.launch(module_of(text), grid=2, block=64, arguments=[out], sinks=[checker])
        assert {finding.rule for finding in checker.report().findings} == ({rule} if rule else set()), name
        assert bool(stops) == (engine is not None)
        if engine is not None and not rule and "diverge" not in name:
            assert not access.called and not accesses.called, "nothing is checked one by one"
