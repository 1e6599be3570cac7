"""16-bit formats and tf32 on arrays of bits: as `cvt`, TMA and the accumulators of tensor cores have them."""

from __future__ import annotations

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

CANONICAL_NAN_F32 = 0x7FFFFFFF
CANONICAL_NAN_16 = 0x7FFF

Bits = NDArray[np.uint32]


def bf16_to_f32(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """Exact widening of bf16 bits to a C-ordered array."""
    wide: NDArray[np.float32] = bits.view(ml_dtypes.bfloat16).astype(np.float32, order="C")
    return wide


def f16_to_f32(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """Exact widening of f16 bits to a C-ordered array."""
    return bits.view(np.float16).astype(np.float32, order="C")


def _pack(hi: Bits, lo: Bits, dtype: type, largest: int) -> Bits:
    """Round two f32 arrays to 16 bits each, nearest even, and pack them; `largest` is infinity."""
    halves = np.empty((*lo.shape, 2), dtype)
    with np.errstate(all="ignore"):
        halves[..., 0] = lo.view(np.float32)
        halves[..., 1] = hi.view(np.float32)
    bits = halves.view(np.uint16)
    magnitude = bits & 0x7FFF
    if magnitude.max(initial=0) > largest:
        bits[magnitude > largest] = CANONICAL_NAN_16
    return halves.view(np.uint32).reshape(lo.shape)


def cvt_rn_bf16x2(hi: Bits, lo: Bits) -> Bits:
    """`cvt.rn.bf16x2.f32 d, hi, lo` on f32 bits: two bf16 in one word, `lo` in the low half.

    Round to nearest even; overflow gives infinity; every NaN becomes 0x7fff (PTX ISA 9.7.9 "cvt").
    """
    return _pack(hi, lo, ml_dtypes.bfloat16, 0x7F80)


def cvt_rn_f16x2(hi: Bits, lo: Bits) -> Bits:
    """`cvt.rn.f16x2.f32 d, hi, lo` on f32 bits; as `cvt_rn_bf16x2`."""
    return _pack(hi, lo, np.float16, 0x7C00)


def cvt_rn_bf16(value: Bits) -> NDArray[np.uint16]:
    """`cvt.rn.bf16.f32` on f32 bits."""
    return cvt_rn_bf16x2(value, value).astype(np.uint16)


def cvt_rn_f16(value: Bits) -> NDArray[np.uint16]:
    """`cvt.rn.f16.f32` on f32 bits."""
    return cvt_rn_f16x2(value, value).astype(np.uint16)


def round_to_tf32(bits: Bits) -> Bits:
    """f32 bits as TMA stores them for a tf32 tensor map: 10 fraction bits, round to nearest even.

    NaN becomes 0x7fffe000; the largest values round to infinity (seen on an H200).
    """
    rounded = (bits + np.uint32(0x0FFF) + (bits >> 13 & 1)) & np.uint32(0xFFFFE000)
    return np.where(bits & 0x7FFFFFFF > 0x7F800000, np.uint32(0x7FFFE000), rounded)


def f32_to_f16_storage(values: NDArray[np.floating]) -> NDArray[np.uint32]:
    """Accumulator values as TMEM keeps f16: rounded to nearest even in the low half of a 32-bit column."""
    with np.errstate(all="ignore"):
        bits = values.astype(np.float16).view(np.uint16)
    return np.where(np.isnan(values), CANONICAL_NAN_16, bits).astype(np.uint32)
