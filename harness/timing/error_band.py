"""How far off a prediction may be: as far as any run of a comparison with a GPU was (docs/timing.md)."""

from __future__ import annotations

from dataclasses import fields

from harness.build.config import KernelConfig, make_config
from harness.problem.shape import Shape
from harness.timing.constants import Gpu

FEW = 2
"""Options in which a configuration near the defaults differs from them, at most."""


def largest_error(gpu: Gpu, config: KernelConfig, shape: Shape) -> float:
    """Of the cycles, as a fraction."""
    return gpu["model.error" if near_defaults(config, shape) else "model.error_far"]


def near_defaults(config: KernelConfig, shape: Shape) -> bool:
    """Options that follow from others count, too: another tile may have another depth of the ring."""
    usual = make_config(config.kernel, arch=config.arch, dtype=config.dtype, shape=shape)
    return sum(getattr(config, each.name) != getattr(usual, each.name) for each in fields(config)) <= FEW
