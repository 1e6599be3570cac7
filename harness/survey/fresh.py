"""Runs drawn at random, which judge the timing model: nobody chose them, and none was looked at while it was made.

Once they have judged, they have been seen: who changes the model draws others to judge it by.

Each kernel gets some configurations, each configuration two problems. A draw has a generator of its own, seeded by its
number, and is made again until the rules of the kernels allow it. The problems: half of all extents of C are no
multiple of a tile, and K is short, medium or long.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

from harness.config.config import try_config
from harness.config.refusal import Refusal
from harness.problem.shape import Shape
from harness.survey.uses import JUDGE, SEEN

DRAWS = {
    "the runs that judge, fourth draw": SEEN,
    "the runs that judge, fifth draw": SEEN,
    "the runs that judge, sixth draw": JUDGE,
}
"""Seeds, and what each draw is for now: the last one judges, the two before it have. Those before are left out."""
CONFIGURATIONS = {"kernel5": 5, "kernel6": 7, "kernel7": 8, "kernel8": 10}
PROBLEMS = 2
"""Of a configuration."""
TILE: Mapping[str, tuple[Any, ...]] = {
    "mma_shape": ((64, 128), (64, 256), (128, 128), (128, 160), (128, 192), (128, 256), (256, 96), (256, 128)),
    "cluster": ((1, 1), (1, 2), (2, 1), (2, 2), (4, 1), (1, 4)),
    "epilogue_width": (16, 32, 64),
    "multicast": (None, None, None, False),
}
RING: Mapping[str, tuple[Any, ...]] = {**TILE, "stages": (None, None, 2, 3, 4)}
SPACE: Mapping[str, Mapping[str, tuple[Any, ...]]] = {
    "kernel5": TILE,
    "kernel6": RING,
    "kernel7": RING,
    "kernel8": {
        **RING,
        "scheduler": ("static", "dynamic", "none"),
        "raster_group": (1, 4, 8, 16),
        "ping_pong": (None, True),
    },
}
"""Of a Hopper GPU. None: not asked for."""
EXTENTS = (512, 8192)
DEPTHS = ((192, 640), (640, 4096), (4096, 16384))
EVEN, RAGGED = 256, 8
"""Multiples: of every tile's rows and of most tiles' columns; of the elements that a tensor map asks for."""
MOST = 4096 * 8192 * 8192
"""M * N * K: a millisecond."""

T = TypeVar("T")
Drawn = tuple[str, dict[str, Any], Shape, str]
"""Kernel, options, problem, and what it is for."""


def drawn(arch: str) -> Iterator[Drawn]:
    """Always the same, in the same order."""
    for seed, use in DRAWS.items():
        for kernel, count in CONFIGURATIONS.items():
            for number in range(count):
                # Of `random.Random` only `random` is promised to give the same numbers in every version of Python.
                generator = random.Random(f"{seed}, {kernel}, {number}")
                options = _options(kernel, arch, generator)
                for _ in range(PROBLEMS):
                    yield kernel, options, _shape(generator), use


def _options(kernel: str, arch: str, generator: random.Random) -> dict[str, Any]:
    while True:
        all_drawn = {name: _one_of(values, generator) for name, values in SPACE[kernel].items()}
        asked = {name: value for name, value in all_drawn.items() if value is not None}
        try:
            try_config(kernel, arch=arch, **{"multicast": True, **asked})
        except Refusal:
            continue
        return asked


def _shape(generator: random.Random) -> Shape:
    while True:
        low, high = _one_of(DEPTHS, generator)
        m, n = (_extent(*EXTENTS, _one_of((EVEN, RAGGED), generator), generator) for _ in range(2))
        shape = Shape(m, n, _extent(low, high, _one_of((64, RAGGED), generator), generator))
        if shape.m * shape.n * shape.k <= MOST:
            return shape


def _extent(low: int, high: int, multiple: int, generator: random.Random) -> int:
    """Every doubling is as likely as every other."""
    value = math.exp(math.log(low) + generator.random() * (math.log(high) - math.log(low)))
    return max(multiple, round(value / multiple) * multiple)


def _one_of(values: Sequence[T], generator: random.Random) -> T:
    return values[int(generator.random() * len(values))]
