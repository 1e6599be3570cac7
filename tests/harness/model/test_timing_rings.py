"""Rings of stages: what a K step takes, against what it takes on an H200."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from harness.compile.artifacts import build
from harness.compile.options import parse_settings
from harness.compile.presets import configure
from harness.model.constants import find_gpu
from harness.model.machine import BoxRequest, TimedMachine
from harness.model.simulate import simulate
from harness.model.units import Sm, Units
from harness.problem import parse_shape

GPU = find_gpu("h200")
RINGS = {
    "kernel5 at 2816x1536x1024": (49547.1, 1759.0),
    "kernel5 at 2816x1536x3072": (131556.0, 1779.8),
    "kernel5 mma_shape=64x128 at 2816x1536x1024": (35923.4, 1806.2),
    "kernel5 mma_shape=64x128 at 2816x1536x3072": (101593.9, 1819.3),
    "kernel7 stages=2 mma_shape=128x128 at 1536x1408x1024": (30364.2, 1809.2),
    "kernel7 stages=2 mma_shape=128x128 at 1536x1408x3072": (82515.6, 1793.5),
    "kernel7 stages=2 cluster=1x1 at 2816x1536x1032": (47506.0, 1762.7),
    "kernel7 stages=2 cluster=1x1 at 2816x1536x3080": (126919.7, 1787.9),
    "kernel8 stages=3 ping_pong=True at 1536x1408x1024": (18551.5, 1807.4),
    "kernel8 stages=3 ping_pong=True at 1536x1408x3072": (45882.2, 1810.8),
    "kernel7 stages=4 at 2816x1536x1024": (25124.6, 1822.0),
    "kernel7 stages=4 at 2816x1536x3072": (58003.0, 1758.2),
}
"""Cycles of a launch in a row of launches on an H200, measured, and the clock in MHz."""


def step(cycles: Callable[[str], float], name: str, depths: tuple[int, int]) -> float:
    """Cycles of a K step, from two depths of the same problem."""
    short, long = (cycles(f"{name}x{depth}") for depth in depths)
    return (long - short) / ((depths[1] - depths[0]) / 64)


def predicted(name: str, **constants: float) -> float:
    words, _, size = name.partition(" at ")
    kernel, *options = words.split()
    shape = parse_shape(size.replace("x", ","))
    [artifact] = build([configure(kernel, arch="sm_90a", shape=shape, **parse_settings(options))])
    return simulate(artifact, artifact.plan(shape), GPU.with_values(constants), RINGS[name][1] * 1e6).cycles


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "depths"),
    [
        ("kernel5 at 2816x1536", (1024, 3072)),  # one stage; every other step finds its bytes in L2
        ("kernel5 mma_shape=64x128 at 2816x1536", (1024, 3072)),  # four CTAs on an SM
        ("kernel7 stages=2 mma_shape=128x128 at 1536x1408", (1024, 3072)),
        ("kernel7 stages=2 cluster=1x1 at 2816x1536", (1032, 3080)),  # rows in two lines
        ("kernel8 stages=3 ping_pong=True at 1536x1408", (1024, 3072)),
        ("kernel7 stages=4 at 2816x1536", (1024, 3072)),  # the tensor core is always busy
    ],
)
def test_a_step_of_a_ring_takes_what_it_takes_on_an_h200(name, depths):
    measured = step(lambda run: RINGS[run][0], name, depths)
    assert step(predicted, name, depths) == pytest.approx(measured, rel=0.13)


@pytest.mark.slow
@pytest.mark.nightly_unless_changed("harness/model")
def test_a_warp_that_has_arrived_at_another_cta_loads_later():
    """The loading thread of kernel 5 does; the producers of the other kernels never arrive elsewhere."""
    name, depths = "kernel5 at 2816x1536", (1024, 3072)
    at_once = step(lambda run: predicted(run, **{"barrier.acknowledged": 0}), name, depths)
    assert 100 < step(predicted, name, depths) - at_once < GPU["barrier.acknowledged"]
    other = "kernel7 stages=2 mma_shape=128x128 at 1536x1408x1024"
    assert predicted(other) == predicted(other, **{"barrier.acknowledged": 0})


@pytest.mark.slow
def test_a_load_that_is_heard_later_takes_no_place_before_others(monkeypatch):
    """It comes to the units when it is heard: what others ask for until then is served before."""
    ahead = []
    ask = TimedMachine._ask

    def record(self: TimedMachine, request: BoxRequest, at: float) -> None:
        ahead.append((at - self.now, at - request.at))
        ask(self, request, at)

    monkeypatch.setattr(TimedMachine, "_ask", record)
    predicted("kernel5 at 2816x1536x1024")
    assert any(late > 100 for _, late in ahead), "some are heard later"
    assert all(early == 0 for early, late in ahead if late > 0)


@pytest.mark.slow
def test_boxes_come_through_the_port_as_they_arrive(monkeypatch):
    """Not as they are asked for: what a CTA of a pair loads for both may arrive before what the other has asked for."""
    taken: dict[int, list[float]] = {}
    take = Units.take

    def record(self: Units, at: float, load: Any, sm: Sm) -> float:
        taken.setdefault(id(sm), []).append(at)
        return take(self, at, load, sm)

    monkeypatch.setattr(Units, "take", record)
    predicted("kernel7 stages=2 mma_shape=128x128 at 1536x1408x1024")
    assert taken and all(len(times) == 16 * 4 and times == sorted(times) for times in taken.values())
