"""The order in which things complete never changes a result."""

from __future__ import annotations

import os

import pytest
from all_pairs import all_pairs
from kernel_runs import cluster_tile, run

from conftest import BF16_KERNELS
from harness.compile.catalog import ARCHITECTURES
from harness.compile.config import make_config

SEEDS = int(os.environ.get("RANDOM_SCHEDULES", "8"))
CLUSTERS = ((2, 1), (4, 1), (2, 2), (4, 2), (4, 4))
ALL = [
    make_config(kernel, arch=arch, cluster=cluster)
    for arch in ARCHITECTURES
    for kernel in BF16_KERNELS
    for cluster in CLUSTERS
]
DAILY = all_pairs(ALL, ("kernel", "arch", "cluster"))
# One cluster for four tiles and more.
STAYING = [
    make_config("kernel8", arch=arch, cluster=cluster, scheduler="static", sms=cluster[0] * cluster[1], stages=stages)
    for arch in ARCHITECTURES
    for cluster, stages in (((2, 1), 2), ((2, 2), 3), ((4, 1), None))
]
CONFIGS = [*DAILY, *STAYING]
CASES = [*DAILY, *(pytest.param(config, marks=pytest.mark.nightly) for config in ALL if config not in DAILY)]


@pytest.mark.parametrize("config", CASES, ids=lambda config: config.label.replace(" ", "_"))
def test_random_schedules_agree(builder, config):
    [artifact] = builder(config.label, [config])
    # One K step more than the default ring of kernel7 has stages; the last tile is ragged in every dimension.
    m, n = cluster_tile(artifact.config)
    for seed in range(SEEDS):
        _, validation = run(artifact, (m - 3, n - 8, 7 * 64 - 24), "index", schedule="random", seed=seed)
        assert validation.mismatches == 0, f"seed {seed}"


@pytest.mark.parametrize("config", STAYING, ids=lambda config: config.label.replace(" ", "_"))
def test_random_schedules_agree_on_many_tiles(builder, config):
    [artifact] = builder(config.label, [config])
    m, n = cluster_tile(artifact.config)
    for seed in range(SEEDS):
        _, validation = run(artifact, (2 * m - 3, 2 * n - 8, 3 * 64 - 24), "index", schedule="random", seed=seed)
        assert validation.mismatches == 0, f"seed {seed}"


@pytest.mark.parametrize("kernel", BF16_KERNELS)
def test_some_random_schedules_agree(series, kernel):
    for seed in range(5):
        _, validation = run(series[kernel], (253, 248, 424), "index", schedule="random", seed=seed)
        assert validation.mismatches == 0, f"seed {seed}"


@pytest.mark.parametrize("kernel", BF16_KERNELS)
def test_the_same_seed_gives_the_same_run(series, kernel):
    first, second, other = (
        run(series[kernel], (256, 256, 448), "integer", schedule="random", seed=seed)[0] for seed in (11, 11, 12)
    )
    assert first == second
    assert first != other
