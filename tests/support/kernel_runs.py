"""Runs compiled kernels on the emulated GPU and checks every element of the result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from emugpu.launch.launching import EmulationOptions
from emugpu.launch.launching import run as launch
from emugpu.launch.spec import Launchable
from harness.compile.artifacts import OUTPUT, Artifact, judged, to_launchable
from harness.compile.config import KernelConfig
from harness.compile.planner import Plan
from harness.problem import Inputs, Shape, make_inputs
from harness.validation import Validation

BLOCK_K = 64


def run(artifact: Artifact, size: tuple, kind: str, ptx: str | None = None, **options) -> tuple[dict, Validation]:
    """Counters and verdict. ptx: run this in place of the artifact's. options: those of `EmulationOptions`."""
    plan, what = problem(artifact, size, kind)
    found = judged(
        launch(replace(what, text_given=ptx or artifact.ptx), EmulationOptions(**options), keep=(OUTPUT,)), plan
    )
    return found.counters, found.validation


def check_bits(artifact: Artifact, size: Shape, wanted: Callable[[Inputs, int, int], Any], sums: int) -> None:
    """Random codes, a random schedule and the bit-level accumulation: C is, bit for bit, what is wanted in its first
    and last element and in some drawn ones. wanted: of the inputs, a row and a column."""
    config, plan = artifact.config, artifact.plan(size)
    inputs = make_inputs(size, config.dtype, "codes", 7, scales=config.scales)
    options = EmulationOptions(schedule="random", seed=2, accumulation="tensor_core")
    got = judged(launch(to_launchable(artifact, plan, inputs), options, keep=(OUTPUT,)), plan).output
    rng = np.random.default_rng(0)
    places = [(0, 0), (size.m - 1, size.n - 1)]
    places += zip(rng.integers(0, size.m, sums).tolist(), rng.integers(0, size.n, sums).tolist(), strict=True)
    for row, column in places:
        word = wanted(inputs, row, column)
        assert got[row, column].tobytes() == word.tobytes(), (row, column, got[row, column], word)


@lru_cache(maxsize=2)
def problem(artifact: Artifact, size: tuple, kind: str) -> tuple[Plan, Launchable]:
    """What is the same whenever a kernel runs on a problem again, in another order of events. size: of a `Shape`, also
    with groups."""
    plan = plan_of(artifact, size)
    config = artifact.config
    inputs = make_inputs(Shape(*size), config.dtype, kind, sum(size[:3]), config.fused_epilogue, config.scales)
    return plan, to_launchable(artifact, plan, inputs)


@lru_cache(maxsize=8)
def plan_of(artifact: Artifact, size: tuple) -> Plan:
    """The compiled program is asked, which is a process of its own."""
    return artifact.plan(Shape(*size))


def cluster_tile(config: KernelConfig) -> tuple[int, int]:
    """Rows and columns of C that one cluster computes."""
    return config.mma_shape[0] // config.cta_group * config.cluster[0], config.mma_shape[1] * config.cluster[1]


def multiplied(config: KernelConfig, size: tuple[int, int, int]) -> int:
    """FLOPs of a kernel of sm_90a: each consumer warpgroup multiplies all of its rows, and all columns of the tile, if
    any of them lies in C."""
    m, n, k = size
    rows, columns = config.mma_shape
    shared = rows > 64 and not config.ping_pong
    rows = rows // 2 if shared else rows
    return 2 * (-(-m // rows) * rows) * (-(-n // columns) * columns) * (-(-k // BLOCK_K) * BLOCK_K)


def sizes(config: KernelConfig) -> dict[str, tuple[int, int, int]]:
    """One problem of each kind: what goes wrong at edges differs."""
    m, n = cluster_tile(config)
    # Round the ring of stages once and a bit.
    deep = BLOCK_K * (config.stages + 2)
    return {
        "tile multiples": (m, n, deep),
        "ragged": (m - 37, n - 24 if n > 24 else 8, deep - 24),
        "K shorter than the pipeline": (m, n, max(8, BLOCK_K * (config.stages - 1))),
        "K of one step": (m - 1, n, BLOCK_K),
        "one tile": (*config.mma_shape, 2 * BLOCK_K + 8),
        "more tiles than a cluster": (2 * m + 1, n + 8, 2 * BLOCK_K + 8),
    }
