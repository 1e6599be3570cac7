"""Chooses tile, cluster, split of K and order of operands for kernel 8 and a problem from the catalogue, by an estimate
from geometry. Nothing is compiled or run for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any

from emugpu.gpus import usual_gpu
from harness.compile.catalog import Kernel, Tiling
from harness.problem import Shape, operand_bits

FEW_ROWS = 128
"""With so many rows of A, or fewer, DRAM is the limit, and not the power."""
WAVES = 0.6
"""How much an idle SM costs at the power limit: the time goes with waves^WAVES * (CTAs / SMs)^(1 - WAVES), because SMs
that wait leave their power to the others, which then have a higher clock. Fitted, with the factors of the tiles, to
216 choices for 24 problems of 256 to 16,384 rows, each alone on an H200 (results/nvidia-h200-tiles.json). Fitted to 12
of them alone, it chose for the others what took on average 1.0003 times as long as the fastest one.
"""
DRAM_BYTES = {"sm_90a": 2300, "sm_100a": 3680}
"""Bytes per cycle of all SMs together, as published for copies: 4.1 TB/s on an H200 at 1.78 GHz; 7.2 TB/s by TMA on a
B200 at 1.96 GHz (SemiAnalysisAI/microbench-blackwell).
"""

# The next three are fitted to the order of 24 choices for 20 problems on an H200 (results/nvidia-h200-small-m.json):
# the choice takes on average 1.01 times as long as the fastest one. They are assumed to be the same for a B200.
NOT_HIDDEN = 0.4
"""The part of the smaller of work and DRAM that the larger one does not hide."""
HAND_OVER = 2000
"""Cycles from a team's barrier to the value of its counter, and back: two round trips through L2 with a release."""
PARTIAL_SLOWER, PARTIAL_WITH_MORE_ROWS = 4, 1
"""Cost of a byte of partial sums relative to a byte that TMA loads from L2, with `FEW_ROWS` and with more. The second
is fitted to 16 problems of 144 to 450 rows on an H200 (results/nvidia-h200-split-k.json): alone, the choice takes on
average 1.013 times as long as the fastest one, and took 1.152 times before.
"""
APART, APART_MOST_ROWS = 1.05, 1300
"""With at most so many rows of A, work takes so many times as long if the CTAs of a cluster do not share their rows of
B. Fitted to 34 problems on an H100 (results/nvidia-h100-tiles.json), where the choice takes on average 1.013 times as
long as the fastest one measured, and 1.032 times without this factor; on an H200 1.0006 and 1.0030.
"""
LEAST_K_STEPS, K_STEP = 4, 128
"""Least K steps of a part of a tile, each 128 bytes deep."""


@dataclass(frozen=True)
class Estimate:
    """The estimated cycles of a choice. ``waves``: tiles or parts of tiles that a CTA computes one after the other.
    ``work``: multiplying or filling shared memory in them, whichever is more. ``dram``: reading A and B once.
    ``handing_over``: partial sums.
    """

    tiling: Tiling
    split_k: int
    waves: int
    work: float
    dram: float
    handing_over: float

    @property
    def cycles(self) -> float:
        return max(self.work, self.dram) + NOT_HIDDEN * min(self.work, self.dram) + self.handing_over

    @property
    def options(self) -> dict[str, Any]:
        """Returns the options for `harness.compile.config.make_config`."""
        return {name: getattr(self.tiling, name) for name in OF_TILING} | {"split_k": self.split_k}


OF_TILING = ("mma_shape", "cluster", "ping_pong", "swapped", "cta_group")


def offered(kernel: Kernel, arch: str, asked: Mapping[str, Any]) -> list[Tiling]:
    """Returns the tilings that match the requested options, in the kernel's own order."""
    tilings = kernel.tilings.get(f"{arch} block" if asked.get("scales") == "block" else arch, ())
    wanted = {name: asked.get(name) for name in OF_TILING}
    return [
        tiling for tiling in tilings if all(value in (None, getattr(tiling, name)) for name, value in wanted.items())
    ]


