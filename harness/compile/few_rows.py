"""Chooses the tile of the kernel for few rows of A (kernels/common/few_rows.mojo)."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import Any

from emugpu.gpus import usual_gpu
from harness.epilogues import EPILOGUES, NONE
from harness.problem import Shape, operand_bits
from harness.quantised import QUANTISED

NAME = "rows"
MOST_ROWS = 8
"""The most rows of A for which PyTorch's functions choose the kernel. With 1024 to 6144 rows of B it was faster than
kernel8 in all problems that were measured (docs/split-k.md).
"""
MOST_OF_B = 48
"""The most rows of B a CTA where each SM has one CTA. With more, kernel8 is as fast or faster in most problems."""
WHY = f"one CTA an SM, all with as many rows of B; if these are more than {MOST_OF_B}, smaller CTAs of 32"
"""How `tile` chooses, for `harness explain --why`."""
LONGEST = 1 << 28
"""The most elements from one row to the next: 1 GB of f32, which the kernel counts in 32 bits."""

ADDED = {"dtype", "scales", "out_dtype", "epilogue"}
"""The options that do not ask for another kernel."""


def suits(shape: Shape, arch: str, asked: Mapping[str, Any]) -> bool:
    """Returns whether the kernel is the one for a call, which asks for these options."""
    row_bytes = shape.k * operand_bits(asked["dtype"]) // 8
    plain = asked.keys() <= ADDED and asked.get("scales") != "block" and asked.get("out_dtype") not in QUANTISED
    fits = shape.m <= MOST_ROWS and shape.n <= MOST_OF_B * usual_gpu(arch).sms and row_bytes % 16 == 0
    return plain and fits and not shape.groups and max(shape.k, *shape.ld, 0) <= LONGEST


def rows_of_busiest(tile: tuple[int, int], shape: Shape, arch: str) -> int:
    """Returns the rows of A and B that the CTAs of the busiest SM load. By it, tuning orders tiles."""
    ctas = ceil(shape.m / tile[0]) * ceil(shape.n / tile[1])
    return ceil(ctas / usual_gpu(arch).sms) * sum(tile)


def tile(shape: Shape, arch: str, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options of `harness.compile.config.make_config` for a problem, unless a tile is asked for: one CTA an
    SM, all with as many rows of B, or smaller CTAs if that would take more than `MOST_OF_B`.
    """
    if asked.get("mma_shape") is not None:
        return {}
    epilogue = asked.get("epilogue") or NONE
    multiple = 8 if epilogue in EPILOGUES and not EPILOGUES[epilogue].halves else 16
    of_b, warps = multiple * ceil(shape.n / usual_gpu(arch).sms / multiple), 16
    if of_b > MOST_OF_B:
        of_b, warps = 32, 8
    found = {"mma_shape": (8 if shape.m <= 8 else 16, of_b), "stages": 2, "split_k": warps}
    return {name: value for name, value in found.items() if asked.get(name) is None}
