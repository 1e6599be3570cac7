"""Chooses the configuration of a kernel for what a PyTorch function is asked."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from emugpu.errors import UsageProblem
from harness.compile import few_rows
from harness.compile.config import KernelConfig, make_config
from harness.launch.tuned import configuration_for
from harness.problem import Shape

AUTO = "auto"
"""The word for kernel8, or for the kernel for few rows of A where that suits a call."""


def configuration(
    kernel: str, arch: str, gpu: str, shape: Shape, tuned: bool, asked: Mapping[str, Any]
) -> KernelConfig:
    """Returns what ``harness tune`` has found for this kind of GPU, if ``tuned`` and if no option is asked for that it
    chooses; else the kernel's own choice. Raises ValueError for options that do not fit.
    """
    if kernel == AUTO:
        kernel = few_rows.NAME if few_rows.suits(shape, arch, asked) else "kernel8"
    dtype = asked["dtype"]
    try:
        if tuned and asked.keys() <= {"dtype", "out_dtype"} and asked.get("out_dtype", dtype) == dtype:
            found = _tuned(kernel, arch, dtype, shape, gpu)
            if found is not None:
                return found
        return make_config(kernel, arch=arch, shape=shape, **asked)
    except UsageProblem as error:
        raise ValueError(str(error)) from None


@functools.lru_cache(maxsize=4096)
def _tuned(kernel: str, arch: str, dtype: str, shape: Shape, gpu: str) -> KernelConfig | None:
    """Looks up a tuned configuration, once per process."""
    return configuration_for(gpu, kernel, arch, dtype, shape)


def equal_groups(m: int, count: int) -> tuple[int, ...]:
    """Returns sizes of groups that add up to M. The true ones are on the GPU, and no launch depends on them."""
    return tuple(m // count + (at < m % count) for at in range(count))
