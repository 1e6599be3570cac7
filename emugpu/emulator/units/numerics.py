"""16-bit formats and tf32 on arrays of bits, as `cvt`, TMA and the accumulators of tensor cores use them."""

from __future__ import annotations

from functools import cache

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

CANONICAL_NAN_F32 = 0x7FFFFFFF
CANONICAL_NAN_16 = 0x7FFF

Bits = NDArray[np.uint32]


def bf16_to_f32(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """Widens bf16 bits exactly to a C-ordered array."""
    wide: NDArray[np.float32] = bits.view(ml_dtypes.bfloat16).astype(np.float32, order="C")
    return wide


def f16_to_f32(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """Widens f16 bits exactly to a C-ordered array."""
    return _numbers_of_f16().take(bits)


@cache
def _numbers_of_f16() -> NDArray[np.float32]:
    """Returns the number for each f16; looking them up takes half of the time of NumPy's conversion."""
    return np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)


def pack_halves(dtype: type, high: int | Bits, low: int | Bits) -> Bits:
    """Computes `cvt.rn.bf16x2.f32` or `cvt.rn.f16x2.f32` on f32 bits: two numbers in one word, `low` in the low half.

    Rounds to nearest even. Overflow gives infinity, and every NaN becomes 0x7fff (PTX ISA 9.7.9 "cvt").
    """
    first, second = (np.asarray(bits, np.uint32).view(np.float32) for bits in (low, high))
    halves = np.empty((*(first.shape or second.shape), 2), dtype)
    with np.errstate(all="ignore"):
        halves[..., 0], halves[..., 1] = first, second
    if np.isnan(first).any() or np.isnan(second).any():
        halves.view(np.uint16)[np.isnan(halves)] = CANONICAL_NAN_16
    return halves.view(np.uint32)[..., 0]


def round_to_tf32(bits: Bits) -> Bits:
    """Rounds f32 bits as TMA does for a tf32 tensor map: 10 fraction bits, to nearest even.

    NaN becomes 0x7fffe000; the largest values round to infinity (seen on an H200).
    """
    rounded = (bits + np.uint32(0x0FFF) + (bits >> 13 & 1)) & np.uint32(0xFFFFE000)
    return np.where(bits & 0x7FFFFFFF > 0x7F800000, np.uint32(0x7FFFE000), rounded)


def f32_to_f16_storage(values: NDArray[np.floating]) -> NDArray[np.uint32]:
    """Returns accumulator values as TMEM stores f16: rounded to nearest even in the low half of a 32-bit column."""
    with np.errstate(all="ignore"):
        bits = values.astype(np.float16).view(np.uint16)
    return np.where(np.isnan(values), CANONICAL_NAN_16, bits).astype(np.uint32)
