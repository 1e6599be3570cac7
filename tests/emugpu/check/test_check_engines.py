"""Both engines under the checker: strong accesses and atomics, many at a time and one by one."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest
from access_programs import draw, findings
from native_engine import library, watched
from ptx_programs import WORDS, module_of, source

from emugpu.check import Checker
from emugpu.check.generic import GenericProxy
from emugpu.emulator import Device


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


START = """
mov.u32 %r10, %ctaid.x; mov.b32 %r5, words; shl.b32 %r6, %r0, 2; add.u32 %r6, %r6, %r5; mov.b32 %r1, 0;
setp.eq.u32 %p1, %r0, 0; setp.eq.u32 %p2, %r10, 0; setp.eq.u32 %p3, %r10, 1; setp.eq.u32 %p4, %r10, 2;
mad.lo.u32 %r11, %r10, 64, %r0; mul.wide.u32 %rd1, %r11, 4; add.u64 %rd1, %rd0, %rd1; mov.b32 %r7, 0;
@%p1 st.shared.u32 [%r5], 0; bar.sync 0;
"""
ADD, READ = "red.shared.add.u32 [%r5], 1;", "ld.shared.u32 %r1, [%r5];"
ADD_GLOBAL = "red.relaxed.gpu.global.add.u32 [%rd0], 1;"
FIND = "@%p3 ld.relaxed.gpu.global.u32 %r1, [%rd0]; @%p3 ld.global.u32 %r1, [%rd0];"
OTHER_CTA = "@!%p4 bra ON; @!%p1 bra ON; red.global.add.u32 [%rd0+64], 1; ON:"
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
    "a strong load finds the atomic of an earlier CTA": ("@%p2 " + ADD_GLOBAL + FIND, ""),
    "a strong load is too early": (FIND.replace("%p3", "%p2") + "@%p3 " + ADD_GLOBAL, "race-global"),
    "it finds it, and another CTA diverges": (OTHER_CTA + "@%p2 " + ADD_GLOBAL + FIND, ""),
    "it is too early, and another CTA diverges": (
        OTHER_CTA + FIND.replace("%p3", "%p2") + "@%p3 " + ADD_GLOBAL,
        "race-global",
    ),
    "lanes apart, in shared memory": (
        "bar.sync 0;" + APART.format("st.volatile.shared.u32 [%r5], 1;", READ),
        "race-shared",
    ),
    "lanes apart, in global memory": (
        APART.format("st.volatile.global.u32 [%rd1+1020], 1;", "ld.global.u32 %r1, [%rd1+1024];"),
        "race-global",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_strong_accesses_of_a_kernel_that_hands_nothing_over(name):
    body, rule = PROGRAMS[name]
    text = source(START + body + "mov.b32 %r9, %r1; ret;", WORDS)
    for engine in (None, library()):
        checker, device = Checker(), Device(library=engine)
        out = device.upload(np.zeros(1024, np.uint32))
        one_by_one = mock.patch.object(GenericProxy, "access", autospec=True, side_effect=GenericProxy.access)
        with watched() as stops, one_by_one as access:
            device.launch(module_of(text), grid=3, block=64, arguments=[out], sinks=[checker])
        assert {finding.rule for finding in checker.report().findings} == ({rule} if rule else set()), name
        assert bool(stops) == (engine is not None)
        if engine is not None and not rule and "diverges" not in name:
            assert not access.call_count, "nothing is checked one by one"
