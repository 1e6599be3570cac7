"""Runs compiled kernels on the emulated GPU and checks every element of the result."""

from __future__ import annotations

from harness.compiler.build import Artifact
from harness.config.config import KernelConfig
from harness.problem.inputs import make_inputs
from harness.problem.shape import Shape
from harness.problem.validation import Validation
from harness.run.emulate import EmulationOptions, emulate
from harness.run.runner import validate_output

BLOCK_K = 64


def run(
    artifact: Artifact, size: tuple[int, int, int], kind: str, ptx: str | None = None, **options
) -> tuple[dict, Validation]:
    """Counters and verdict. ptx: run this in place of the artifact's. options: those of `EmulationOptions`."""
    shape, dtype = Shape(*size), artifact.config.dtype
    plan = artifact.plan(shape)
    inputs = make_inputs(shape, dtype, kind, seed=sum(size))
    result = emulate(ptx or artifact.ptx, plan, inputs, EmulationOptions(**options))
    return result.counters, validate_output(result.output, inputs, dtype, plan)


def cluster_tile(config: KernelConfig) -> tuple[int, int]:
    """Rows and columns of C that one cluster computes."""
    return config.mma_shape[0] // config.cta_group * config.cluster[0], config.mma_shape[1] * config.cluster[1]


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
