"""How long the machine looks on while nothing but polling is done, and how fast its clock runs meanwhile."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from ptx_programs import STORE_R1, launch

from emugpu.emulator import Livelock
from emugpu.emulator.instructions.fence import sleep
from emugpu.emulator.machine import reports
from emugpu.emulator.machine.patience import CLOCK_ROUNDS, PATIENCE, Patience


@pytest.fixture
def patience() -> Any:
    """The patience with the warps of a grid that has no more than the looks below need."""
    code = SimpleNamespace(live_in=[0b101], first=[0], sites=[SimpleNamespace(line=3, text="mov")])
    grid: Any = SimpleNamespace(clock=0, code=code, wakeups=SimpleNamespace(changes=7, ready=deque()))
    return Patience(grid, clusters=None)  # type: ignore[arg-type]


def warp(
    name: str = "warp 0", registers: tuple[Any, ...] = (1, 2, 3), polls: bool = False, lanes: Any = range(32)
) -> Any:
    index = np.array(lanes, np.int64)

    def values(wanted: int) -> list[Any]:
        return [value for slot, value in enumerate(registers) if wanted >> slot & 1]

    return SimpleNamespace(agent=name, block=0, values=values, polls=polls, lane_index=index)


# ---- looking at the same few places ----


def test_patience_ends_after_so_many_looks_in_a_row(patience):
    assert [patience.ends(warp()) for _ in range(PATIENCE + 2)] == [False] * PATIENCE + [True, True]


def test_patience_begins_anew_when_something_has_happened(patience):
    for _ in range(PATIENCE):
        assert not patience.ends(warp())
    patience._wakeups.changes += 1
    assert [patience.ends(warp()) for _ in range(PATIENCE + 1)] == [False] * PATIENCE + [True]


def test_everybody_has_patience_of_his_own(patience):
    for _ in range(PATIENCE):
        assert not patience.ends(warp()) and not patience.ends(warp("warp 1"))
    assert patience.ends(warp()) and patience.ends(warp("warp 1"))


# ---- giving up a look at an mbarrier ----


def test_who_comes_back_with_the_same_registers_need_not_give_up_again(patience):
    assert patience._may_give_up(warp(), 5)
    assert not patience._may_give_up(warp(registers=(1, 99, 3)), 5), "the register at 1 is not live"
    assert patience._may_give_up(warp(registers=(1, 2, 4)), 5)
    assert patience._may_give_up(warp("warp 1"), 5)
    patience._wakeups.changes += 1
    assert patience._may_give_up(warp(registers=(1, 2, 4)), 5)


def test_registers_are_compared_lane_by_lane(patience):
    lanes = np.arange(32)
    assert patience._may_give_up(warp(registers=(lanes, 0, 0)), 5)
    assert patience._may_give_up(warp(registers=(lanes + (lanes == 9), 0, 0)), 5)
    assert not patience._may_give_up(warp(registers=(lanes + (lanes == 9), 0, 0)), 5)


def test_lanes_that_are_elsewhere_are_not_compared(patience):
    lanes = np.arange(32)
    assert patience._may_give_up(warp(registers=(lanes, 0, 0), lanes=range(9)), 5)
    assert not patience._may_give_up(warp(registers=(lanes + (lanes == 9), 0, 0), lanes=range(9)), 5)
    assert patience._may_give_up(warp(registers=(lanes + (lanes == 8), 0, 0), lanes=range(9)), 5)


@pytest.mark.parametrize(("polls", "looks"), [(False, 5), (True, PATIENCE)])
def test_looks_with_other_registers_may_go_on_for_a_while(patience, polls, looks):
    """try_wait as long as it is told to, test_wait as long as any loop that polls."""
    answers = [patience._may_give_up(warp(registers=(n, 0, 0), polls=polls), 5) for n in range(looks + 2)]
    assert answers == [True] * looks + [False, False]


# ---- clocks ----


@pytest.mark.parametrize(("clock", "then"), [(0, 1000), (8000, 9000), (8080, 9090), (80_000, 90_000)])
def test_time_passes_by_an_eighth_or_a_thousand_ticks(patience, clock, then):
    patience._grid.clock = clock
    patience.watch_clock(warp(), changed=False)
    assert patience._grid.clock == then


def test_a_clock_is_watched_for_so_many_rounds_alone(patience, monkeypatch):
    monkeypatch.setattr(reports, "livelock", lambda code, polls, clusters: polls[0][1])

    def rounds_alone() -> None:
        for _ in range(CLOCK_ROUNDS):
            patience.watch_clock(warp(), changed=False)

    rounds_alone()
    patience.watch_clock(warp(), changed=True)
    rounds_alone()
    patience._wakeups.ready.append(warp("warp 1"))
    patience.watch_clock(warp(), changed=False)
    patience._wakeups.ready.clear()
    rounds_alone()
    with pytest.raises(Livelock, match="waits for a time that the clock never reaches, PTX line 3: mov"):
        patience.watch_clock(warp(), changed=False)
    assert patience.suspects == {"warp 0": (7, 0)}


@pytest.mark.parametrize(("nanoseconds", "passed"), [(0, 0), (700, 700), (1_000_000, 1_000_000), (1 << 31, 1_000_000)])
def test_a_pause_takes_a_millisecond_at_most(nanoseconds, passed):
    fragment: Any = SimpleNamespace(grid=SimpleNamespace(clock=50), lane_index=np.array([2, 3]))
    sleep(fragment, None, nanoseconds)  # type: ignore[arg-type]
    assert fragment.grid.clock == 50 + passed
    lanes = np.full(32, 1 << 30, np.uint32)
    lanes[2:4] = 5, 600
    sleep(fragment, None, lanes)  # type: ignore[arg-type]
    assert fragment.grid.clock == 50 + passed + 600


# ---- who polls and who makes progress ----


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_two_warps_that_write_and_poll_in_turn_come_to_their_end(order):
    """Each writes a word for the other, and polls the other's, ten times over: ping and pong."""
    first, second = order
    body = f"""
    shr.u32 %r2, %r0, 5;
    setp.ge.u32 %p1, %r0, 64; @%p1 exit;
    setp.eq.u32 %p2, %r2, {first};
    mov.b32 %r5, 0; st.volatile.global.b32 [%rd0+512], %r5;
    bar.sync 0, 64;
    mov.b32 %r5, 1;
    @!%p2 bra PONG;
    PING: st.volatile.global.b32 [%rd0+512], %r5;
    add.u32 %r6, %r5, 1;
    ANSWER: ld.volatile.global.b32 %r7, [%rd0+512];
    setp.ne.u32 %p3, %r7, %r6; @%p3 bra ANSWER;
    add.u32 %r5, %r5, 2;
    setp.lt.u32 %p4, %r5, 20; @%p4 bra PING;
    bra END;
    PONG: ld.volatile.global.b32 %r7, [%rd0+512];
    setp.ne.u32 %p3, %r7, %r5; @%p3 bra PONG;
    add.u32 %r6, %r5, 1;
    st.volatile.global.b32 [%rd0+512], %r6;
    add.u32 %r5, %r5, 2;
    setp.lt.u32 %p4, %r5, 20; @%p4 bra PONG;
    END: mov.b32 %r1, %r5;
    """
    for options in ({}, {"schedule": "random", "seed": 5}):
        assert (launch(body + STORE_R1 + "ret;", threads=64, words=256, **options).words(64) == 21).all()
    assert second != first
