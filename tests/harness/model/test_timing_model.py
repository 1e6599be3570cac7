"""The timed machine: what a person can work out by hand comes out, and always the same."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest

from harness.compile.artifacts import Artifact, build
from harness.compile.presets import configure
from harness.model.constants import find_gpu
from harness.model.limits import EPILOGUE, LAUNCH, PROLOGUE, TAIL, TENSOR, WAITS, limits
from harness.model.predict import predict
from harness.model.simulate import simulate
from harness.model.units import Life, Sm
from harness.problem import Shape, parse_shape

CLOCK = 1.8e9
ONE_CLUSTER = "256,256"
STEPS = 32
MMA_CYCLES = 4 * 2 * 128
"""Of a K step of 64: four instructions of 128 cycles for each of two warpgroups."""
STEP_BYTES = 2 * (128 + 128) * 64 * 2
"""What a cluster of two asks L2 for in a K step: each CTA its A and half of B."""


@cache
def artifact(kernel: str, arch: str, stages: int | None = None) -> Artifact:
    return build([configure(kernel, arch=arch, stages=stages)])[0]


def cycles(stages: int, k: int, constants: Mapping[str, float]) -> float:
    """With nobody who comes before it to L2 by chance."""
    found = artifact("kernel7", "sm_90a", stages)
    gpu = find_gpu("h200").with_values({"l2.wait": 0.0, **constants})
    return simulate(found, found.plan(parse_shape(f"{ONE_CLUSTER},{k}")), gpu, CLOCK).cycles


def cycles_per_step(stages: int, constants: Mapping[str, float]) -> float:
    """Of the K loop of one cluster, once it is under way."""
    return (cycles(stages, 128 * STEPS, constants) - cycles(stages, 64 * STEPS, constants)) / STEPS


def test_a_full_ring_keeps_the_tensor_core_busy() -> None:
    assert cycles_per_step(4, {}) == pytest.approx(MMA_CYCLES, rel=0.005)


@pytest.mark.parametrize("bandwidth", [1.0e11, 0.5e11])
def test_l2_bandwidth_decides_when_it_is_small(bandwidth: float) -> None:
    # One cluster has L2 for itself: bytes of a step over bytes a cycle.
    by_hand = STEP_BYTES / (bandwidth / CLOCK)
    assert by_hand > MMA_CYCLES
    assert cycles_per_step(4, {"l2.bandwidth": bandwidth}) == pytest.approx(by_hand, rel=0.02)


@pytest.mark.parametrize(
    "latency", [210.0, *(pytest.param(latency, marks=pytest.mark.slow) for latency in (1000.0, 3000.0))]
)
def test_the_ring_starves_where_littles_law_says(latency: float) -> None:
    """A stage is free again when the next but one has been issued: all but one of the stages are on their way. With two
    stages a step takes as long as a load; with s stages a load over s - 1, or the MMAs.
    """
    change = {"l2.latency": latency}
    load = cycles_per_step(2, change)
    assert load > MMA_CYCLES
    for stages in (3, 4):
        by_hand = max(MMA_CYCLES, load / (stages - 1))
        assert cycles_per_step(stages, change) == pytest.approx(by_hand, rel=0.06)


def test_the_same_twice() -> None:
    assert cycles(3, 512, {}) == cycles(3, 512, {})


def test_the_parts_add_up_to_the_launch() -> None:
    found = artifact("kernel7", "sm_90a", 4)
    run = simulate(found, found.plan(Shape(512, 512, 512)), find_gpu("h200"), CLOCK)
    parts = limits(run.machine, run.used)
    assert sum(part.cycles for part in parts) == pytest.approx(run.cycles)
    assert all(part.cycles >= 0 for part in parts)


@pytest.mark.slow
@pytest.mark.parametrize("detail", [1, 60])
@pytest.mark.parametrize(("kernel", "shape"), [("kernel7", "2056,4104,192"), ("kernel8", "4096,4096,192")])
def test_tensor_cores_work_as_long_as_the_problem_takes_them(kernel: str, shape: str, detail: int) -> None:
    """However few clusters are simulated: all 64 rows of which one lies in C, at N / 2 cycles and a little for 16 of K
    and 64 of M. So not in the columns of tiles outside of C that kernel7 has, nor in half of a last row.
    """
    gpu, problem = find_gpu("h200"), parse_shape(shape)
    config = configure(kernel, arch="sm_90a", shape=problem)
    [found] = build([config])
    run = simulate(found, found.plan(problem), gpu, CLOCK, detail=detail)
    [tensor] = [part.cycles for part in limits(run.machine, run.used) if part.name == TENSOR]
    columns = config.mma_shape[1]
    parts = -(-problem.m // 64) * -(-problem.n // columns)
    work = parts * (problem.k // 16) * (columns / 2 + gpu["tensor.per_instruction"]) / gpu.sms
    assert tensor == pytest.approx(work, rel=1e-3)


def test_a_cta_that_lives_within_another_one_of_its_sm_takes_nothing_from_it() -> None:
    sm = Sm()
    sm.lives = [Life(1, 0, 10, 50), Life(0, 0, 0, 100)]
    sm.tensor.spans = [(20, 90)]
    machine: Any = SimpleNamespace(sms=[sm], end=100)
    parts = {part.name: part.cycles for part in limits(machine, used=1.0)}
    assert parts == {LAUNCH: 0, PROLOGUE: 20, TENSOR: 70, WAITS: 0, EPILOGUE: 10, TAIL: 0}


def test_no_more_is_simulated_than_is_needed() -> None:
    """A few clusters stand for all; more of them change the result by little."""
    found = artifact("kernel7", "sm_90a", 4)
    plan = found.plan(Shape(2048, 2048, 512))
    few, many = (simulate(found, plan, find_gpu("h200"), CLOCK, detail=detail) for detail in (1, 200))
    assert few.spread.slots == 1 and many.spread.slots > 8
    assert few.cycles == pytest.approx(many.cycles, rel=0.03)


@pytest.mark.slow
def test_each_step_of_the_series_is_faster_on_a_b200() -> None:
    shape = Shape(4096, 4096, 4096)
    gpu = find_gpu("b200")
    taken = []
    for kernel in ("kernel5", "kernel6", "kernel7", "kernel8"):
        found = artifact(kernel, "sm_100a")
        taken.append(simulate(found, found.plan(shape), gpu, gpu["clock.max"], detail=1).cycles)
    assert taken == sorted(taken, reverse=True)
    assert len(set(taken)) == 4


@pytest.mark.slow
def test_power_lowers_the_clock_and_not_the_cycles() -> None:
    shape = Shape(1024, 1024, 1024)
    found = artifact("kernel7", "sm_90a", 4)
    free = predict(found, shape, find_gpu("h200"), constants={"power.limit": 10_000})
    capped = predict(found, shape, find_gpu("h200"), constants={"power.limit": 300})
    assert not free.clock.limited and free.clock.hertz == find_gpu("h200")["clock.max"]
    assert capped.clock.limited and capped.clock.hertz < free.clock.hertz
    assert capped.clock.watts == pytest.approx(300, abs=1)
    assert capped.cycles <= free.cycles * 1.001  # L2 and DRAM keep their own time
