"""The event stream of a run is complete: every memory can be rebuilt from it."""

from __future__ import annotations

from typing import Any

import pytest
from event_streams import SCHEDULES
from kernel_runs import cluster_tile, run
from replay import Replay

from conftest import SERIES
from emugpu.emulator.machine.events import Access, Finished, Started
from harness.compile.config import make_config

REPLAYED = {
    **{f"{kernel} 2x1": config for kernel, config in SERIES.items()},
    **{f"kernel6 {x}x{y}": make_config("kernel6", cluster=(x, y)) for x, y in ((2, 2), (4, 2))},
    **{f"{kernel} sm_90a": make_config(kernel, arch="sm_90a") for kernel in SERIES},
}


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: s[0])
@pytest.mark.parametrize(
    "config",
    [
        pytest.param(config, id=name, marks=() if config.kernel == "kernel8" else pytest.mark.thorough)
        for name, config in REPLAYED.items()
    ],
)
def test_the_stream_is_enough_to_rebuild_every_memory(watched, common, config, schedule):
    """The problem is ragged, and the clusters at its end are partly outside of it."""
    m, n = cluster_tile(config)
    name, seed = schedule
    _, verdict = run(common[config], (m - 37, n + 8, 200), "integer", schedule=name, seed=seed)
    assert verdict.passed
    watched.check()


WITHHELD = {
    "a box that has landed": lambda e: isinstance(e, Finished) and e.operation.kind == "tma.load",
    "a box that is stored": lambda e: isinstance(e, Finished) and e.operation.kind == "tma.store",
    "a multiplication": lambda e: isinstance(e, Started) and e.operation.kind == "mma",
    "the writes of a warp": lambda e: isinstance(e, Access) and e.site.opcode == "stmatrix",
    "the address of tensor memory": lambda e: isinstance(e, Access) and e.site.opcode == "tcgen05",
}


@pytest.mark.parametrize("withheld", WITHHELD.values(), ids=WITHHELD)
def test_a_replay_notices_that_one_event_is_missing(watched, series, monkeypatch, withheld):
    take, missing = Replay.__call__, []

    def take_all_but_one(replay: Replay, event: Any) -> None:
        if withheld(event) and not missing:
            missing.append(event)
        else:
            take(replay, event)

    monkeypatch.setattr(Replay, "__call__", take_all_but_one)
    with pytest.raises((AssertionError, KeyError)):
        run(series["kernel6"], (256, 256, 64), "integer")
        watched.check()
    assert missing
