"""Loads by ld.global.nc and ldu of what the same kernel writes: in one thread, across threads and across CTAs."""

from __future__ import annotations

import numpy as np
import pytest
from ptx_programs import WORDS, source

from emugpu.check import Checker
from emugpu.emulator import Device, Module
from emugpu.emulator.native.library import library_for

START = """
mul.wide.u32 %rd1, %r0, 4; add.s64 %rd1, %rd1, %rd0;
xor.b32 %r1, %r0, 32; mul.wide.u32 %rd2, %r1, 4; add.s64 %rd2, %rd2, %rd0;
mul.wide.u32 %rd3, %r0, 8; add.s64 %rd3, %rd3, %rd0;
mov.u32 %r2, %ctaid.x; setp.eq.u32 %p0, %r0, 0; setp.eq.u32 %p1, %r2, 0; setp.lt.u32 %p2, %r0, 100;
"""
"""%rd1 and %rd2: words of the thread and of its neighbour in the other warp. %rd3: 8 bytes of the thread."""
WRITE, MEET = "st.global.b32 [%rd1], %r0;", "bar.sync 0;"
USE = "@%p2 st.global.b32 [%rd1+2048], %r4;"
OWN, OTHER = "ld.global.nc.b32 %r4, [%rd1];", "ld.global.nc.b32 %r4, [%rd2];"
FENCE, PLAIN = "membar.gl; bra.uni NEXT; NEXT:", "ld.global.b32 %r5, [%rd1+1024];"
BULK = """
mov.b32 %r5, words; st.shared.v4.b32 [%r5], {%r0, %r0, %r0, %r0}; fence.proxy.async;
cp.async.bulk.global.shared::cta.bulk_group [%rd0], [%r5], 16;
cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;
"""
FLAG = """
setp.ne.u32 %p3, %r0, 0; @%p3 bra OVER; @!%p1 bra READ;
st.global.b32 [%rd0], 7; st.release.gpu.global.b32 [%rd0+1024], 1; bra OVER;
READ: ld.acquire.gpu.global.b32 %r5, [%rd0+1024]; setp.eq.u32 %p3, %r5, 0; @%p3 bra READ; LOAD @%p2
st.global.b32 [%rd0+2048], %r4; OVER:
"""
FOUND = """
setp.ne.u32 %p3, %r0, 0; @%p3 bra OVER; @!%p1 bra READ;
st.relaxed.gpu.global.b32 [%rd0], 7; bra OVER;
READ: ld.relaxed.gpu.global.b32 %r5, [%rd0]; setp.eq.u32 %p3, %r5, 0; @%p3 bra READ; LOAD @%p2
st.global.b32 [%rd0+2048], %r4; OVER:
"""
ERROR, WARNING, NOTHING = {("incoherent-load", "error")}, {("incoherent-load", "warning")}, set()
PROGRAMS = {
    "its own": (WRITE + OWN + USE, ERROR),
    "its own, between other loads": (FENCE + WRITE + PLAIN + OWN + PLAIN + USE, ERROR),
    "its own, by ldu": (WRITE + OWN.replace("ld.global.nc", "ldu.global") + USE, ERROR),
    "its own, by the coherent path": (WRITE + OWN.replace(".nc", "") + USE, NOTHING),
    "its neighbour's": (WRITE + MEET + OTHER + USE, ERROR),
    "its neighbour's, by the coherent path": (WRITE + MEET + OTHER.replace(".nc", "") + USE, NOTHING),
    "its neighbour's, without a barrier": (WRITE + OTHER + USE, {("race-global", "error")}),
    "its neighbour's, past L1": (WRITE + MEET + OTHER.replace(".nc", ".nc.L1::no_allocate") + USE, WARNING),
    "what an atomic has written": ("red.global.add.u32 [%rd1], 1;" + OWN + USE, ERROR),
    "what a bulk store has written": ("@!%p0 bra OVER;" + BULK + OWN + USE + "OVER:", ERROR),
    "what nobody writes": (OWN + USE, NOTHING),
    "in place": (OWN + "add.u32 %r4, %r4, 1; st.global.b32 [%rd1], %r4;", WARNING),
    "in place, behind a barrier": (OTHER + MEET + "st.global.b32 [%rd1], %r4;", WARNING),
    "in place, by the coherent path": (OWN.replace(".nc", "") + "st.global.b32 [%rd1], %r4;", NOTHING),
    "other bytes of the same 16": ("st.global.b32 [%rd3], %r0;" + OWN.replace("[%rd1", "[%rd3+4") + USE, NOTHING),
    "one byte of a word": (
        "st.global.b32 [%rd3], %r0;" + OWN.replace("nc.b32", "nc.u8").replace("[%rd1", "[%rd3+3") + USE, ERROR),
    "a value that nobody uses": (WRITE + OWN + "setp.gt.u32 %p3, %r0, 100; @%p3 st.global.b32 [%rd1], %r4;", NOTHING),
    "what a strong load has found": (FOUND.replace("LOAD", OWN.replace("%rd1", "%rd0")), ERROR),
    "what a strong load has found, by the coherent path": (
        FOUND.replace("LOAD", OWN.replace("%rd1", "%rd0").replace(".nc", "")), NOTHING),
    "what another CTA has released": (FLAG.replace("LOAD", OWN.replace("%rd1", "%rd0")), ERROR),
    "what another CTA has released, by the coherent path": (
        FLAG.replace("LOAD", OWN.replace("%rd1", "%rd0").replace(".nc", "")), NOTHING),
}  # fmt: skip


def findings(text: str, grid: int, **device_options) -> set[tuple[str, str]]:
    device, checker = Device(**device_options), Checker()
    device.launch(
        Module.from_text(source(START + text + "ret;", WORDS)),
        grid=grid, block=64, arguments=[device.upload(np.zeros(1024, np.uint32), "out")], sinks=[checker],
    )  # fmt: skip
    return {(one.rule, one.severity) for one in checker.report().findings if one.severity != "note"}


@pytest.mark.parametrize("engine", ["native", "python"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_loaded_incoherently_is_written_by_nobody_in_the_kernel(name, engine):
    library = library_for(engine)
    text, wanted = PROGRAMS[name]
    grid = 2 if text.startswith(FLAG[:8]) else 1
    for schedule in ("fifo", "random"):
        assert findings(text, grid, schedule=schedule, library=library) == wanted


def test_the_next_launch_may_load_it():
    device, checker = Device(), Checker()
    out = device.upload(np.zeros(1024, np.uint32), "out")
    for text in (WRITE, OTHER + USE):
        module = Module.from_text(source(START + text + "ret;", WORDS))
        device.launch(module, grid=1, block=64, arguments=[out], sinks=[checker])
    assert checker.report().findings == ()
