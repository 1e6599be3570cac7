"""CTAs that store the same value at the same places, and read it back."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest
from native_engine import library
from ptx_programs import source

from emugpu.check import Checker
from emugpu.check.history import UNORDERED_KEPT, Observer
from emugpu.emulator import Device, Module

START = """
mul.wide.u32 %rd1, %r0, 4; add.s64 %rd1, %rd1, %rd0;
xor.b32 %r1, %r0, 32; mul.wide.u32 %rd2, %r1, 4; add.s64 %rd2, %rd2, %rd0;
mov.u32 %r2, %ctaid.x; mad.lo.u32 %r3, %r2, 64, %r0; mul.wide.u32 %rd3, %r3, 4; add.s64 %rd3, %rd3, %rd0;
setp.eq.u32 %p0, %r2, 0; setp.eq.u32 %p1, %r2, 2; mov.b32 %r5, 42; mov.b32 %r7, 0;
"""
"""%rd1 and %rd2: words of the thread and of its neighbour in the other warp, for all CTAs. %rd3: a word of its own.
%p0: CTA 0. %p1: CTA 2.
"""
STORE, LOAD, LOAD_OTHER = "st.global.b32 [%rd1], %r5;", "ld.global.b32 %r4, [%rd1];", "ld.global.b32 %r4, [%rd2];"
KEEP = "st.global.b32 [%rd3+1024], %r4;"
ROUND = STORE + LOAD + KEEP
FLAG = """
setp.ne.u32 %p2, %r0, 0; @%p2 bra OVER; setp.eq.u32 %p0, %r2, 0; @%p0 bra READ; @!%p1 bra OVER;
AGAIN: st.global.b32 [%rd1], %r5; setp.eq.u32 %p0, %r7, 0; @%p0 red.release.gpu.global.add.u32 [%rd0+512], 1;
add.u32 %r7, %r7, 1; setp.lt.u32 %p0, %r7, 2; @%p0 bra AGAIN; bra OVER;
READ: ld.acquire.gpu.global.u32 %r6, [%rd0+512]; setp.eq.u32 %p0, %r6, 0; @%p0 bra READ;
ld.global.b32 %r4, [%rd1]; st.global.b32 [%rd3+1024], %r4; OVER:
"""
"""CTA 2 stores twice and releases the first store, for which CTA 0 waits."""
RELEASED = """
setp.ne.u32 %p2, %r0, 0; @%p2 bra OVER; @%p1 bra READ; @%p0 st.global.b32 [%rd1], %r7;
st.global.b32 [%rd1], %r5; @%p0 red.release.gpu.global.add.u32 [%rd0+512], 1; bra OVER;
""" + FLAG[FLAG.index("READ: ") :]
"""CTA 0 stores another value first, and releases its second store, for which CTA 2 waits."""
OWN = """
and.b32 %r3, %r0, 31; mad.lo.u32 %r3, %r2, 64, %r3; add.u32 %r3, %r3, 2048;
mul.wide.u32 %rd1, %r3, 4; add.s64 %rd1, %rd1, %rd0;
setp.lt.u32 %p2, %r0, 32; @%p2 st.global.b32 [%rd1], %r7; bar.sync 0;
"""
"""%rd1: a word for both warps of a CTA, in which the first has stored 0 before a barrier."""
PAIR = "and.b32 %r1, %r0, 31; and.b32 %r6, %r0, 30; mul.wide.u32 %rd1, %r6, 4; add.s64 %rd1, %rd1, %rd0;"
"""%rd1: a word for two lanes. %r1: the lane."""
STRONG = "st.relaxed.gpu.global.b32 [%rd1], {};"
PROGRAMS = {
    "read by the thread that stores": (ROUND, False),
    "read by another warp behind a barrier": (STORE + "bar.sync 0;" + LOAD_OTHER + KEEP, False),
    "read by another warp at once": (STORE + LOAD_OTHER + KEEP, True),
    "a byte is read": (STORE + "ld.global.u8 %r4, [%rd1+1];" + KEEP, False),
    "again and again": ("LOOP:" + ROUND + "add.u32 %r7, %r7, 1; setp.lt.u32 %p0, %r7, 3; @%p0 bra LOOP;", False),
    "one CTA stores another value": ("@%p1 mov.b32 %r5, 43;" + ROUND, True),
    "one CTA stores another value as well": (STORE + "@%p1 st.global.b32 [%rd1], %r7;" + LOAD + KEEP, True),
    "one CTA only reads": ("@!%p1 " + STORE + LOAD + KEEP, True),
    "read before the store": (LOAD + KEEP + STORE, True),
    "each stores a second value": (STORE + "mov.b32 %r5, 43;" + ROUND, True),
    "each adds to what it finds": (STORE + LOAD + "add.u32 %r5, %r4, 1;" + STORE, True),
    "one CTA stores it again later": (FLAG, True),
    "one CTA has stored another value before": ("@%p0 st.global.b32 [%rd1], %r7;" + ROUND, True),
    "one CTA has stored another value twice before": ("@%p0 st.global.b32 [%rd1], %r7;" + STORE + ROUND, True),
    "one CTA has stored another value before, and releases": (RELEASED, True),
    "another value is stored before a barrier": (OWN + ROUND, False),
    "one CTA has stored another value before, all strongly": (
        "@%p0 " + STRONG.format("%r7") + STRONG.format("%r5") + LOAD + KEEP, True),
    "pairs of lanes store two values": (PAIR + ROUND.replace("%r5", "%r1"), True),
    "pairs of lanes store one value": (PAIR + ROUND, False),
    "all lanes store one value at one word": (ROUND.replace("rd1", "rd0"), False),
    "all lanes store two values at one word": (PAIR + ROUND.replace("rd1", "rd0").replace("%r5", "%r1"), True),
    "numbers with the same hash": (
        "mov.b64 %rd4, 0; @%p1 mov.b64 %rd4, 0x1fffffffffffffff; setp.ne.u32 %p2, %r0, 0; @%p2 bra OVER; "
        "st.global.b64 [%rd0], %rd4; ld.global.b64 %rd5, [%rd0]; st.global.b64 [%rd0+1024], %rd5; OVER:", True),
    "an atomic between": (STORE + "red.global.add.u32 [%rd1], 1;" + LOAD + KEEP, True),
}  # fmt: skip


MANY = 2 * UNORDERED_KEPT + 3


@pytest.mark.parametrize(
    ("name", "ctas"),
    [(name, ctas) for name in PROGRAMS for ctas in (3, MANY) if (name, ctas) != ("an atomic between", MANY)],
)
def test_which_of_the_same_values_a_thread_finds_does_not_matter(name, ctas):
    text, is_race = PROGRAMS[name]
    for schedule, seed in (("fifo", 0), ("random", 1), ("random", 2)):
        device, checker = Device(schedule=schedule, seed=seed), Checker()
        out = device.upload(np.zeros(4096, np.uint32), "out")
        device.launch(
            Module.from_text(source(START + text + "ret;")), grid=ctas, block=64, arguments=[out], sinks=[checker]
        )
        found = {(one.rule, one.severity) for one in checker.report().findings}
        assert ("race-global", "error" if is_race else "warning") in found
        assert is_race or found == {("race-global", "note"), ("race-global", "warning")}


WORD, BYTES = "st.global.b32 [%rd0], {};", "st.global.v2.b32 [%rd0], {{%r5, {}}};"


@pytest.mark.parametrize(
    ("text", "is_race"),
    [
        (WORD.format("%r5"), False),
        (WORD.format("%r1"), True),
        (BYTES.format("%r5"), False),
        (BYTES.format("%r1"), True),
        (PAIR + STORE.replace("%r5", "%r1"), True),
        (PAIR + STORE.replace("%r5", "%r6"), False),
        (PAIR + STORE.replace("b32", "u8").replace("%r5", "%r1"), True),
        ("and.b32 %r1, %r0, 15; shl.b32 %r6, %r1, 8; " + WORD.replace("b32", "u8").format("%r6"), False),
        ("mul.wide.u32 %rd1, %r0, 2; add.s64 %rd1, %rd1, %rd0; " + STORE.replace("b32", "u8").replace("5", "0"), False),
    ],
)
@pytest.mark.parametrize("native", [True, False])
def test_lanes_of_ctas_that_store_different_values_at_one_address_race(text, is_race, native):
    """PTX leaves open which lane's store comes last, so the CTAs may leave different values."""
    device, checker = Device(library=library() if native else None), Checker()
    out = device.upload(np.zeros(256, np.uint32), "out")
    kernel = source("and.b32 %r1, %r0, 31; mov.b32 %r5, 42;" + text + "ret;")
    device.launch(Module.from_text(kernel), grid=2, block=32, arguments=[out], sinks=[checker])
    severity = "error" if is_race else "note"
    assert {(one.rule, one.severity) for one in checker.report().findings} == {("race-global", severity)}


def test_the_work_for_equal_stores_grows_with_the_ctas_and_not_with_their_square():
    asked = []
    for ctas in (100, 200):
        device, checker = Device(), Checker()
        out = device.upload(np.zeros(4096, np.uint32), "out")
        module = Module.from_text(source("mov.b32 %r5, 42; st.global.b32 [%rd0], %r5; ret;"))
        with mock.patch.object(Observer, "follows", autospec=True, side_effect=Observer.follows) as follows:
            device.launch(module, grid=ctas, block=64, arguments=[out], sinks=[checker])
            assert {one.severity for one in checker.report().findings} == {"note"}
        asked.append(follows.call_count)
    assert asked[1] < 2.5 * asked[0]
