"""Which kernels and problems a survey launches, split beforehand by what they are for."""

from __future__ import annotations

import pytest

from harness.build.config import PRESETS
from metrology.survey import CHECK, FIT, HOLD_OUT
from metrology.survey.runs import CHANGES, TRACED, checks, runs


@pytest.mark.parametrize("arch", CHANGES)
def test_runs_are_many_and_split_beforehand(arch):
    """At least forty, each side with every kernel; no run twice; nothing that the rules refuse."""
    every = runs(arch)
    assert len(every) >= 40 and len({run.name for run in every}) == len(every)
    counts = {use: sum(run.use == use for run in every) for use in (FIT, HOLD_OUT)}
    for use in (FIT, HOLD_OUT):
        assert {run.kernel for run in every if run.use == use} == {"kernel5", "kernel6", "kernel7", "kernel8"}
    assert sum(counts.values()) == len(every) and 0.25 < counts[FIT] / len(every) < 0.4
    assert {run.config(arch).arch for run in every} == {arch}
    assert {run.kernel for run in every if run.name in TRACED} == {"kernel5", "kernel6", "kernel7", "kernel8"}


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
