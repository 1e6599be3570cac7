"""Kernels 5 to 8 with A and B as they lie in other programs: [K, M] and [K, N], MN-major in shared memory."""

from __future__ import annotations

from dataclasses import replace

import kernel_runs
import numpy as np
import pytest
from kernel_faults import outcome, substitute

from harness.build.artifacts import OUTPUT
from harness.build.config import make_config
from harness.errors import UsageProblem
from harness.launch.launching import EmulationOptions
from harness.launch.launching import run as launch

HOPPER = {"arch": "sm_90a", "stages": 2}
BLACKWELL = {"arch": "sm_100a", "stages": 2}
ONE_CTA = {**BLACKWELL, "cta_group": 1}
BASES = (
    # Slices: 32 lines; one half of 192 rows, which is not whole boxes of 64 lines; a third of 64, in boxes of 8.
    ("tn", "kernel8", {**HOPPER, "mma_shape": (128, 128), "cluster": (2, 4), "sms": 8}),
    ("nn", "kernel8", {**HOPPER, "mma_shape": (128, 192), "cluster": (2, 1), "sms": 4, "epilogue": "bias-relu"}),
    ("tt", "kernel8", {**HOPPER, "mma_shape": (64, 64), "cluster": (1, 3), "sms": 6, "split_k": 3}),
    ("nn", "kernel8", {**HOPPER, "mma_shape": (128, 48), "cluster": (1, 2), "swapped": True}),
    ("tn", "kernel8", {**BLACKWELL, "mma_shape": (256, 256), "cluster": (4, 4)}),
    ("tt", "kernel8", {**BLACKWELL, "mma_shape": (128, 128), "cluster": (2, 2), "split_k": 2, "epilogue": "residual"}),
    ("nn", "kernel8", {**ONE_CTA, "mma_shape": (64, 64), "cluster": (3, 1), "dtype": "fp16", "out_dtype": "f32"}),
    ("tn", "kernel5", {"arch": "sm_90a", "mma_shape": (64, 64), "cluster": (2, 1)}),
    ("tn", "kernel6", {**BLACKWELL, "mma_shape": (256, 128), "cluster": (2, 1), "multicast": False}),
    ("tt", "kernel7", {**HOPPER, "mma_shape": (256, 64), "cluster": (1, 1)}),
)  # fmt: skip
DAILY = [make_config(kernel, layout=layout, **options) for layout, kernel, options in BASES]
NIGHTLY = [
    make_config(kernel, layout=other, **options)
    for layout, kernel, options in BASES
    for other in ("nt", "nn", "tn", "tt")
    if other != layout and not (options.get("swapped") and other[0] == "t")
]
CONFIGS = [*DAILY, *NIGHTLY]
SIZES = ((264, 328, 3 * 64 - 24), (8, 72, 264))
pytestmark = pytest.mark.xdist_group("layouts")


def c_of(what) -> np.ndarray:
    """The product in float64 of what lies in memory."""
    layout = what.about["config"]["layout"]
    a, b = (what.buffers[name].fill.array.astype(np.float64) for name in "AB")
    return (a if layout[0] == "n" else a.T) @ (b if layout[1] == "n" else b.T)


@pytest.mark.parametrize(
    "config",
    [*DAILY, *(pytest.param(config, marks=pytest.mark.nightly) for config in NIGHTLY)],
    ids=lambda config: config.label.replace(" ", "_"),
)
def test_every_element_is_where_it_belongs(built, config):
    for size, schedule in zip(SIZES, ("random", "fifo"), strict=True):
        _, what = kernel_runs.problem(built[config], size, "index")
        [expected, *_] = what.expectations
        if config.epilogue == "none":
            assert np.array_equal(expected.reference.values, c_of(what))
        found = launch(what, EmulationOptions(schedule=schedule, seed=size[0]), keep=(OUTPUT,))
        assert all(verdict.passed for verdict in found.verdicts), (size, found.verdicts[0])
