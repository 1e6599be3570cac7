"""Recordings by the native engine. The debugger repeats the run in Python, and finds each event by its number."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from native_engine import Listener, watched
from ptx_programs import launch

from emugpu.debug.recording import record
from emugpu.debug.why import _stored_bytes
from emugpu.emulator.machine.events import Access
from emugpu.launch.launch_file import read_launch_file
from emugpu.launch.launching import EmulationOptions

LAUNCHES = Path(__file__).parents[2] / "data" / "launches"


@pytest.mark.parametrize("schedule, seed", [("fifo", 0), ("random", 2)])
@pytest.mark.parametrize("name", ["nvcc_split_k", "triton_tma_matmul_sm90"])
def test_a_recording_does_not_depend_on_the_engine(name, schedule, seed):
    what = read_launch_file(LAUNCHES / f"{name}.toml")
    seen = []
    for engine in ("python", "native"):
        with watched() as stops:
            recording = record(what, EmulationOptions(schedule=schedule, seed=seed, engine=engine))
        assert bool(stops.total()) == (engine == "native")
        listener = Listener()
        for event in recording.events:
            listener(event)
        assert listener.runs == 0
        seen.append((listener.seen, recording.end, recording.fault))
    assert len(seen[0][0]) > 1000 and seen[0] == seen[1]


def test_of_lanes_that_store_at_one_place_the_last_one_wins():
    seen: list[Any] = []
    ran = launch("st.global.v2.b32 [%rd0], {%r0, 7};", sinks=[seen.append])
    [store] = [event for event in seen if isinstance(event, Access) and event.mode == "write"]
    assert ran.words(2).tolist() == [31, 7]
    assert np.frombuffer(_stored_bytes(store, ran.out), np.uint32).tolist() == [31, 7]
