"""What the Mojo side is asked to compile: a program for ``kernels/emit.mojo``, parameters of the MAX op."""

from __future__ import annotations

from collections.abc import Sequence

from harness.build.config import KernelConfig
from harness.build.planner import parameters

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
    options = config.options()
    del options["arch"], options["dtype"]
    return parameters(options)


def _gemm_config(config: KernelConfig) -> str:
    """The same parameters, by the same names, for GemmConfig."""
    parameters = op_parameters(config)
    kernel = parameters.pop("kernel")
    named = ", ".join(
        f'{name}="{value}"' if isinstance(value, str) else f"{name}={value}" for name, value in parameters.items()
    )
    return f'GemmConfig("{kernel}", arch="{config.arch}", dtype={_MOJO_TYPES[config.dtype]}, {named})'
