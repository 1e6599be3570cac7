"""Kernels 5 to 9 of this project in small configurations, compiled by Mojo."""

from __future__ import annotations

from emugpu.launch.spec import Launchable
from harness.compile.artifacts import build, make_launchable
from harness.compile.config import find_kernel, make_config
from harness.problem import Shape, operand_bits

CLUSTERS = ((2, 1), (2, 2))


def launchables() -> list[tuple[str, Launchable]]:
    """Returns each kernel for each of its architectures and for two clusters, with its name."""
    kernels = [f"kernel{number}" for number in range(5, 10)]
    configs = [
        make_config(
            kernel,
            arch=arch,
            cluster=cluster,
            stages=3 if kernel in ("kernel8", "kernel9") else None,
            sms=cluster[0] * cluster[1] if kernel == "kernel8" and arch == "sm_90a" else None,
        )
        for kernel in kernels
        for arch in find_kernel(kernel).archs
        for cluster in CLUSTERS
    ]
    found = []
    for artifact in build(configs):
        config = artifact.config
        rows = config.mma_shape[0] // config.cta_group * config.cluster[0]
        columns = config.mma_shape[1] * config.cluster[1]
        deep = 64 * 16 // operand_bits(config.dtype)
        # Every ring goes round: the stages, and that of the tiles that launch control hands out.
        tiles, steps = (4, 2) if config.kernel in ("kernel8", "kernel9") else (1, config.stages + 2)
        shape = Shape(rows, tiles * columns, deep * steps)
        name = f"mojo-{config.kernel}-{config.arch}-{config.cluster[0]}x{config.cluster[1]}"
        found.append((name, make_launchable(artifact, shape, "index", 0)))
    return found
