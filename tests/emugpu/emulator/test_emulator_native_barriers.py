"""Lanes of a warp that wait for one another at a barrier with a count: both engines do the same."""

from __future__ import annotations

import pytest
from native_engine import PREFIX, library, listened, same
from ptx_programs import WORDS, source

from emugpu.emulator.native.plan import SHORTEST

LONG = "add.u32 %r4, %r4, %r1; xor.b32 %r1, %r1, %r4;" * (SHORTEST // 2)
"""Code that is native in the middle of a block that Python runs otherwise."""
FIRST = f"{LONG} shfl.sync.bfly.b32 %r4, %r1, 1, 31, 0xffff; {LONG}"
SECOND = f"{LONG} shfl.sync.bfly.b32 %r4, %r1, 1, 31, 0xffff0000; {LONG}"
LOOP = "{name}: add.u32 %r9, %r9, 1; {shuffle} setp.lt.u32 %p3, %r9, 130; @%p3 bra {name};"
ARRIVE, SYNC = "barrier.arrive 1, 64;", "barrier.sync 1, 64;"
HALVES = {
    "a shuffle": (ARRIVE + FIRST, LONG + ARRIVE + SECOND),
    "a shuffle in front": (FIRST + SYNC + FIRST, SECOND + SYNC + SECOND),
    "a shuffle behind both": (SYNC + FIRST, LONG + SYNC + SECOND),
    "bar.warp.sync": (f"{ARRIVE} {LONG} bar.warp.sync 0xffff; {LONG}", f"bar.warp.sync 0xffff0000; {LONG} {ARRIVE}"),
    "an exit": (ARRIVE + FIRST, f"{LONG} exit;"),
    "another barrier": (
        f"{ARRIVE} {FIRST} barrier.arrive 2, 64; {FIRST}", f"{LONG} {ARRIVE} {LONG} barrier.arrive 2, 64; {LONG}"),
    "guards": (
        f"setp.lt.u32 %p3, %r0, 8; @%p3 {ARRIVE} @!%p3 {ARRIVE} {FIRST}",
        f"{SECOND} {ARRIVE} bar.warp.sync 0xffff0000;"),
    "a barrier that waits until the other half has exited": (
        f"{ARRIVE} {FIRST} bar.sync 0;",
        f"{ARRIVE} {LONG} and.b32 %r8, %r0, 1; setp.eq.u32 %p3, %r8, 0; @%p3 bra EVEN; {LONG} EVEN: {SECOND} exit;"),
    "a long loop": (
        ARRIVE + LOOP.format(name="L", shuffle=LONG) + FIRST, LOOP.format(name="M", shuffle=SECOND) + SYNC + LONG),
    "the end of the branch": (LONG, LONG + SYNC),
}  # fmt: skip
"""What the halves of warp 0 do, while warp 1 waits."""


@pytest.mark.parametrize("what", HALVES)
def test_halves_of_a_warp_that_arrive_apart(what):
    first, second = HALVES[what]
    body = f"""
    {PREFIX} mov.b32 %r1, %r0; mov.b32 %r4, %r0; mov.b32 %r9, 0; setp.ge.u32 %p1, %r0, 32; setp.ge.u32 %p2, %r0, 16;
    @%p1 bra OTHER; @%p2 bra SECOND; {first} bra DONE; SECOND: {second} bra DONE; OTHER: {SYNC}
    DONE: st.global.u32 [%rd1], %r4; ret;
    """
    for schedule, seed in (("fifo", 0), *(("random", seed) for seed in range(20))):
        where = dict(threads=64, schedule=schedule, seed=seed)
        assert "error" not in same(source(body, WORDS), **where)
        python, native = (listened(source(body, WORDS), engine, **where) for engine in (None, library()))
        assert python.seen == native.seen
