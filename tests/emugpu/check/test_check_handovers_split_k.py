"""The truth table of split-K: CTAs store partial sums and arrive at a counter; the last one adds them."""

from __future__ import annotations

import numpy as np
import pytest
from handovers import CTA_BARRIER, Outcome, Table, only, outcome

ORDERS = {
    "acq_rel": ("", "atom.acq_rel.{}.global.inc.u32", ""),
    "fences": ("fence.acq_rel.{};", "atom.relaxed.{}.global.inc.u32", "fence.acq_rel.{};"),
    "release": ("", "atom.release.{}.global.inc.u32", ""),
    "acquire": ("", "atom.acquire.{}.global.inc.u32", ""),
    "relaxed": ("", "atom.relaxed.{}.global.inc.u32", ""),
}


def hand_over(s) -> str:
    """Two CTAs, one part each: %m0 partial sums, %m1 the counter, %m2 the sum."""
    before, arrive, after = (text.format(s.scope) for text in ORDERS[s.order])
    store = """
    mov.u32 %r1, %ctaid.x; shl.b32 %r1, %r1, 6; add.u32 %r1, %r1, %thread;
    mul.wide.u32 %d1, %r1, 4; add.u64 %d1, %d1, %m0; st.global.b32 [%d1], %thread;
    """
    return f"""
    {"" if s.late else store}
    {CTA_BARRIER if s.meets else ""}
    {only("%thread eq 0", f"{before} {arrive} %r2, [%m1], 1; {after} st.shared.b32 [slot], %r2;")}
    {CTA_BARRIER}
    {store if s.late else ""}
    ld.shared.b32 %r3, [slot];
    setp.ne.u32 %p1, %r3, 1;
    @%p1 bra DONE;
    mul.wide.u32 %d2, %thread, 4; add.u64 %d3, %d2, %m0;
    ld.global.b32 %r4, [%d3]; ld.global.b32 %r5, [%d3+256];
    add.u32 %r4, %r4, %r5; add.u64 %d4, %d2, %m2; st.global.b32 [%d4], %r4;
    DONE:
    """


def hand_over_expects(s) -> Outcome:
    """Sound where the stores come first, the CTA meets behind them, and the arrival releases and acquires for all.

    Without the meeting, the arrival of thread 0 stands neither for the other warp nor for the other lanes of its own.
    """
    ordered = s.order in ("acq_rel", "fences") and s.scope == "gpu"
    alone = ordered and not s.meets and not s.late
    return outcome(not (ordered and s.meets and not s.late) and "race-global|scope", alone and "signal-for-lanes")


TABLE = Table(
    "split-K",
    {
        "order": tuple(ORDERS),
        "scope": ("gpu", "cluster", "cta"),
        "meets": (True, False),
        "late": (False, True),
    },
    hand_over,
    hand_over_expects,
    grid=2,
    targets=("sm_90a", "sm_100a"),
    arguments=lambda device: [
        device.upload(np.zeros(128, np.uint32), "partial sums"),
        device.upload(np.zeros(1, np.uint32), "counter"),
        device.upload(np.zeros(64, np.uint32), "sums"),
    ],
)


@pytest.mark.thorough
@pytest.mark.parametrize("target", TABLE.targets)
def test_every_setting_is_told_from_the_right_one(target):
    assert TABLE.disagreements(target, (("fifo", 0), ("random", 1))) == []
