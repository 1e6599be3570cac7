"""Block-scaled matrices on the host: formats, quantisation, initial values, and the layout of scale factors in memory.

A matrix [rows, K] has elements of 4 or 8 bits, and a scale factor for each block of 16 or 32 of them along K: a [rows,
K / block] array. An element represents element * factor; all of C is multiplied by one more number, alpha.

Scale factors have the memory layout of cuBLASLt and CUTLASS, in atoms of 128 rows x 4 blocks, 512 bytes, row-major: see
`to_atoms`. Formats: nvfp4 is NVIDIA's (e2m1 and ue4m3, an e4m3 without a sign), the others are those of the OCP
Microscaling Formats specification 1.0 (ue8m0, powers of two).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emugpu.launch.memory import index_words, row_scales
from emugpu.launch.spec import DATA_TYPES, DataType

ATOM_ROWS, ATOM_BLOCKS = 128, 4
ATOM_BYTES = ATOM_ROWS * ATOM_BLOCKS
LANES = 32
"""Rows of an atom that lie one after the other; the others lie beside them."""
LARGEST_SCALE = 448.0
"""The largest ue4m3."""
NOT_A_NUMBER = {DATA_TYPES["e4m3"].numpy: 0x7F, DATA_TYPES["ue8m0"].numpy: 0xFF}
"""The factors of rows that a matrix does not have. A kernel may read them, but they must not affect other rows."""


@dataclass(frozen=True)
class BlockFormat:
    """A format. ``block``: elements of a row that share a factor. ``scale``: the factors' type, which holds ue4m3, too.
    ``largest``: binary exponent of the largest element, and its value.
    """

    name: str
    element: DataType
    scale: DataType
    block: int
    exponent: int
    largest: float

    @property
    def bits(self) -> int:
        return self.element.bits

    @property
    def powers(self) -> bool:
        """Returns whether scale factors are powers of two."""
        return self.scale.name == "ue8m0"


FORMATS = {
    found.name: found
    for found in (
        BlockFormat("nvfp4", DATA_TYPES["e2m1"], DATA_TYPES["e4m3"], 16, 2, 6.0),
        BlockFormat("mxfp8", DATA_TYPES["e4m3"], DATA_TYPES["ue8m0"], 32, 8, 448.0),
        BlockFormat("mxfp8-e5m2", DATA_TYPES["e5m2"], DATA_TYPES["ue8m0"], 32, 15, 57344.0),
        BlockFormat("mxfp4", DATA_TYPES["e2m1"], DATA_TYPES["ue8m0"], 32, 2, 6.0),
    )
}


@dataclass(frozen=True)
class Scaled:
    """A matrix: elements [rows, K] and factors [rows, K / block], in their own types."""

    elements: NDArray[np.generic]
    factors: NDArray[np.generic]

    def numbers(self) -> NDArray[np.float64]:
        """Returns the numbers that the elements represent, exactly: [rows, K]."""
        block = self.elements.shape[1] // self.factors.shape[1]
        return self.elements.astype(np.float64) * np.repeat(self.factors.astype(np.float64), block, axis=1)


def to_atoms(factors: NDArray[np.generic]) -> NDArray[np.uint8]:
    """Returns the bytes of scale factors [rows, blocks] in memory. Missing rows have NaN. Blocks beyond K are 0,
    because a kernel multiplies them by zeros, which must not meet a NaN.
    """
    return in_atoms(factors.view(np.uint8), NOT_A_NUMBER[factors.dtype])


def in_atoms(of_blocks: NDArray[Any], missing: float) -> NDArray[Any]:
    """Arranges values of blocks [rows, blocks] in atoms: [atoms along M or N, atoms along K, 512].

    Row r and block b of an atom are at byte 16 * (r % 32) + 4 * (r // 32) + b. ``missing`` is the value of missing
    rows.
    """
    rows, blocks = of_blocks.shape
    down, across = -(-rows // ATOM_ROWS), -(-blocks // ATOM_BLOCKS)
    found = np.full((down * ATOM_ROWS, across * ATOM_BLOCKS), missing, of_blocks.dtype)
    found[:rows, blocks:] = 0
    found[:rows, :blocks] = of_blocks
    parts = found.reshape(down, ATOM_ROWS // LANES, LANES, across, ATOM_BLOCKS)
    return np.ascontiguousarray(parts.transpose(0, 3, 2, 1, 4)).reshape(down, across, ATOM_BYTES)


def largest_of_blocks(values: NDArray[np.floating], block: int) -> NDArray[np.float64]:
    """Returns the largest magnitudes [rows, K / block] in blocks of the rows."""
    rows, k = values.shape
    found: NDArray[np.float64] = np.abs(values.astype(np.float64)).reshape(rows, k // block, block).max(axis=2)
    return found


def factors_of(largest: NDArray[np.float64], block_format: BlockFormat, alpha: float = 1.0) -> NDArray[np.generic]:
    """Returns scale factors for the largest magnitudes of blocks, in units of alpha.

    Powers of two are chosen so that these magnitudes keep the format's largest exponent, as in the OCP specification
    6.3, but at least 2^-127, the smallest. ue4m3 is chosen so that they become the largest element, within the range of
    ue4m3.
    """
    if block_format.powers:
        exponents = np.frexp(largest)[1] - 1 - block_format.exponent
        return np.exp2(np.where(largest > 0, np.maximum(exponents, -127), -127)).astype(block_format.scale.numpy)
    return np.minimum(largest / (block_format.largest * alpha), LARGEST_SCALE).astype(block_format.scale.numpy)


def quantise(values: NDArray[np.floating], block_format: BlockFormat) -> tuple[Scaled, float]:
    """Returns a matrix near `values` [rows, K], and the number by which it is to be multiplied.

    With ue4m3 the largest factor becomes 448, its maximum, and alpha compensates for that.
    """
    alpha = 1.0
    if not block_format.powers:
        alpha = float(np.float32(np.abs(values).max() / (block_format.largest * LARGEST_SCALE))) or 1.0
    factors = factors_of(largest_of_blocks(values, block_format.block), block_format, alpha)
    units = divisors(factors, alpha)
    quotients = values / np.repeat(units, block_format.block, axis=1)
    return Scaled(limited(quotients, block_format).astype(block_format.element.numpy), factors), alpha


def divisors(factors: NDArray[np.generic], alpha: float = 1.0) -> NDArray[np.float64]:
    """Returns the divisors of values: the factors times alpha, with 1 for a factor 0, because all its values round to
    0.
    """
    numbers = factors.astype(np.float64)
    return np.where(numbers > 0, numbers * alpha, 1)


def limited(quotients: NDArray[np.float64], block_format: BlockFormat) -> NDArray[np.float64]:
    """Limits quotients to the range of elements."""
    return np.clip(quotients, -block_format.largest, block_format.largest)


def draw(kind: str, block_format: BlockFormat, rows: int, k: int, rng: np.random.Generator) -> tuple[Scaled, float]:
    """Draws initial values of a matrix by the names of `harness.problem.KINDS`, and its part of alpha."""
    blocks = k // block_format.block
    match kind:
        case "normal":
            return quantise(rng.standard_normal((rows, k)), block_format)
        case "uniform":
            return quantise(rng.random((rows, k)) * 2 - 1, block_format)
        case "integer":
            elements = rng.integers(-4, 5, (rows, k)).astype(np.float32)
            factors = np.exp2(rng.integers(0, 3, (rows, blocks)).astype(np.float32))
            return _typed(elements, factors, block_format), 0.5
        case "index":
            # A power of two that depends on the row, times a random one, so that a wrong row or block changes the
            # result.
            factors = row_scales(rows)[:, None] * np.exp2(rng.integers(0, 4, (rows, blocks)).astype(np.float32))
            return _typed(index_words(rows, k, rng), factors, block_format), 0.5
    assert kind == "codes", kind
    codes = rng.integers(0, 1 << block_format.bits, (rows, k), dtype=np.uint8)
    codes[~np.isfinite(codes.view(block_format.element.numpy).astype(np.float32))] = 0
    first, end = (127 - 8, 127 + 8) if block_format.powers else (0, 0x7F)
    factors = rng.integers(first, end, (rows, blocks), dtype=np.uint8)
    return Scaled(codes.view(block_format.element.numpy), factors.view(block_format.scale.numpy)), 0.75


def _typed(elements: NDArray[np.floating], factors: NDArray[np.floating], block_format: BlockFormat) -> Scaled:
    return Scaled(elements.astype(block_format.element.numpy), factors.astype(block_format.scale.numpy))
