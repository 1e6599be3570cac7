"""The values of A and B.

* ``normal``: standard normal. ``uniform``: uniform in [-1, 1). Both rounded to the element type.
* ``integer``: whole numbers in -4..4. Every sum stays below 2^24 in magnitude up to K = 2^20, so that f32
  accumulation is exact in any order and the output must be equal to the last bit. (The largest fp16, 65504,
  is 9 standard deviations of such a sum at K = 2^20 and 38 at K = 65536: it is not met.)
* ``index``: values that tell rows, columns and slices of K apart; see `index_operand`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from harness.errors import UsageProblem
from harness.problem.dtypes import element_type
from harness.problem.shape import Shape

KINDS = ("normal", "integer", "index", "uniform")
EXACT_KINDS = ("integer", "index")

LARGEST_SEED = 2**32 - 1
"""Of inputs, and of random schedules."""
CHUNK = 8  # elements of K in the 16 bytes that a swizzle moves as a whole
SCALES = 8


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


def index_operand(rows: int, k: int, rng: np.random.Generator) -> np.ndarray:
    """Values [rows, k] in which the place of every row and of every 16 bytes of K can be told.

    K is cut into chunks of 8 elements, 16 bytes: what a swizzle moves as a whole. Each chunk of each row is
    one of 16 words: the 8 Walsh functions (rows of a Hadamard matrix) and their negatives, drawn
    independently. Two words multiply to +8 or -8 if they are the same function and to 0 otherwise, so a
    chunk that meets another chunk of the other operand than it should adds something else. No element is
    zero: each one of them counts.

    Each row is scaled by a power of two, from the sum of the octal digits of its number. Rows that are a
    swizzle row, a slice, a tile or a CTA apart differ in a digit, so that each nonzero element of a
    misplaced row is off by a power of two.

    An element of C is then 8 * j * 2^s, where j is the end of a random walk of K / 8 steps, one in eight of
    which moves, and s is between -12 and 2. |j| <= 256, which 8 bits of significand hold exactly, is 8
    standard deviations at K = 65536: rounding the output hides nothing. These are numbers between 2^-9 and
    2^13, well inside the range of fp16.
    """
    words = _walsh_words()
    drawn = rng.integers(0, len(words), size=(rows, k // CHUNK), dtype=np.uint8)
    values = words[drawn].reshape(rows, k)
    return values * row_scales(rows)[:, None]


def row_scales(rows: int) -> np.ndarray:
    """One power of two per row, 2^-6 to 2^1, by the sum of the octal digits of the row number."""
    number = np.arange(rows)
    digit_sum = np.zeros(rows, dtype=np.int64)
    while number.any():
        digit_sum += number % 8
        number = number // 8
    return np.exp2((digit_sum % SCALES - 6).astype(np.float32))


def _walsh_words() -> np.ndarray:
    """The 8 rows of the Hadamard matrix of order 8 (Sylvester's construction) and their negatives: [16,
    8].
    """
    matrix = np.ones((1, 1), dtype=np.float32)
    for _ in range(3):
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return np.concatenate([matrix, -matrix])


def _normal(rows: int, k: int, rng: np.random.Generator) -> np.ndarray:
    return rng.standard_normal((rows, k), dtype=np.float32)


def _uniform(rows: int, k: int, rng: np.random.Generator) -> np.ndarray:
    return rng.random((rows, k), dtype=np.float32) * 2 - 1


def _integer(rows: int, k: int, rng: np.random.Generator) -> np.ndarray:
    return rng.integers(-4, 5, size=(rows, k), dtype=np.int8).astype(np.float32)


_DRAW = {"normal": _normal, "uniform": _uniform, "integer": _integer, "index": index_operand}
