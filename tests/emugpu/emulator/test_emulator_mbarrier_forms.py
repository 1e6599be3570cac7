"""mbarriers by generic addresses, arrivals that must not end a phase, and what a state says."""

from __future__ import annotations

import pytest
from ptx_programs import STORE_R1, WORDS, launch, run

from emugpu.emulator import Fault

GENERIC = """
mov.b32 %r3, words; cvt.u64.u32 %rd3, %r3; cvta.shared.u64 %rd3, %rd3;
setp.eq.u32 %p1, %r0, 0;
@%p1 mbarrier.init.b64 [%rd3], {count}; bar.warp.sync -1;
"""


def test_every_operation_takes_a_generic_address():
    body = (
        GENERIC.format(count=34)
        + """
    mbarrier.arrive.b64 %rd4, [%rd3];
    @%p1 mbarrier.arrive.expect_tx.b64 %rd5, [%rd3], 16;
    @%p1 mbarrier.arrive_drop.b64 %rd5, [%rd3];
    @%p1 mbarrier.complete_tx.relaxed.cta.shared.b64 [%r3], 16;
    W: mbarrier.try_wait.b64 %p2, [%rd3], %rd4; @!%p2 bra W;
    mbarrier.test_wait.parity.b64 %p3, [%rd3], 0; selp.b32 %r1, 7, 8, %p3;
    @%p1 mbarrier.inval.b64 [%rd3];
    """
    )
    assert run(body + STORE_R1 + "ret;", module_scope=WORDS).tolist() == [7] * 32


def test_a_state_says_how_many_arrivals_were_pending_before():
    body = (
        GENERIC.format(count=5)
        + """
    mov.b32 %r1, 0; @!%p1 bra END;
    mbarrier.arrive.noComplete.shared.b64 %rd4, [%r3], 3;
    mbarrier.arrive.shared.b64 %rd5, [%r3];
    mbarrier.arrive_drop.shared.b64 %rd6, [%r3];
    mbarrier.arrive.noComplete.release.cta.shared.b64 %rd7, [%r3], 2;
    mbarrier.pending_count.b64 %r4, %rd4; mbarrier.pending_count.b64 %r5, %rd5; mbarrier.pending_count.b64 %r6, %rd6;
    mbarrier.pending_count.b64 %r7, %rd7; mbarrier.test_wait.shared.b64 %p2, [%r3], %rd6; selp.b32 %r8, 1, 0, %p2;
    mbarrier.test_wait.shared.b64 %p3, [%r3], %rd7; selp.b32 %r9, 1, 0, %p3;
    mad.lo.u32 %r1, %r4, 10, %r5; mad.lo.u32 %r1, %r1, 10, %r6; mad.lo.u32 %r1, %r1, 10, %r7;
    mad.lo.u32 %r1, %r1, 10, %r8; mad.lo.u32 %r1, %r1, 10, %r9;
    END:
    """
    )
    # After the drop the next phase awaits 4; that of the fourth arrival is not over.
    assert run(body + STORE_R1 + "ret;", module_scope=WORDS)[0] == 521410


def test_an_arrival_that_must_not_end_the_phase():
    body = GENERIC.format(count=2) + "@%p1 mbarrier.arrive.noComplete.shared.b64 %rd4, [%r3], 2; ret;"
    with pytest.raises(Fault, match=r"with \.noComplete ends phase 0") as error:
        launch(body, module_scope=WORDS)
    assert error.value.rule == "mbarrier-count"


@pytest.mark.parametrize("count", [40, 32, 20])
def test_the_lanes_of_a_warp_arrive_one_after_the_other(count):
    """With a count of 20 the twentieth lane ends the phase, and the others arrive in the next one."""
    body = GENERIC.format(count=count) + "mbarrier.arrive.b64 %rd4, [%rd3]; mbarrier.pending_count.b64 %r1, %rd4;"
    done = launch(body + STORE_R1 + "ret;", module_scope=WORDS)
    assert done.words(32).tolist() == [count - lane % count for lane in range(32)]
    assert done.result.counters.mbarrier_arrivals == 32
