"""The event stream of a run: complete, in order, and only made for those who listen."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from conftest import SERIES
from kernel_runs import cluster_tile, run
from replay import Contents, Memories, Replay

from harness.config import make_config
from harness.emulator import Device
from harness.emulator.machine import lifetime
from harness.emulator.machine.events import Access, Finished, Started

# ---- everything can be rebuilt ----


@dataclass
class Watched:
    """The replays of the launches of a test, and what the machine held itself."""

    replays: list[Replay] = field(default_factory=list)
    devices: list[Device] = field(default_factory=list)
    ended: dict[tuple[int, int], Memories] = field(default_factory=dict)

    def check(self) -> None:
        """Every byte that was written, and no other, is in the replay."""
        ((replay, device),) = zip(self.replays, self.devices, strict=True)
        assert replay.ended.keys() == self.ended.keys()
        for name, held in self.ended.items():
            assert replay.ended[name].shared.differences(held.shared) == "", f"shared memory of CTA {name}"
            assert replay.ended[name].tensor.differences(held.tensor) == "", f"tensor memory of CTA {name}"
        for base, held in device_contents(device).items():
            assert replay.device[base].differences(held) == "", f"global memory at {base:#x}"


def device_contents(device: Device) -> dict[int, Contents]:
    """A copy of every allocation, by its first address."""
    found = {}
    for block in device._memory.allocations:
        valid = np.ones(block.data.size, np.bool_) if block.valid is None else block.valid.copy()
        found[block.base] = Contents(block.data.copy(), valid)
    return found


@pytest.fixture
def watched(monkeypatch) -> Watched:
    """Every launch is replayed, and the memories of every CTA are kept when it ends."""
    seen = Watched()
    launch, leave = Device.launch, lifetime.exit

    def launch_and_replay(device: Device, *arguments: Any, sinks=(), **options: Any):
        replay = Replay(device_contents(device))
        seen.replays.append(replay)
        seen.devices.append(device)
        return launch(device, *arguments, sinks=[*sinks, replay], **options)

    def leave_and_keep(f, site) -> None:
        cta = f.cta
        leave(f, site)
        if cta.exited:
            cta.tmem.settle()
            shared = Contents(cta.shared.data.copy(), cta.shared.valid.copy())
            tensor = Contents(cta.tmem.data.copy(), cta.tmem.valid.copy())
            seen.ended[cta.cluster.number, cta.rank] = Memories(shared, tensor)

    monkeypatch.setattr(Device, "launch", launch_and_replay)
    monkeypatch.setattr(lifetime, "exit", leave_and_keep)
    return seen


REPLAYED = {
    **{f"{kernel} 2x1": config for kernel, config in SERIES.items()},
    **{f"kernel6 {x}x{y}": make_config("kernel6", cluster=(x, y)) for x, y in ((2, 2), (4, 2))},
    **{f"{kernel} sm_90a": make_config(kernel, arch="sm_90a") for kernel in SERIES},
}
SCHEDULES = [("fifo", 0), ("random", 1)]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: s[0])
@pytest.mark.parametrize("config", REPLAYED.values(), ids=REPLAYED)
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
