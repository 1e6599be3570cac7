"""Computes the expected C for a type with scale factors: elements in units of their blocks' factors, and these factors.

e4m3 has f32 factors of 128 columns of a row (`harness.fp8`), a block-scaled format its own (`harness.block_scaling`).
An error of the product changes the largest element of a block, so its factor, and so the whole block: if the factor may
be either of two neighbours, elements may differ by the effect of that.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import floor, log2
from typing import Any

import numpy as np

from harness import fp8
from harness.block_scaling import ATOM_BYTES, FORMATS, LARGEST_SCALE, divisors, factors_of, in_atoms, limited, to_atoms
from harness.problem import F32, FP8, ElementType
from harness.validation import Reference

QUANTISED = {FP8, *FORMATS}
ROUNDED = 2.0**-22
"""Relative error of f32 roundings before the result: alpha, c_scale, and quotients."""


@dataclass(frozen=True)
class Quantised:
    """The elements of C, and its factors as they lie in memory, in contiguous rows. ``factor_type`` is the type of
    these. C is multiplied by ``c_scale`` before it is quantised.
    """

    elements: Reference
    factors: Reference
    factor_type: ElementType
    c_scale: float = 1.0


def quantised(reference: Reference, name: str) -> Quantised:
    """Returns C as e4m3 or in a block-scaled format."""
    block_format = FORMATS.get(name)
    block = block_format.block if block_format else fp8.BLOCK
    values = reference.values.astype(np.float64)
    scale = 1.0
    if block_format and not block_format.powers:  # a power of two, which does not round: factors up to 448
        scale = 2.0 ** floor(log2(block_format.largest * LARGEST_SCALE / (np.abs(values).max() or 1)))
    values = values * scale
    error = 0 * values
    if not reference.exact:
        error = scale * (reference.accumulation if reference.bound is None else reference.bound)
        error += ROUNDED * np.abs(values)
    starts = np.arange(0, values.shape[1], block)
    largest, moved = (np.maximum.reduceat(each, starts, axis=1) for each in (np.abs(values), error))

    def units(largest: np.ndarray) -> tuple[Any, np.ndarray]:
        """Returns the factors, and the divisor of each element."""
        found = factors_of(largest, block_format) if block_format else fp8.factors_of(largest)
        return found, np.repeat(divisors(found), block, axis=1)[:, : values.shape[1]]

    (low, least), (factors, each), (high, most) = map(units, (np.maximum(largest - moved, 0), largest, largest + moved))
    spread = np.maximum(np.abs(1 / least - 1 / each), np.abs(1 / each - 1 / most))
    # A quarter more, because a value with an error is rounded, too.
    bound = 1.25 * (error * np.maximum(1 / least, 1 / each) + np.abs(values) * spread)
    off = np.maximum(*(np.abs(one.astype(np.float64) - factors.astype(np.float64)) for one in (low, high)))
    elements: Any = values / each
    in_memory: Any
    factor_type = F32
    if block_format is None:
        elements = elements.astype(np.float32)
        in_memory = fp8.in_memory(factors, "A")
        of_factors = fp8.in_memory(off + 2.0**-23 * factors, "A")
    else:
        elements = limited(elements, block_format)
        in_memory = to_atoms(factors).view(factors.dtype).astype(np.float64).reshape(-1, ATOM_BYTES)
        of_factors = in_atoms(off, 0.0).reshape(-1, ATOM_BYTES)
        factor_type = ElementType(block_format.scale.name, block_format.scale.name, factors.dtype, 0.0, 0.0)
    return Quantised(
        replace(reference, values=elements, bound=bound),
        replace(reference, values=in_memory, bound=of_factors),
        factor_type,
        scale,
    )
