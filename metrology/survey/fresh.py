"""Runs drawn at random, which judge the timing model: nobody chose them, and none was looked at while it was made.

Once they have judged, they have been seen: who changes the model draws others to judge it by.

Each kernel gets some configurations, each configuration two problems. A draw has a generator of its own, seeded by its
name, and is made again until the rules of the kernels allow it. There are two kinds. One is near what people run: at
most two options are not the defaults, and half of the problems are whole tiles. The other is anything that the rules
allow: all options at random, seven of eight problems ragged, K short, medium or long.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from harness.build.config import try_config
from harness.build.refusal import Refusal
from harness.problem.shape import Shape
from metrology.survey.uses import JUDGE, JUDGE_FAR, SEEN

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

FEW_OPTIONS = (0, 1, 1, 2, 2)
"""How many options of a run near the defaults are drawn, as often as they stand here; some come out as the default."""

T = TypeVar("T")
Drawn = tuple[str, dict[str, Any], Shape, str]
"""Kernel, options, problem, and what it is for."""


def drawn(arch: str) -> Iterator[Drawn]:
    """Always the same, in the same order."""
    for draw in DRAWS:
        for kernel, count in CONFIGURATIONS.items():
            for number in range(count):
                # Of `random.Random` only `random` is promised to give the same numbers in every version of Python.
                generator = random.Random(f"{draw.seed}, {kernel}, {number}")
                options = _legal_options(draw, kernel, arch, generator)
                for _ in range(PROBLEMS):
                    yield kernel, options, _problem(draw, generator), draw.use


def _legal_options(draw: Draw, kernel: str, arch: str, generator: random.Random) -> dict[str, Any]:
    while True:
        asked = draw.options(kernel, generator)
        try:
            try_config(kernel, arch=arch, **{"multicast": True, **asked})
        except Refusal:
            continue
        return asked


def _problem(draw: Draw, generator: random.Random) -> Shape:
    while True:
        shape = draw.shape(generator)
        if shape.m * shape.n * shape.k <= MOST:
            return shape


def _any_options(kernel: str, generator: random.Random) -> dict[str, Any]:
    all_drawn = {name: _one_of(values, generator) for name, values in SPACE[kernel].items()}
    return {name: value for name, value in all_drawn.items() if value is not None}


def _few_options(kernel: str, generator: random.Random) -> dict[str, Any]:
    left, asked = dict(SPACE[kernel]), {}
    for _ in range(_one_of(FEW_OPTIONS, generator)):
        name = _one_of(tuple(left), generator)
        asked[name] = _one_of([value for value in left.pop(name) if value is not None], generator)
    return asked


def _any_shape(generator: random.Random) -> Shape:
    low, high = _one_of(DEPTHS, generator)
    m, n = (_extent(*EXTENTS, _one_of((EVEN, RAGGED), generator), generator) for _ in range(2))
    return Shape(m, n, _extent(low, high, _one_of((64, RAGGED), generator), generator))


def _usual_shape(generator: random.Random) -> Shape:
    multiple = _one_of((EVEN, RAGGED), generator)
    return Shape(*(_extent(*EXTENTS, multiple, generator) for _ in range(3)))


def _extent(low: int, high: int, multiple: int, generator: random.Random) -> int:
    """Every doubling is as likely as every other."""
    value = math.exp(math.log(low) + generator.random() * (math.log(high) - math.log(low)))
    return max(multiple, round(value / multiple) * multiple)


def _one_of(values: Sequence[T], generator: random.Random) -> T:
    return values[int(generator.random() * len(values))]


@dataclass(frozen=True)
class Draw:
    """seed: its name; use: what its runs are for now. options, shape: how a configuration and a problem are drawn."""

    seed: str
    use: str
    options: Callable[[str, random.Random], dict[str, Any]] = _any_options
    shape: Callable[[random.Random], Shape] = _any_shape


DRAWS = (
    Draw("the runs that judge, fifteenth draw", SEEN, _few_options, _usual_shape),
    Draw("the runs that judge, seventeenth draw", SEEN, _few_options, _usual_shape),
    Draw("the runs that judge, eighteenth draw", SEEN),
    Draw("the runs that judge, nineteenth draw", JUDGE, _few_options, _usual_shape),
    Draw("the runs that judge, twentieth draw", JUDGE_FAR),
)
"""The newest of each kind judge, those before them have. Earlier ones are left out."""
