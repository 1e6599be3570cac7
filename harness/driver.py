"""Writes the Mojo program that a build compiles: a list of configurations for ``kernels/emit.mojo``."""

from __future__ import annotations

from collections.abc import Sequence

from harness.config import KernelConfig

_MOJO_TYPES = {"bf16": "DType.bfloat16"}


def driver_source(configs: Sequence[KernelConfig]) -> str:
    """The Mojo source. The compiled program knows each configuration by its place in this list."""
    lines = "\n".join(f"        {_gemm_config(config)}," for config in configs)
    return (
        "from kernels.common.config import GemmConfig\n"
        "from kernels.emit import emit_main\n"
        "\n\n"
        "def main():\n"
        "    emit_main[\n"
        f"{lines}\n"
        "    ]()\n"
    )


def _gemm_config(config: KernelConfig) -> str:
    cm, cn = config.cluster
    return (
        f'GemmConfig("{config.kernel}", dtype={_MOJO_TYPES[config.dtype]}, '
        f"stages={config.stages}, cluster_m={cm}, cluster_n={cn})"
    )
