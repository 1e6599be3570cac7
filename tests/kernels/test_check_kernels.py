"""The kernels are sound: the checker finds no error in them, whatever the shape and in whatever order things happen."""

from __future__ import annotations

import pytest
from all_pairs import all_pairs
from kernel_mutants import SHAPES, config_of
from kernel_runs import run, sizes

from conftest import BF16_KERNELS, COMMON, SERIES
from emugpu.check import Checker
from harness.compile.artifacts import Artifact
from harness.compile.config import KernelConfig
from harness.compile.presets import PRESETS, configure

FEW = [("fifo", 0), ("random", 1)]
MANY = [("fifo", 0), *(("random", seed) for seed in range(19))]


def name_of(config: KernelConfig) -> str:
    x, y = config.cluster
    return f"{config.kernel}-{config.arch}-{x}x{y}-{config.dtype}-stages{config.stages}-group{config.cta_group}"


def errors(artifact: Artifact, kind: str, schedule: str, seed: int, **options) -> set[str]:
    """What is wrong with a run, which has to give the right result."""
    checker = Checker()
    size = sizes(artifact.config)[kind]
    _, verdict = run(artifact, size, "index", schedule=schedule, seed=seed, sinks=(checker,), strict=False, **options)
    assert verdict.passed
    return {f"{finding.rule}: {finding.message}" for finding in checker.report().errors}


EACH = [pytest.param(one, marks=() if one.kernel == "kernel8" else pytest.mark.slow) for one in dict.fromkeys(COMMON)]


@pytest.mark.parametrize("config", EACH, ids=name_of)
def test_no_kernel_has_an_error(common, config):
    assert errors(common[config], "ragged", *FEW[0]) == set()
    if config.cluster[0] * config.cluster[1] <= 2:
        assert errors(common[config], "more tiles than a cluster", *FEW[1]) == set()


PRESET_CONFIGS = [configure(kernel, preset) for preset in PRESETS for kernel in BF16_KERNELS]
SHAPE_CONFIGS = [config_of(kernel, *shape) for kernel in BF16_KERNELS for shape in SHAPES]
ALL_CONFIGS = list(dict.fromkeys([*PRESET_CONFIGS, *SHAPE_CONFIGS]))
CONFIGS = all_pairs(ALL_CONFIGS, ("kernel", "arch", "dtype", "cta_group", "cluster"))
CASES = [
    *CONFIGS,
    *(pytest.param(config, marks=pytest.mark.nightly) for config in ALL_CONFIGS if config not in CONFIGS),
]


@pytest.mark.parametrize("config", CASES, ids=name_of)
def test_no_preset_and_no_shape_has_an_error_under_many_schedules(builder, config):
    """One cluster at a time. Half of the kinds of problems, neighbours in the list the other half; the kernels as they
    are by default all kinds, under many schedules.
    """
    [artifact] = builder(config.label, [config])
    kinds = list(sizes(config))
    default = config in SERIES.values()
    if not default:
        kinds = kinds[ALL_CONFIGS.index(config) % 2 :: 2]
    for number, schedule in enumerate(MANY if default else MANY[: len(kinds)]):
        kind = kinds[number % len(kinds)]
        assert errors(artifact, kind, *schedule, resident_clusters=1) == set(), (kind, schedule)
