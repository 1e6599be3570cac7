"""Launches of many CTAs: native code starts one after the other, and leaves the same behind as Python."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from native_engine import Kept, library, watched
from ptx_programs import WORDS, module_of, source

from emugpu.emulator.machine import machine
from emugpu.emulator.native.layout import StopReason

GRID, THREADS = (3, 2, 5), 64
NUMBER = """
mov.u32 %r20, %ctaid.x; mov.u32 %r21, %ctaid.y; mov.u32 %r22, %ctaid.z; mov.u32 %r23, %nctaid.x;
mov.u32 %r24, %nctaid.y;
mad.lo.u32 %r25, %r22, %r24, %r21; mad.lo.u32 %r25, %r25, %r23, %r20;
mad.lo.u32 %r26, %r25, 64, %r0; mul.wide.u32 %rd1, %r26, 4; add.s64 %rd1, %rd0, %rd1;
mov.b32 %r5, words; shl.b32 %r6, %r0, 2; add.u32 %r7, %r5, %r6;
"""
"""%r25 is the number of the CTA in the grid; [%rd1] is the thread's own word; [%r7] its word in shared memory."""
TURN_ROUND = "st.shared.u32 [%r7], %r25; bar.sync 0; xor.b32 %r8, %r7, 128; ld.shared.u32 %r1, [%r8];"
PROGRAMS = {
    "adds": "add.u32 %r1, %r25, 7;",
    "exchanges": f"{TURN_ROUND} bar.sync 0; st.shared.u32 [%r8], %r0; bar.sync 0; ld.shared.u32 %r2, [%r7];"
    "mad.lo.u32 %r1, %r1, 100, %r2;",
    "diverges": "and.b32 %r2, %r26, 3; mov.b32 %r1, 0;"
    "LOOP: add.u32 %r1, %r1, 1; setp.le.u32 %p1, %r1, %r2; @%p1 bra LOOP;",
    "needs python in some": "mov.b32 %r1, 0; and.b32 %r2, %r25, 3; setp.ne.u32 %p1, %r2, 2; @%p1 bra SKIP;"
    "match.any.sync.b32 %r1, %r0, -1; SKIP:",
    "loops for long in one": "mov.b32 %r1, 0; setp.ne.u32 %p1, %r25, 11; @%p1 bra SKIP;"
    "LOOP: add.u32 %r1, %r1, 1; setp.lt.u32 %p1, %r1, 20000; @%p1 bra LOOP; SKIP:",
    "counts those before": "mov.b32 %r1, 0; setp.ne.u32 %p1, %r0, 0; @%p1 bra SKIP;"
    "atom.global.add.u32 %r1, [%rd0+32768], 1; SKIP:",
    "waits for the next one": "mov.b32 %r1, 0; setp.ne.u32 %p1, %r0, 0; @%p1 bra SKIP; setp.eq.u32 %p2, %r25, 4;"
    "setp.eq.u32 %p3, %r25, 3; @%p2 st.volatile.global.u32 [%rd0+32772], 9; @!%p3 bra SKIP;"
    "SPIN: ld.volatile.global.u32 %r1, [%rd0+32772]; setp.ne.u32 %p1, %r1, 9; @%p1 bra SPIN; SKIP: bar.sync 0;",
    "spins with barriers": "mov.b32 %r1, 0; setp.eq.u32 %p2, %r25, 21; @%p2 st.volatile.global.u32 [%rd0+32772], 9;"
    "setp.ne.u32 %p1, %r25, 20; @%p1 bra SKIP;"
    "SPIN: ld.volatile.global.u32 %r1, [%rd0+32772]; bar.sync 0; setp.ne.u32 %p1, %r1, 9; @%p1 bra SPIN; SKIP:",
    "leaves early": "mov.b32 %r1, 1; setp.ge.u32 %p1, %r0, 32; @%p1 bra GONE;",
    "reads what another CTA has written": "setp.ne.u32 %p1, %r25, 0; @%p1 bra READ; st.shared.u32 [%r7], %r0;"
    "READ: ld.shared.u32 %r1, [%r7];",
    "faults late": "mov.b32 %r1, 0; setp.ne.u32 %p1, %r25, 23; @%p1 bra SKIP; ld.global.u32 %r1, [%rd1+1048576]; SKIP:",
    "never ends": "LOOP: ld.global.u32 %r1, [%rd0+32768]; setp.eq.u32 %p1, %r25, 13; @%p1 bra LOOP;",
}
FAULTS = {
    "reads what another CTA has written": "CTA (1, 0, 0)",
    "faults late": "CTA (2, 1, 3)",
    "never ends": "CTA (1, 0, 2)",
}


def outcome(text: str, native: bool, **options: Any) -> dict[str, Any]:
    device = Kept(library=library() if native else None)
    out = device.alloc(65536, "out")
    device.memset(out, 0, 65536)
    found: dict[str, Any] = {}
    try:
        result = device.launch(module_of(text), grid=GRID, block=THREADS, arguments={"out": out}, **options)
        found["counters"], found["warnings"] = result.counters, result.warnings
    except Exception as error:
        found["error"] = f"{type(error).__name__}: {error}"
    found["changes"] = device.machine.wakeups.changes
    found["ended"] = device.machine.clusters.ended
    return {**found, "out": device.download(out, np.uint32, 16384).tolist()}


@pytest.mark.parametrize("name", PROGRAMS)
def test_ctas_that_start_natively(name):
    text = source(f"{NUMBER} {PROGRAMS[name]} st.global.u32 [%rd1], %r1; GONE: ret;", WORDS)
    expected = outcome(text, False)
    with watched() as stops:
        assert outcome(text, True) == expected
    assert FAULTS[name] in expected["error"] if name in FAULTS else "error" not in expected
    if name == "adds":
        words = np.array(expected["out"])[: 30 * THREADS].reshape(30, THREADS)
        assert (words == np.arange(30)[:, None] + 7).all()
    if name in ("adds", "exchanges", "diverges", "counts those before", "leaves early"):
        # Python ends the last CTA, and passes registers to the first lanes that diverge.
        assert stops.keys() <= {StopReason.EXITS, StopReason.CANNOT_SPLIT} and stops.total() <= 3


@pytest.mark.parametrize("most", [100, 1000, 1500])
def test_a_limit_of_steps_is_reached_by_the_same_cta(most):
    text = source(f"{NUMBER} {PROGRAMS['exchanges']} st.global.u32 [%rd1], %r1; ret;", WORDS)
    expected = outcome(text, False, max_steps=most)
    assert "its limit (max_steps)" in expected["error"]
    assert outcome(text, True, max_steps=most) == expected


def test_no_cta_gives_way_because_the_one_before_has_run_for_long(monkeypatch):
    """Both warps count how many ended before them; the second one of each other CTA has one round."""
    monkeypatch.setattr(machine, "SLICE", 1024)
    loop = """
    setp.lt.u32 %p1, %r0, 32; and.b32 %r2, %r25, 1; setp.eq.or.u32 %p1, %r2, 1, %p1; selp.u32 %r3, 900, 1, %p1;
    mov.b32 %r1, 0; LOOP: add.u32 %r1, %r1, 1; setp.lt.u32 %p1, %r1, %r3; @%p1 bra LOOP;
    atom.global.add.u32 %r1, [%rd0+32768], 1; st.global.u32 [%rd1], %r1; ret;
    """
    text = source(f"{NUMBER} {loop}", WORDS)
    expected = outcome(text, False)
    with watched() as stops:
        assert outcome(text, True) == expected
    assert "error" not in expected and stops[StopReason.STANDS_BY] == 0
