"""The order of events: of a warp, of a grid, of lanes that part and meet again."""

from __future__ import annotations

import numpy as np
import pytest
from event_programs import MEETING, MUCH
from event_streams import FIRST_WORD, SCHEDULES, WHOLE_WARP, executed, instruction, of, stream, who

from emugpu.emulator.machine.events import (
    Access,
    Agent,
    ClusterEnded,
    CtaEnded,
    CtaStarted,
    Diverged,
    Exited,
    GridStarted,
    Rejoined,
    WarpSynced,
)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: s[0])
def test_the_events_of_a_warp_come_in_program_order(schedule):
    """Both warps do the same, in parts of shared memory of their own."""
    name, seed = schedule
    seen = stream(MUCH, threads=64, initial=np.zeros(1), schedule=name, seed=seed)
    expected = [
        ("ld.param", "Access"), ("st.shared", "Access"), ("bar.warp", "WarpSynced"), ("ld.shared", "Access"),
        ("stmatrix.sync", "Access"), ("ldmatrix.sync", "Access"), ("shfl.sync", "WarpSynced"),
        ("vote.sync", "WarpSynced"), ("elect.sync", "WarpSynced"), ("mbarrier.init", "BarrierInit"),
        ("fence.mbarrier_init", "Fenced"), ("mbarrier.arrive", "Arrived"), ("mbarrier.try_wait", "Waited"),
        ("mbarrier.test_wait", "Waited"), ("mbarrier.inval", "BarrierInvalidated"), ("bar.arrive", "GroupArrived"),
        ("bar.sync", "GroupArrived"), ("bar.sync", "GroupLeft"), ("barrier.cluster", "GroupArrived"),
        ("barrier.cluster", "GroupLeft"), ("cp.async", "Committed"), ("cp.async", "Awaited"),
        ("atom.shared", "Access"), ("red.global", "Access"), ("st.global", "Access"), ("ld.global", "Access"),
        ("membar.cta", "Fenced"),
    ]  # fmt: skip
    for warp in range(2):
        assert executed(seen, warp=warp) == expected
        indices = [instruction(e).index for e in seen if instruction(e) is not None and who(e).warp == warp]
        assert indices == sorted(indices)


def test_a_loop_gives_its_events_again_in_every_round():
    body = """
    mov.b32 %r3, words;
    mov.b32 %r4, 0;
    AGAIN:
    st.shared.b32 [%r3], %r4;
    ld.shared.b32 %r5, [%r3];
    add.u32 %r4, %r4, 1;
    setp.lt.u32 %p1, %r4, 3;
    @%p1 bra AGAIN;
    ret;
    """
    accesses = of(stream(body), Access)[1:]
    assert [(a.mode, a.where, a.values) for a in accesses] == [
        step for n in range(3) for step in (("write", FIRST_WORD, n), ("read", FIRST_WORD, None))
    ]


def test_the_life_of_a_grid_is_told_from_start_to_end():
    seen = stream("ret;", threads=40, grid=4, cluster=2)
    assert isinstance(seen[0], GridStarted)
    assert seen[0].launch.grid == (4, 1, 1) and [size for _, _, size in seen[0].allocations] == [160]
    starts = [(e.cluster, e.cta, e.ctaid, e.warps) for e in of(seen, CtaStarted)]
    assert starts == [(0, 0, (0, 0, 0), 2), (0, 1, (1, 0, 0), 2), (1, 0, (2, 0, 0), 2), (1, 1, (3, 0, 0), 2)]
    for cluster in range(2):
        own = [e for e in of(seen, Exited) if e.agent.cluster == cluster]
        assert [(e.agent.cta, e.agent.warp, e.agent.lanes) for e in own] == [
            (cta, warp, lanes) for cta in range(2) for warp, lanes in ((0, WHOLE_WARP), (1, 0xFF))
        ]
        ends = [seen.index(e) for e in of(seen, CtaEnded, ClusterEnded) if e.cluster == cluster]
        assert [type(seen[i]) for i in ends] == [CtaEnded, CtaEnded, ClusterEnded]
        assert ends[0] > seen.index(own[1]) and ends[1] > seen.index(own[3])


def test_lanes_that_go_separate_ways_are_told_and_that_they_meet_again():
    body = """
    mov.b32 %r3, words;
    setp.lt.u32 %p1, %r0, 8;
    @%p1 bra LOW;
    st.shared.b32 [%r3], %r0;
    bra.uni JOIN;
    LOW:
    st.shared.b32 [%r3+4], %r0;
    JOIN:
    st.shared.b32 [%r3+8], %r0;
    setp.eq.u32 %p2, %r0, 3;
    @%p2 exit;
    st.shared.b32 [%r3+12], %r0;
    ret;
    """
    seen = stream(body)
    first, second = of(seen, Diverged)
    assert first.agent == Agent(0, 0, 0, WHOLE_WARP) and {p.lanes for p in first.parts} == {0xFF, 0xFFFF_FF00}
    rejoined = of(seen, Rejoined)[0]
    assert rejoined.agent == first.agent and set(rejoined.parts) == set(first.parts)
    assert {p.lanes for p in second.parts} == {8, 0xFFFF_FFF7}
    lanes = {0: 0xFFFF_FF00, 4: 0xFF, 8: WHOLE_WARP, 12: 0xFFFF_FFF7}
    stores = [a for a in of(seen, Access) if a.mode == "write"]
    assert {a.where - FIRST_WORD: a.agent.lanes for a in stores} == lanes and len(stores) == len(lanes)
    for store in stores:  # each lane stores its number, so the mask of the lanes is told again by the values
        assert sum(1 << int(n) for n in store.values) == store.agent.lanes
    assert sorted(e.agent.lanes for e in of(seen, Exited)) == [8, 0xFFFF_FFF7]
    order = [seen.index(e) for e in (first, rejoined, second)]
    assert order == sorted(order)


@pytest.mark.parametrize("seed", range(4))
def test_all_who_meet_in_a_warp_sync_are_told_before_any_of_them_goes_on(seed):
    """Otherwise nobody could tell what came before the meeting from what came after it."""
    seen = stream(MEETING, schedule="random", seed=seed)
    told = [e for e in seen if isinstance(e, WarpSynced) or (isinstance(e, Access) and e.mode == "write")]
    assert [type(e) for e in told] == [Access, Access, WarpSynced, WarpSynced, Access, Access]
    assert {(e.agent.lanes, e.members) for e in told[2:4]} == {(0xFF, WHOLE_WARP), (0xFFFF_FF00, WHOLE_WARP)}