def estimates(kernel: Kernel, arch: str, asked: Mapping[str, Any], shape: Shape) -> list[Estimate]:
    """Returns the estimates of each matching tiling, with its splits or the requested one, the fastest first. With more
    than `FEW_ROWS`, parts that do not fit into one wave are not worth a hand-over.
    """
    found = [
        estimate(tiling, split, shape, arch, asked)
        for tiling in offered(kernel, arch, asked)
        if not (shape.groups and (tiling.swapped or arch == "sm_100a"))  # the grouped kernel has its own default
        if tiling.least_m <= _rows(shape) and (tiling.most_m is None or _rows(shape) <= tiling.most_m)
        for split in _splits(tiling, shape, asked)
    ]
    if _rows(shape) > FEW_ROWS:
        found = [one for one in found if one.split_k in (1, asked.get("split_k")) or one.waves == 1]
    return sorted(found, key=lambda one: one.cycles)


def _splits(tiling: Tiling, shape: Shape, asked: Mapping[str, Any]) -> list[int]:
    wanted = asked.get("split_k")
    if wanted is not None:
        return [wanted] if wanted > 0 else []  # the kernels refuse it
    if shape.groups:
        return [1]
    steps = ceil(shape.k * _element_bytes(asked) / K_STEP)
    return [split for split in tiling.splits if split == 1 or steps >= LEAST_K_STEPS * split]


def _rows(shape: Shape) -> int:
    """Returns the rows of A, or the average rows of a group."""
    return ceil(shape.m / max(1, len(shape.groups)))


def _element_bytes(asked: Mapping[str, Any]) -> float:
    return operand_bits(asked.get("dtype") or "bf16") / 8


def estimate(tiling: Tiling, split: int, shape: Shape, arch: str, asked: Mapping[str, Any]) -> Estimate:
    """Returns the estimate. All CTAs that fit compute a tile at the same time, so the time is the number of waves times
    that of a tile.
    """
    gpu = usual_gpu(arch)
    sms = gpu.sms if asked.get("sms") is None else asked["sms"]
    m, n = (shape.n, shape.m) if tiling.swapped else (_rows(shape), shape.n)
    (rows, columns), (cm, cn) = tiling.mma_shape, tiling.cluster
    rows //= tiling.cta_group
    clusters = ceil(m / (rows * cm)) * ceil(n / (columns * cn)) * split * max(1, len(shape.groups))
    waves = ceil(clusters / max(1, sms // (cm * cn)))
    deep = shape.k / split * _element_bytes(asked)
    # Zeros beyond the edge of a tensor come from one place of L2, so they count twice.
    # Multicast slices gain only half of the expected time.
    filled = (rows + columns + rows / cn + columns / cm) / 2 + max(0, rows - m) + max(0, columns - n)
    multiply = rows * columns * deep / 2 / gpu.multiplications * tiling.slower
    work = waves * max(multiply, filled * deep / gpu.l2_bytes)
    few = _rows(shape) <= FEW_ROWS
    partial = (PARTIAL_SLOWER if few else PARTIAL_WITH_MORE_ROWS) * 4 * rows * columns / gpu.l2_bytes
    handing_over = waves * (HAND_OVER + partial) + split * partial if split > 1 else 0
    dram = (shape.m + shape.b_rows) * shape.k * _element_bytes(asked) / DRAM_BYTES[arch]
    if not few:
        ctas = ceil(m / rows) * ceil(n / columns) * split * max(1, len(shape.groups))
        work *= (ctas / sms / waves) ** (1 - WAVES)
        if _rows(shape) <= APART_MOST_ROWS and (cn if tiling.swapped else cm) == 1:
            work *= APART
    return Estimate(tiling, split, waves, work, dram, handing_over)
