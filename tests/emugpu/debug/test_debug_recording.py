"""Recordings by the native engine. The debugger repeats the run in Python, and finds each event by its number."""

from __future__ import annotations

from pathlib import Path

import pytest
from native_engine import Listener, watched

from emugpu.debug.recording import record
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
