"""Events of mbarriers: arrivals, phases and waits."""

from __future__ import annotations

from event_programs import LATE, PHASES
from event_streams import FIRST_WORD, WHOLE_WARP, of, one, stream

from emugpu.emulator.machine.events import (
    Arrived,
    BarrierInit,
    BarrierInvalidated,
    BytesLanded,
    Missed,
    PhaseCompleted,
    Polled,
    Resumed,
    Suspended,
    Waited,
)


def test_an_mbarrier_tells_every_arrival_phase_and_wait():
    seen = stream(PHASES)
    at = (0, FIRST_WORD + 8)
    assert one(seen, BarrierInit)[2:] == (*at, 33) and one(seen, BarrierInit).agent.lanes == 1
    assert one(seen, BarrierInvalidated)[2:] == at
    arrivals = [(e.lane, e.phase, e.arrivals, e.expected_bytes, e.drop) for e in of(seen, Arrived)]
    assert arrivals == [
        *[(lane, 0, 1, 0, False) for lane in range(32)],
        (0, 0, 1, 48, False),
        (0, 0, 0, 16, False),
        *[(lane, 1, 1, 0, True) for lane in range(32)],
        (0, 1, 1, 0, False),
        (0, 2, 1, 0, False),
    ]
    assert {(e.cta, e.offset) for e in of(seen, Arrived, Waited, Polled, PhaseCompleted)} == {at}
    polled = one(seen, Polled)
    assert polled.phase == 0 and polled.agent.lanes == WHOLE_WARP
    waits = [(e.lanes, e.phase, e.parity) for e in of(seen, Waited)]
    assert waits == [(WHOLE_WARP, phase, parity) for phase, parity in ((0, 0), (0, -1), (1, 1), (2, 0))]
    completed = of(seen, PhaseCompleted)
    assert [e.phase for e in completed] == [0, 1, 2] and {e.cluster for e in completed} == {0}
    for phase, cause in zip(completed, (BytesLanded, Arrived, Arrived), strict=True):
        assert isinstance(seen[seen.index(phase) - 1], cause)


def test_bytes_completed_by_a_thread_tell_who_it_was():
    """Two clusters have a CTA of rank 0 and a barrier at that place each."""
    seen = stream(PHASES, grid=2)
    landed = of(seen, BytesLanded)
    assert [(e.operation, e.cta, e.offset, e.phase, e.nbytes) for e in landed] == [(None, 0, FIRST_WORD + 8, 0, 64)] * 2
    assert sorted((e.agent.cluster, e.agent.lanes, e.site.modifiers[0]) for e in landed) == [
        (0, 1, "complete_tx"),
        (1, 1, "complete_tx"),
    ]


def test_lanes_that_look_at_different_mbarriers_are_told_apart():
    body = """
    mov.b32 %r3, words;
    setp.eq.u32 %p1, %r0, 0;
    @%p1 mbarrier.init.shared.b64 [%r3], 1;
    @%p1 mbarrier.init.shared.b64 [%r3+8], 1;
    @%p1 mbarrier.arrive.shared.b64 %rd5, [%r3];
    bar.warp.sync -1;
    and.b32 %r4, %r0, 1;
    shl.b32 %r4, %r4, 3; add.u32 %r4, %r4, %r3;
    mbarrier.test_wait.parity.shared.b64 %p2, [%r4], 0;
    ret;
    """
    seen = stream(body)
    for kind, offset, lanes in ((Waited, FIRST_WORD, 0x5555_5555), (Polled, FIRST_WORD + 8, 0xAAAA_AAAA)):
        told = of(seen, kind)
        assert {(e.offset, e.phase) for e in told} == {(offset, 0)}
        assert sum(e.lanes for e in told) == lanes


def test_a_wait_tells_the_phase_it_has_waited_for_even_if_another_has_ended_since():
    """Warp 0 waits before warp 1 may go on; that ends two phases in a row."""
    body = """
    mov.b32 %r3, words;
    setp.eq.u32 %p1, %r0, 0;
    @%p1 mbarrier.init.shared.b64 [%r3], 1;
    @%p1 mbarrier.init.shared.b64 [%r3+8], 1;
    bar.sync 0;
    setp.lt.u32 %p2, %r0, 32; @!%p2 bra OTHER;
    @%p1 mbarrier.arrive.shared.b64 %rd5, [%r3+8];
    mbarrier.try_wait.parity.shared.b64 %p3, [%r3], 0;
    ret;
    OTHER: mbarrier.try_wait.parity.shared.b64 %p3, [%r3+8], 0;
    setp.eq.u32 %p1, %r0, 32;
    @%p1 mbarrier.arrive.shared.b64 %rd5, [%r3];
    @%p1 mbarrier.arrive.shared.b64 %rd5, [%r3];
    ret;
    """
    seen = stream(body, threads=64)
    (wait,) = [e for e in of(seen, Waited) if e.agent.warp == 0]
    assert [e.phase for e in of(seen, PhaseCompleted) if e.offset == wait.offset] == [0, 1]
    assert (wait.phase, wait.parity) == (0, 0)
    suspended = [e for e in of(seen, Suspended) if e.agent.warp == 0 and e.site.opcode == "mbarrier"]
    (slept,) = suspended
    assert "parity 0" in slept.what
    after = seen[seen.index(slept) :]
    assert after.index(next(e for e in of(after, Resumed) if e.agent == slept.agent)) < after.index(wait)


def test_a_wait_for_an_mbarrier_says_for_which_phase():
    body = """
    mov.b32 %r3, words;
    setp.eq.u32 %p1, %r0, 0;
    @%p1 mbarrier.init.shared.b64 [%r3+8], 1;
    bar.sync 0;
    setp.lt.u32 %p2, %r0, 32; @%p2 bra AGAIN;
    bar.sync 1, 32;
    setp.eq.u32 %p2, %r0, 32;
    mov.b32 %r5, 2000;
    DELAY: sub.u32 %r5, %r5, 1; setp.ne.u32 %p3, %r5, 0; @%p3 bra DELAY;
    @%p2 mbarrier.arrive.shared.b64 _, [%r3+8];
    ret;
    AGAIN: mbarrier.try_wait.parity.shared.b64 %p4, [%r3+8], 0; @!%p4 bra AGAIN;
    ret;
    """
    waits = [e.mbarrier for e in of(stream(body, threads=64), Suspended)]
    assert waits == [None, (0x408, 0)]


def test_an_arrival_at_a_cta_that_has_exited_is_told():
    thread, commit = of(stream(LATE, grid=2, cluster=2), Missed)
    assert (thread.agent.cta, thread.cta, thread.offset, thread.operation) == (1, 0, 0x400, None)
    assert (commit.cta, commit.offset, commit.operation.kind) == (0, 0x400, "commit")
