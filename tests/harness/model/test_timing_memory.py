"""Bytes that are written, in the timing model: L2 takes them, DRAM writes them when it can, stores wait for room."""

from __future__ import annotations

import pytest

from harness.compile.artifacts import build
from harness.compile.presets import configure
from harness.model.constants import find_gpu
from harness.model.predict import predict
from harness.model.simulate import simulate
from harness.model.units import Dram
from harness.problem import Shape

CLOCK = 1.8e9


def dram(room: float, rate: float, dirty: float = 0.0) -> Dram:
    made = Dram()
    made.room, made.rate, made.dirty = room, rate, dirty
    return made


def test_what_there_is_room_for_is_taken_at_once():
    memory = dram(room=100, rate=10)
    assert memory.write(5.0, 60) == 5.0 and memory.dirty == 60


def test_what_there_is_no_room_for_waits_until_as_much_is_written():
    memory = dram(room=100, rate=10)
    memory.write(0.0, 100)
    assert memory.write(3.0, 60) == 3.0 + (100 - 30 + 60 - 100) / 10


def test_nothing_is_written_while_there_is_something_to_read():
    memory = dram(room=100, rate=10, dirty=100)
    assert memory.serve(0.0, 50) == 50
    assert memory.write(50.0, 20) == 52, "all of it has to be made room for"
    memory = dram(room=100, rate=10, dirty=100)
    assert memory.write(50.0, 20) == 50, "there was time to write before"


@pytest.mark.slow
def test_a_launch_takes_longer_by_the_time_that_slower_dram_needs_for_c():
    """With next to no room in L2 every byte of C has to be in DRAM before its store is done."""
    [artifact] = build([configure("kernel7", arch="sm_90a", stages=4)])
    shape = Shape(2048, 2048, 64)
    taken = []
    for bandwidth in (0.4e12, 0.2e12):
        gpu = find_gpu("h200").with_values({"dram.write_bandwidth": bandwidth, "l2.dirty": 1e5})
        taken.append(simulate(artifact, artifact.plan(shape), gpu, CLOCK).cycles)
    longer = shape.m * shape.n * 2 * (1 / 0.2e12 - 1 / 0.4e12) * CLOCK
    assert taken[1] - taken[0] == pytest.approx(longer, rel=0.03)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({}, "error"),
        ({"stages": 4, "epilogue_width": 32}, "error"),
        ({"stages": 3, "epilogue_width": 64, "cluster": (1, 1)}, "error_far"),
    ],
)
def test_who_changes_three_options_is_told_a_larger_error(options, name):
    [artifact] = build([configure("kernel7", arch="sm_90a", **options)])
    gpu = find_gpu("h200")
    assert predict(artifact, Shape(512, 512, 512), gpu).error_percent == 100 * gpu[f"model.{name}"]
