"""Which tile, cluster, split of K and order of operands kernel 8 takes for a problem: the choice among what the
catalogue has, by what geometry says of each; nothing is compiled or run for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any

from emugpu.gpus import usual_gpu
from harness.compile.catalog import Kernel, Tiling
from harness.problem import Shape, operand_bits

FEW_CLUSTERS, OUTSIDE_SLOWER = 8, 1.5
"""Where a CTA of the last clusters along M lies outside of C altogether, and clusters along M are few, the tiles of an
H200 took 1.2 to 1.6 times as long as their waves say (777x8192x8192: one cluster of 4); with 24 along M it did not
show, nor on an H100 in a launch of one wave, where nobody waits for such a CTA (384x4096x4096)."""
DRAM_BYTES = {"sm_90a": 2300, "sm_100a": 3680}
"""Of a cycle, all SMs together, as published for copies: 4.1 TB/s on an H200 at 1.78 GHz; 7.2 TB/s by TMA on a B200 at
1.96 GHz (SemiAnalysisAI/microbench-blackwell)."""

# The next three are fitted to the order of 24 choices for 20 problems on an H200 (results/nvidia-h200-small-m.json):
# what is chosen takes 1.01 times as long as the fastest of them, in the mean. For a B200 they are taken to be the same.
NOT_HIDDEN = 0.4
"""The part of the smaller one of work and DRAM that the larger one does not hide."""
HAND_OVER = 2000
"""Cycles from a team's barrier to what its counter held, and back: two ways through L2 with a release."""
PARTIAL_SLOWER = 4
"""How many times longer partial sums take than bytes that TMA brings from L2."""
LEAST_K_STEPS, K_STEP = 4, 128
"""K steps of a part of a tile at least, each 128 bytes deep."""


@dataclass(frozen=True)
class Estimate:
    """Cycles that a choice may take. waves: tiles or parts of tiles that a CTA computes one after the other; work: in
    them, multiplying or filling shared memory, whichever is more; dram: A and B once; handing_over: partial sums.
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
        """As `harness.compile.config.make_config` takes them."""
        return {name: getattr(self.tiling, name) for name in OF_TILING} | {"split_k": self.split_k}


OF_TILING = ("mma_shape", "cluster", "ping_pong", "swapped", "cta_group")


def offered(kernel: Kernel, arch: str, asked: Mapping[str, Any]) -> list[Tiling]:
    """The tilings among those that are asked for, in the kernel's own order."""
    tilings = kernel.tilings.get(f"{arch} block" if asked.get("scales") == "block" else arch, ())
    wanted = {name: asked.get(name) for name in OF_TILING}
    return [
        tiling for tiling in tilings if all(value in (None, getattr(tiling, name)) for name, value in wanted.items())
    ]


def estimates(kernel: Kernel, arch: str, asked: Mapping[str, Any], shape: Shape) -> list[Estimate]:
    """Of each tiling that is asked for, with the splits that it is offered with or the one that is asked for: the
    fastest first."""
    found = [
        estimate(tiling, split, shape, arch, asked)
        for tiling in offered(kernel, arch, asked)
        if not (shape.groups and (tiling.swapped or arch == "sm_100a"))  # whose grouped kernel has a default of its own
        if tiling.least_m <= _rows(shape) and (tiling.most_m is None or _rows(shape) <= tiling.most_m)
        for split in _splits(tiling, shape, asked)
    ]
    return sorted(found, key=lambda one: one.cycles)


def _splits(tiling: Tiling, shape: Shape, asked: Mapping[str, Any]) -> list[int]:
    wanted = asked.get("split_k")
    if wanted is not None:
        return [wanted] if wanted > 0 else []  # which the kernels refuse
    if shape.groups:
        return [1]
    steps = ceil(shape.k * _element_bytes(asked) / K_STEP)
    return [split for split in tiling.splits if split == 1 or steps >= LEAST_K_STEPS * split]


def _rows(shape: Shape) -> int:
    """Of A, or of each group if all had as many."""
    return ceil(shape.m / max(1, len(shape.groups)))


def _element_bytes(asked: Mapping[str, Any]) -> float:
    return operand_bits(asked.get("dtype") or "bf16") / 8


def estimate(tiling: Tiling, split: int, shape: Shape, arch: str, asked: Mapping[str, Any]) -> Estimate:
    """All CTAs that fit compute a tile at the same time: what counts is how often, times what a tile takes."""
    gpu = usual_gpu(arch)
    sms = gpu.sms if asked.get("sms") is None else asked["sms"]
    m, n = (shape.n, shape.m) if tiling.swapped else (_rows(shape), shape.n)
    (rows, columns), (cm, cn) = tiling.mma_shape, tiling.cluster
    rows //= tiling.cta_group
    clusters = ceil(m / (rows * cm)) * ceil(n / (columns * cn)) * split * max(1, len(shape.groups))
    waves = ceil(clusters / max(1, sms // (cm * cn)))
    deep = shape.k / split * _element_bytes(asked)
    # Zeros beyond the edge of a tensor come out of one place of L2: they count twice.
    # Of multicast slices half the gain is seen.
    filled = (rows + columns + rows / cn + columns / cm) / 2 + max(0, rows - m) + max(0, columns - n)
    multiply = rows * columns * deep / 2 / gpu.multiplications * tiling.slower
    ctas_m = ceil(m / rows)
    lies_outside = ctas_m % cm and ceil(ctas_m / cm) <= FEW_CLUSTERS and (waves > 1 or ctas_m < cm)
    outside = OUTSIDE_SLOWER if lies_outside else 1
    work = waves * max(multiply, filled * deep / gpu.l2_bytes) * outside
    partial = PARTIAL_SLOWER * 4 * rows * columns / gpu.l2_bytes
    handing_over = waves * (HAND_OVER + partial) + split * partial if split > 1 else 0
    dram = (shape.m + shape.b_rows) * shape.k * _element_bytes(asked) / DRAM_BYTES[arch]
    return Estimate(tiling, split, waves, work, dram, handing_over)
