"""Which kernels and problems a survey launches: split beforehand by what they are for, drawn once for ever."""

from __future__ import annotations

from hashlib import sha256

import pytest

from harness.build.presets import PRESETS
from metrology.survey.runs import CHANGES, TRACED, checks, runs
from metrology.survey.uses import CHECK, FIT, JUDGE, JUDGE_FAR, SEEN, TIMED


@pytest.mark.parametrize("arch", CHANGES)
def test_runs_are_many_and_split_beforehand(arch):
    """At least forty, each side with every kernel; no run twice; nothing that the rules refuse. On Hopper what judged
    while the model got its form judges no more, and as many drawn at random are in its place."""
    every = runs(arch)
    assert len(every) >= 40 and len({run.name for run in every}) == len(every)
    counts = {use: sum(run.use == use for run in every) for use in TIMED}
    for use in (FIT, JUDGE):
        assert {run.kernel for run in every if run.use == use} == {"kernel5", "kernel6", "kernel7", "kernel8"}
    if arch == "sm_90a":
        assert counts == {JUDGE: 60, JUDGE_FAR: 60, SEEN: 58 + 3 * 60, FIT: 29}
    else:
        assert counts[SEEN] == 0 and 0.25 < counts[FIT] / len(every) < 0.4
    assert {run.config(arch).arch for run in every} == {arch}
    assert {run.kernel for run in every if run.name in TRACED} == {"kernel5", "kernel6", "kernel7", "kernel8"}


@pytest.mark.parametrize(
    ("draw", "use", "configurations", "first", "hashed"),
    [
        (0, SEEN, 31, "kernel5 mma_shape=128x160 at 2304x2048x512", "f553912f8cf826c6"),
        (1, SEEN, 25, "kernel5 mma_shape=256x96 epilogue_width=32 at 760x7864x7488", "4918e6909d857515"),
        (
            2,
            SEEN,
            30,
            "kernel5 mma_shape=64x256 cluster=2x1 epilogue_width=32 multicast=False at 1256x1208x744",
            "583482124ea056dd",
        ),
        (3, JUDGE, 26, "kernel5 mma_shape=64x128 at 1160x6296x1024", "b8412bad8b46b875"),
        (
            4,
            JUDGE_FAR,
            30,
            "kernel5 mma_shape=256x128 cluster=2x1 epilogue_width=32 multicast=False at 1264x1024x8064",
            "689c7f18e55a6d17",
        ),
    ],
)
def test_what_was_drawn_stays_the_same(draw, use, configurations, first, hashed):
    """What was measured goes by these names; whoever changes the draw has nothing to judge by."""
    every = runs("sm_90a")[-300:][60 * draw :][:60]
    assert {run.use for run in every} == {use}
    assert len({run.config("sm_90a") for run in every}) == configurations
    assert every[0].name == first
    assert sha256("\n".join(run.name for run in every).encode()).hexdigest()[:16] == hashed


def test_runs_drawn_near_the_defaults_change_little_and_half_are_whole():
    near = [run for run in runs("sm_90a") if run.use == JUDGE]
    assert {len(run.options) for run in near} == {0, 1, 2}
    extents = [(run.shape.m, run.shape.n, run.shape.k) for run in near]
    assert all(512 <= extent <= 8192 for shape in extents for extent in shape)
    assert 20 <= sum(all(extent % 256 == 0 for extent in shape) for shape in extents) <= 40


@pytest.mark.parametrize("arch", CHANGES)
def test_every_kernel_is_checked_in_every_cluster_and_with_every_preset(arch):
    every = checks(arch)
    assert len({run.name for run in every}) == len(every) and {run.use for run in every} == {CHECK}
    for kernel in ("kernel5", "kernel6", "kernel7", "kernel8"):
        clusters = {run.config(arch).cluster for run in every if run.kernel == kernel}
        assert {(2, 1), (2, 2), (4, 4), (16, 1), (8, 2)} <= clusters
    asked = [set(run.options) for run in every]
    for preset in PRESETS.values():
        if preset.options["arch"] == arch:
            assert any({(n, v) for n, v in preset.options.items() if n != "arch"} <= options for options in asked)
