"""Which tile and cluster a kernel takes for a problem, where it has a choice."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import Any

from harness.build.catalog import ARCHITECTURES, Kernel, Tiling
from harness.problem.shape import Shape

FEW_CLUSTERS, OUTSIDE_SLOWER = 8, 1.5
"""Where a CTA of the last clusters along M lies outside of C altogether, and clusters along M are few, the tiles of an
H200 took 1.2 to 1.6 times as long as their rounds say (777x8192x8192: one cluster of 4); with 24 along M it did not
show."""


def tilings(kernel: Kernel, arch: str, asked: Mapping[str, Any], shape: Shape | None) -> list[dict[str, Any]]:
    """The options of each tiling among those that are asked for, the fastest first; in the kernel's own order without a
    problem. For a kernel without a choice, or if what is asked for is none of them, one that has no options.
    """
    wanted = {name: asked.get(name) for name in ("mma_shape", "cluster", "ping_pong")}
    found = [
        tiling
        for tiling in kernel.tilings.get(arch, ())
        if all(value in (None, getattr(tiling, name)) for name, value in wanted.items())
    ]
    if shape:
        sms = ARCHITECTURES[arch].usual.sms if asked.get("sms") is None else asked["sms"]
        found.sort(key=lambda tiling: _cost(tiling, shape, sms))
    return [{name: getattr(tiling, name) for name in wanted} for tiling in found] or [{}]


def _cost(tiling: Tiling, shape: Shape, sms: int) -> float:
    """All CTAs that fit compute a tile at the same time, so what counts is how often they do, times the tile's size."""
    (rows, columns), (cm, cn) = tiling.mma_shape, tiling.cluster
    clusters = ceil(shape.m / (rows * cm)) * ceil(shape.n / (columns * cn))
    rounds = ceil(clusters / max(1, sms // (cm * cn)))
    ctas_m = ceil(shape.m / rows)
    outside = ctas_m % cm and ceil(ctas_m / cm) <= FEW_CLUSTERS
    return rounds * rows * columns * tiling.slower * (OUTSIDE_SLOWER if outside else 1)
