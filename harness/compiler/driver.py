"""What the Mojo side is asked to compile: a program for ``kernels/emit.mojo``, parameters of the MAX op."""

from __future__ import annotations

from collections.abc import Sequence

from harness.config.config import KernelConfig

PLANNER_SOURCE = "from kernels.plan import plan_main\n\n\ndef main():\n    plan_main()\n"
"""Plans any configuration; takes the sizes and `gemm_parameters` as ``name=value``."""

_MOJO_TYPES = {"bf16": "DType.bfloat16", "fp16": "DType.float16"}


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


def op_parameters(config: KernelConfig) -> dict[str, str | int | bool]:
    """Parameters of the MAX custom op (``kernels/ops/matmul.mojo``); it takes the dtype from its tensors."""
    (mma_m, mma_n), (cluster_m, cluster_n) = config.mma_shape, config.cluster
    return {
        "kernel": config.kernel,
        "cta_group": config.cta_group,
        "mma_m": mma_m,
        "mma_n": mma_n,
        "stages": config.stages,
        "cluster_m": cluster_m,
        "cluster_n": cluster_n,
        "epilogue_width": config.epilogue_width,
        "multicast": config.multicast,
        "scheduler": config.scheduler,
        "raster_group": config.raster_group,
        "accumulators": config.accumulators,
        "clc_depth": config.clc_depth,
        "sms": config.sms,
        "ping_pong": config.ping_pong,
    }


def gemm_parameters(config: KernelConfig) -> dict[str, str]:
    """The parameters of ``kernels/plan.mojo``: those of GemmConfig, as text."""
    parameters = {**op_parameters(config), "arch": config.arch, "dtype": config.dtype}
    return {name: str(value).lower() for name, value in parameters.items()}


def _gemm_config(config: KernelConfig) -> str:
    """The same parameters, by the same names, for GemmConfig."""
    parameters = op_parameters(config)
    kernel = parameters.pop("kernel")
    named = ", ".join(
        f'{name}="{value}"' if isinstance(value, str) else f"{name}={value}" for name, value in parameters.items()
    )
    return f'GemmConfig("{kernel}", arch="{config.arch}", dtype={_MOJO_TYPES[config.dtype]}, {named})'
