"""alloca, stacksave and stackrestore: what each thread takes is its own, new, and at most what a thread has."""

from __future__ import annotations

import numpy as np
import pytest
from ptx_programs import STORE_R1, launch

from emugpu.emulator import Fault

FILL_AND_SUM = f"""
add.u32 %r2, %r0, 1;
mul.wide.u32 %rd2, %r2, 4;
{{save}}
alloca.u64 %rd3, %rd2, 16;
mov.b64 %rd4, %rd3;
mov.u32 %r3, %r2;
fill: st.local.u32 [%rd4], %r3;
add.s64 %rd4, %rd4, 4;
sub.u32 %r3, %r3, 1; setp.ne.u32 %p0, %r3, 0; @%p0 bra fill;
mov.u32 %r1, 0;
cvta.local.u64 %rd5, %rd3;
sum: sub.s64 %rd4, %rd4, 4;
ld.local.u32 %r4, [%rd4];
add.u32 %r1, %r1, %r4;
setp.ne.u64 %p0, %rd4, %rd3; @%p0 bra sum;
ld.u32 %r4, [%rd5];
add.u32 %r1, %r1, %r4;
{{then}}
{STORE_R1}
"""
"""Thread t writes t + 1, t, ..., 1 into memory of its own, adds them up, and the first once more."""


def run(save="", then=""):
    outcome = launch(FILL_AND_SUM.format(save=save, then=then), threads=64)
    return outcome.words(64)


def test_each_thread_takes_as_much_as_it_asks_for():
    t = np.arange(64)
    assert run().tolist() == ((t + 1) * (t + 2) // 2 + t + 1).tolist()


def test_what_was_there_stays_when_more_is_taken():
    then = "alloca.u64 %rd6, 5000; st.local.u64 [%rd6+4992], %rd6; ld.local.u32 %r1, [%rd3]; sub.s64 %rd7, %rd6, %rd3;"
    assert run(then=then).tolist() == list(range(1, 65))


def test_what_is_given_back_is_taken_again_and_holds_nothing():
    again = "stackrestore.u64 %rd8; alloca.u64 %rd6, 64, 16; sub.s64 %rd7, %rd6, %rd3; cvt.u32.u64 %r1, %rd7;"
    assert not run("stacksave.u64 %rd8;", again).any()
    with pytest.raises(Fault, match="never written"):
        run("stacksave.u64 %rd8;", again + "ld.local.u32 %r1, [%rd6];")


@pytest.mark.parametrize(
    "then, message",
    [
        ("ld.local.u32 %r1, [%rd3+264];", "outside the thread's"),
        ("alloca.u64 %rd6, 524288;", "alloca of 524,288 bytes: a thread has at most 524,288"),
        ("mov.b64 %rd6, -8; alloca.u64 %rd6, %rd6;", "at most"),
        ("add.s64 %rd6, %rd3, 4096; stackrestore.u64 %rd6;", "not an address that stacksave returned"),
    ],
)
def test_what_is_outside_is_refused(then, message):
    with pytest.raises(Fault, match=message):
        run(then=then)
