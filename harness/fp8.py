"""fp8 (e4m3) matrices with f32 scale factors: initial values, quantisation, and the layout of the factors in memory.

scales "tensor": one factor for all of A and one for all of B. Their product is alpha, by which all of C is multiplied.
scales "block": A has one for each 128 elements along K of a row [M, K / 128], B has one for each 128 x 128 [N / 128, K
/ 128]. An element represents element * factor; alpha applies, too.

Factors of blocks have the memory layout of cuBLASLt and DeepGEMM, in rows of 16 bytes: see `in_memory`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from emugpu.launch.memory import index_words, row_scales
from emugpu.launch.spec import DATA_TYPES

ELEMENT = DATA_TYPES["e4m3"]
LARGEST = 448.0
BLOCK = 128
ROWS = {"A": 1, "B": BLOCK}
"""Rows that share a factor, by operand."""

Drawn = tuple[NDArray[np.generic], NDArray[np.float32] | None, float]
"""Elements [rows, K], factors of blocks [rows / ROWS, K / 128], a part of alpha."""


def factor_of_each(factors: NDArray[np.float32], operand: str, shape: tuple[int, int]) -> NDArray[np.float64]:
    """Returns the factor of each element [rows, K]."""
    rows, k = shape
    wide = np.repeat(factors.astype(np.float64), ROWS[operand], axis=0)[:rows]
    return np.repeat(wide, BLOCK, axis=1)[:, :k]


def in_memory(factors: NDArray[np.float32], operand: str) -> NDArray[np.float32]:
    """Returns A's factors [K / 128, M], or B's [N / 128, K / 128], with rows padded to a multiple of 4 by NaN, on which
    no result may depend.
    """
    found = factors.T if operand == "A" else factors
    return np.pad(found, ((0, 0), (0, -found.shape[1] % 4)), constant_values=np.nan)


def shape_in_memory(operand: str, rows: int, k: int) -> tuple[int, int]:
    """Returns the shape of the factors of a matrix [rows, K], with padding."""
    down, across = -(-k // BLOCK), rows
    if operand == "B":
        down, across = -(-rows // BLOCK), -(-k // BLOCK)
    return down, across + -across % 4


def quantise(values: NDArray[np.floating], operand: str, scales: str) -> Drawn:
    """Returns a matrix near `values` [rows, K]: the largest value of those that share a factor becomes 448, e4m3's
    maximum.
    """
    size = np.abs(values.astype(np.float64))
    if scales == "tensor":
        alpha = np.float32(size.max() / LARGEST) or np.float32(1)
        return _rounded(values / np.float64(alpha)), None, float(alpha)
    largest = np.maximum.reduceat(size, np.arange(0, size.shape[0], ROWS[operand]), axis=0)
    largest = np.maximum.reduceat(largest, np.arange(0, size.shape[1], BLOCK), axis=1)
    factors = factors_of(largest)
    return _rounded(values / factor_of_each(factors, operand, values.shape)), factors, 1.0


def factors_of(largest: NDArray[np.float64]) -> NDArray[np.float32]:
    """Returns factors for the largest magnitudes of the values that share them."""
    return np.where(largest > 0, largest / LARGEST, 1).astype(np.float32)


def draw(kind: str, operand: str, scales: str, shape: tuple[int, int], rng: np.random.Generator) -> Drawn:
    """Draws initial values of a matrix by the names of `harness.problem.KINDS`."""
    rows, k = shape
    if kind == "normal":
        return quantise(rng.standard_normal(shape), operand, scales)
    if kind == "uniform":
        return quantise(rng.random(shape) * 2 - 1, operand, scales)
    blocks = -(-rows // ROWS[operand]), -(-k // BLOCK)
    if kind == "codes":
        codes = rng.integers(0, 256, shape, dtype=np.uint8)
        codes[codes & 0x7F == 0x7F] = 0  # NaN
        factors = np.exp2(rng.random(blocks) * 8 - 4).astype(np.float32)
        alpha = float(np.float32(0.5 + rng.random()))
        return codes.view(ELEMENT.numpy), factors if scales == "block" else None, alpha
    # A power of two that depends on the row, times a random one per block, so that a wrong row or block changes the
    # result.
    if kind == "integer":
        elements = rng.integers(-4, 5, shape).astype(np.float64)
        factors = np.exp2(rng.integers(0, 3, blocks)).astype(np.float32)
        return _rounded(elements), factors if scales == "block" else None, 0.5
    assert kind == "index", kind
    factors = np.exp2(rng.integers(0, 4, blocks)).astype(np.float32)
    elements = index_words(rows, k, rng).astype(np.float64)
    if scales == "block" and operand == "A":
        return _rounded(elements), factors * row_scales(rows)[:, None], 0.5
    elements *= row_scales(rows)[:, None]
    if scales == "block":
        return _rounded(elements), factors * row_scales(blocks[0])[:, None], 0.5
    return _rounded(elements * factor_of_each(factors, operand, shape) if operand == "A" else elements), None, 0.5


def _rounded(values: NDArray[np.floating]) -> NDArray[np.generic]:
    return np.clip(values, -LARGEST, LARGEST).astype(np.float32).astype(ELEMENT.numpy)
