"""Launches whose memories are rebuilt from the stream of their events, and what the machine held itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from replay import Contents, Memories, Replay

from emugpu.emulator import Device
from emugpu.emulator.machine import lifetime


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


def watch(monkeypatch: pytest.MonkeyPatch) -> Watched:
    """From now on every launch is replayed, and the memories of every CTA are kept when it ends."""
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
