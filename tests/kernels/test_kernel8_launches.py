"""When kernel 8 of sm_90a lets the next launch begin: at once, or behind its last load."""

from __future__ import annotations

import re

import pytest
from kernel_faults import outcome

from harness.compile.config import make_config

ROWS, COLUMNS = 64, 32
LAUNCH = "griddepcontrol.launch_dependents;"
CONFIGS = {
    cluster: make_config(
        "kernel8",
        arch="sm_90a",
        scheduler="static",
        mma_shape=(ROWS, COLUMNS),
        cluster=cluster,
        stages=2,
        epilogue_width=16,
    )
    for cluster in ((1, 1), (4, 1))
}
"""By their clusters. One tile a CTA; an H200 holds 132 CTAs at once, or 30 clusters of four."""


def trap_at(nth: int):
    def alter(ptx: str) -> str:
        early, late = re.finditer(re.escape(LAUNCH), ptx)
        place = (early, late)[nth]
        return ptx[: place.start()] + "trap;" + ptx[place.end() :]

    return alter


@pytest.mark.parametrize(
    ("cluster", "ctas", "at_once"),
    [
        ((1, 1), 66, True),
        ((1, 1), 67, False),
        ((1, 1), 131, False),
        ((1, 1), 132, True),
        ((4, 1), 60, True),
        ((4, 1), 64, False),
        ((4, 1), 116, False),
        ((4, 1), 120, True),
    ],
)
def test_at_once_only_where_the_next_starts_together(built, cluster, ctas, at_once):
    """Where all of its CTAs find room beside those of this one, or none does; behind the last load everywhere."""
    size = (ROWS * cluster[0], COLUMNS * ctas // cluster[0], 64)
    early, late = (outcome(built[cluster], trap_at(nth), size, "fifo", 0) for nth in range(2))
    assert (early != "right") == at_once
    assert late != "right"
