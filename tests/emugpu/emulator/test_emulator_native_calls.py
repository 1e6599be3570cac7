"""Plain instructions that Python executes in the middle of native code, on the rows of a fragment."""

from __future__ import annotations

import re
import signal

import numpy as np
import pytest
from native_engine import library, outcome, same
from ptx_forms import FORMS
from ptx_programs import module_of, source
from test_emulator_native_instructions import program

from emugpu.emulator import Device, Module
from emugpu.emulator.native.calls import Caller
from emugpu.emulator.native.layout import StopReason

PLAIN = {
    "integer": 95, "half": 49, "single and double": 95, "conversions": 125, "conversions (sm_100a)": 15, "basic": 7
}  # fmt: skip
"""Families of forms, and how many of each are calls."""
NAMES = {"f": "r", "e": "d"}
"""Registers of `program` for those of the forms."""


def spelled(form: str) -> str:
    return re.sub(r"%([a-z])(\d+)", lambda m: f"%{NAMES.get(m[1], m[1])}{int(m[2]) % 3}", form)


@pytest.mark.thorough
@pytest.mark.parametrize("family", PLAIN)
def test_plain_forms_do_the_same_in_native_code(family):
    called, compared = 0, 0
    for form in FORMS[family][1]:
        if not re.match(r"[a-z0-9.:]+ (%|b,)", form) or re.match(r"%(q|clock|global)", form):
            continue
        text = program(spelled(form), "@%p1" if compared % 3 == 0 else "", compared % 3 == 1)
        plan = Module(text).code(None).native(False, False)
        if plan is None:
            continue
        compared += 1
        called += bool(plan.calls)
        assert outcome(text, True, threads=30) == outcome(text, False, threads=30), form
    assert called >= PLAIN[family]


WORK = """
mul.wide.u32 %rd1, %r0, 4; add.s64 %rd1, %rd0, %rd1; setp.lt.u32 %p1, %r0, 16; and.b32 %r3, %r0, 3;
{before} xor.b32 %r4, %r0, %r3; xor.b32 %r4, %r4, 77; bmsk.clamp.b32 %r6, 0, 32;
and.b32 %r4, %r4, %r6; szext.wrap.s32 %r4, %r4, 5; add.u32 %r5, %r4, 1; {after}
st.global.u32 [%rd1], %r5; ret;
"""


def test_the_code_around_a_call_stays_native():
    text = source(WORK.format(before="", after=""))
    plan = module_of(text).code(None).native(True, True)
    assert plan is not None and len(plan.calls) == 2
    assert [len(pieces) for pieces in plan.pieces if pieces] == [1]
    found = same(text, threads=64)
    assert not found["stops"][StopReason.FAILED]
    lanes = np.arange(64)
    low = (lanes ^ (lanes & 3) ^ 77) & 31
    expected = (low - 32 * (low >> 4) + 1).astype(np.uint32)
    assert (np.frombuffer(found["out"], np.uint32)[:64] == expected).all()


CASES = {
    "a branch": ("mov.b32 %r5, 4; @%p1 bra A; add.u32 %r3, %r3, 9;", "A:"),
    "lanes apart": ("@!%p1 bra A; add.u32 %r3, %r3, 9; szext.wrap.u32 %r3, %r3, 2; A:", ""),
    "a guard": ("", "@%p1 szext.wrap.u32 %r5, %r4, %r3; @!%p1 bmsk.wrap.b32 %r5, %r3, %r4;"),
    "two results": ("", "mov.b32 {%rs1, %rs2}, %r5; sad.u16 %rs1, %rs1, %rs2, 3; cvt.u32.u16 %r5, %rs1;"),
    "a fault behind it": ("", "st.shared.u32 [%r4], %r5;"),
    "a guard that it writes": (
        "setp.lt.u32 %p2, %r0, 99;",
        "@%p1 setp.eq.and.u32 %p1|%p2, %r3, 1, %p1; @%p2 add.u32 %r5, %r5, 9;",
    ),
    "a guard that it writes before its other result": (
        "setp.gt.u32 %p2, %r0, 99;",
        "@%p1 setp.eq.u32 %p1|%p2, %r3, 1; @%p2 add.u32 %r5, %r5, 9; @!%p1 add.u32 %r5, %r5, 64; "
        "@%p2 lop3.and.b32 %r5|%p2, %r5, %r3, %r0, 0x96, %p1; @%p2 add.u32 %r5, %r5, 128;",
    ),
    "an undefined lane": ("@%p1 mov.b32 %r9, 7; add.u32 %r3, %r3, %r9;", ""),
    "a loop": ("L: add.u32 %r3, %r3, 1; szext.wrap.u32 %r3, %r3, 8;", "setp.lt.u32 %p2, %r3, 40; @%p2 bra L;"),
    "a loop that only polls": ("L: bmsk.clamp.b32 %r3, 3, 5;", "setp.ne.u32 %p2, %r3, 0; @%p2 bra L;"),
}

WRONG = {
    "a fault behind it": "a shared::cta address names a CTA",
    "an undefined lane": "uses register %r5, which comes from",
    "a loop that only polls": "warps only poll",
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("schedule", ["fifo", "random"])
def test_calls_in_programs_do_the_same(name, schedule):
    before, after = CASES[name]
    text = source(WORK.format(before=before, after=after))
    assert module_of(text).code(None).native(True, True).calls
    found = same(text, threads=64, schedule=schedule, seed=3)
    assert ("error" in found) == (name in WRONG) and WRONG.get(name, "") in found.get("error", ""), found.get("error")


@pytest.mark.parametrize("error", [KeyboardInterrupt, TimeoutError])
def test_an_exception_of_a_signal_handler_in_a_call_ends_the_launch(monkeypatch, error):
    def interrupted(*operands: object) -> None:
        raise error

    monkeypatch.setattr(Caller, "_execute", interrupted)
    device = Device(library=library())
    with pytest.raises(error):
        module = module_of(source(WORK.format(before="", after="")))
        device.launch(module, grid=1, block=32, arguments=[device.alloc(4096)])


FOREVER = """
mov.b32 %r4, %r0; L: szext.wrap.u32 %r3, %r4, 5; add.u32 %r4, %r4, 1; st.global.u32 [%rd0], %r4;
setp.ne.u32 %p1, %r3, 99; @%p1 bra L; ret;
"""


def test_a_signal_while_native_code_runs_ends_the_launch():
    """Python may handle it as a call begins."""
    device = Device(library=library())
    out = device.alloc(4096)
    module = module_of(source(FOREVER))

    def stop(*of_signal: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, stop)
    try:
        for n in range(20):
            with pytest.raises(KeyboardInterrupt):
                signal.setitimer(signal.ITIMER_REAL, 0.05 + n / 3000)
                device.launch(module, grid=1, block=32, arguments=[out], timeout=5)
    finally:
        signal.signal(signal.SIGALRM, before)
