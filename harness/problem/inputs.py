"""The values of A and B.

* ``normal``: standard normal. ``uniform``: uniform in [-1, 1). Both rounded to the element type.
* ``integer``: whole numbers in -4..4. Every sum stays below 2^24 in magnitude up to K = 2^20, so that f32
  accumulation is exact in any order and the output must be equal to the last bit. (The largest fp16, 65504,
  is 9 standard deviations of such a sum at K = 2^20 and 38 at K = 65536: it is not met.)
* ``index``: values that tell rows, columns and slices of K apart; see `harness.launch.values.index_operand`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from harness.errors import UsageProblem
from harness.launch.values import index_operand
from harness.problem.dtypes import element_type
from harness.problem.shape import Shape

KINDS = ("normal", "integer", "index", "uniform")
EXACT_KINDS = ("integer", "index")


@dataclass(frozen=True)
class Inputs:
    """A [M, K] and B [N, K], row-major, and how they were made."""

    a: np.ndarray
    b: np.ndarray
    kind: str
    seed: int

    @property
    def exact(self) -> bool:
        """True if the f32 result has no rounding error, so that the output must match exactly."""
        return self.kind in EXACT_KINDS


def make_inputs(shape: Shape, dtype: str, kind: str, seed: int) -> Inputs:
    """Draws A and B; the same arguments give the same values."""
    if kind not in KINDS:
        raise UsageProblem(f"inputs {kind!r} are not known; use one of: {', '.join(KINDS)}")
    numpy_type = element_type(dtype).numpy
    rng = np.random.default_rng(seed)
    draw = _DRAW[kind]
    a = draw(shape.m, shape.k, rng).astype(numpy_type)
    b = draw(shape.n, shape.k, rng).astype(numpy_type)
    return Inputs(a, b, kind, seed)


def _normal(rows: int, k: int, rng: np.random.Generator) -> np.ndarray:
    return rng.standard_normal((rows, k), dtype=np.float32)


def _uniform(rows: int, k: int, rng: np.random.Generator) -> np.ndarray:
    return rng.random((rows, k), dtype=np.float32) * 2 - 1


def _integer(rows: int, k: int, rng: np.random.Generator) -> np.ndarray:
    return rng.integers(-4, 5, size=(rows, k), dtype=np.int8).astype(np.float32)


_DRAW = {"normal": _normal, "uniform": _uniform, "integer": _integer, "index": index_operand}
