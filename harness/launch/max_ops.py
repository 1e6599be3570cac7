"""The custom ops of MAX for the kernels, by name and parameters, for a graph of your own (docs/examples/mlp.py)."""

from __future__ import annotations

from emugpu.gpus import kind_of
from harness.compile.compiler import options_text
from harness.compile.config import KernelConfig, make_config
from harness.epilogues import NONE
from harness.launch.tuned import configuration_for
from harness.problem import ELEMENT_TYPES, Shape
from harness.quantised import QUANTISED


def operation(config: KernelConfig, views: bool = False) -> str:
    """Returns the name of the MAX custom op (``kernels/host``)."""
    if config.grouped:
        return "grouped_matmul_into"
    if views:
        return "matmul_views_into"
    name = "matmul" if config.dtype in ELEMENT_TYPES else "scaled_matmul"
    if config.out_dtype in QUANTISED:
        return f"{name}_quantised_into"
    return f"{name}_into" if config.epilogue == NONE else "matmul_fused_into"


def op_parameters(config: KernelConfig) -> dict[str, str | int | bool]:
    """Returns the parameters of the MAX custom op. It takes the types from its tensors, except for operands given as
    bytes.
    """
    options = config.options()
    for name in ("arch", "dtype", "out_dtype"):
        if options[name] in (config.arch, *ELEMENT_TYPES, "f32"):
            del options[name]
    return {"options": options_text(options)}


def tuned_parameters(
    shape: Shape, dtype: str, gpu: str, *, kernel: str = "kernel8", arch: str = "sm_90a"
) -> dict[str, str | int | bool]:
    """Returns the parameters of the custom ops for a problem: those of the configuration found by ``harness tune``, or
    of the default. ``gpu`` is the name that the driver gives, for example ``NVIDIA H200``.
    """
    found = configuration_for(kind_of(gpu), kernel, arch, dtype, shape)
    return op_parameters(found or make_config(kernel, arch=arch, dtype=dtype, shape=shape))
