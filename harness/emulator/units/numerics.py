"""Number formats of the tensor core and of the `cvt` instruction, on arrays of bits."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

CANONICAL_NAN_F32 = 0x7FFFFFFF
CANONICAL_NAN_16 = 0x7FFF

F32_MIN_EXPONENT = -126
ALIGNMENT_FLOOR = -133
"""Terms are never aligned to a smaller exponent than this. On an H200 the floor lies below that of normal f32 numbers,
-126: two recorded subnormal sums need that. They do not tell how far below; from -127 down all recorded sums agree."""
MIN_EXPONENT = {
    "bf16": F32_MIN_EXPONENT, "f16": -14, "f32": F32_MIN_EXPONENT, "tf32": F32_MIN_EXPONENT,
    "e4m3": -6, "e5m2": -14, "e2m3": 0, "e3m2": -2, "e2m1": 0,
}  # fmt: skip
"""Exponent of the smallest normal number; subnormal numbers share it."""

ALIGNED_FRACTION_BITS = 25

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


def tensor_core_dot(
    a: NDArray[np.float32],
    b: NDArray[np.float32],
    c: NDArray[np.float32],
    a_type: str,
    b_type: str,
    d_type: str,
    fraction_bits: int = ALIGNED_FRACTION_BITS,
) -> NDArray[np.uint32]:
    """One tensor-core step D = A . B^T + C, as the published model of Hopper and Blackwell has it.

    Products are exact. The K products and C are aligned to the largest exponent among them (a product's
    exponent is the sum of its factors' exponents, not normalised), cut toward zero to 25 fractional bits and
    summed exactly. An f32 result is cut toward zero, an f16 result rounded to nearest even (MMA-Sim, arXiv
    2511.10909). An H200's wgmma gives the same bits, for f32 results, subnormals and special values too.

    Args:
        a, b, c: values, shapes [M, K], [N, K], [M, N]; K at most 64. With a sparse A each of its rows meets other
            elements of B: [M, N, K].
        a_type, b_type, d_type: names of `MIN_EXPONENT`, D "f32" or "f16"; `c` has the type of D.
        fraction_bits: to which the terms are cut; an f32 result keeps no more of them either.
    Returns:
        Bits of D, one 32-bit word each [M, N].
    """
    # float64 holds everything exactly: products have at most 22 significant bits, the sum of 17 aligned
    # terms 31.
    a_wide, b_wide, c_wide = (x.astype(np.float64) for x in (a, b, c))
    a_exponent = _exponent(a_wide, MIN_EXPONENT[a_type])
    b_exponent = _exponent(b_wide, MIN_EXPONENT[b_type])
    largest = np.maximum(_exponent(c_wide, MIN_EXPONENT[d_type]), ALIGNMENT_FLOOR)
    for k in range(a.shape[1]):
        np.maximum(largest, a_exponent[:, k, None] + b_exponent[..., k], out=largest)

    with np.errstate(all="ignore"):
        scale = np.ldexp(1.0, fraction_bits - largest)
        total = np.trunc(c_wide * scale)
        for k in range(a.shape[1]):
            total += np.trunc(a_wide[:, k, None] * b_wide[..., k] * scale)
        exact = total / scale
    if d_type == "f16":
        return f32_to_f16_storage(exact)
    result = _truncate_to_f32(exact)
    lost = 23 - fraction_bits
    return result if lost <= 0 else np.where(np.isnan(exact), result, result >> lost << lost)


def dot(
    a: NDArray[np.floating],
    b: NDArray[np.floating],
    c_bits: NDArray[np.uint32],
    a_type: str,
    b_type: str,
    d_type: str,
    accumulation: str,
    step: int,
    fraction_bits: int = ALIGNED_FRACTION_BITS,
) -> NDArray[np.uint32]:
    """D = A . B^T + C in f32 or f16, by the device's accumulation: bits [M, N], of f16 in the low halves.

    "f32" multiplies with the host's float32; "tensor_core" takes `step` elements along K at once.
    """
    a, b = a.astype(np.float32), b.astype(np.float32)
    bits = np.ascontiguousarray(c_bits)
    if accumulation != "tensor_core":
        c = bits.view(np.float32) if d_type == "f32" else f16_to_f32(bits.astype(np.uint16))
        total = product(a, b) + c
        if d_type == "f16":
            return f32_to_f16_storage(total)
        return np.where(np.isnan(total), np.uint32(CANONICAL_NAN_F32), total.view(np.uint32))
    for first in range(0, a.shape[1], step):
        c = bits.view(np.float32) if d_type == "f32" else f16_to_f32(bits.astype(np.uint16))
        part = slice(first, first + step)
        bits = tensor_core_dot(a[:, part], b[..., part], c, a_type, b_type, d_type, fraction_bits)
    return bits


def product(a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
    """A . B^T, of B [N, K], or [M, N, K] with a sparse A."""
    result: NDArray[Any] = a @ b.T if b.ndim == 2 else (b @ a[:, :, None])[..., 0]
    return result


def integer_dot(
    a: NDArray[np.int64], b: NDArray[np.int64], c_bits: NDArray[np.uint32], saturate: bool
) -> NDArray[np.uint32]:
    """D = A . B^T + C in s32: it wraps around, or stops at the ends of the range."""
    # float64 holds the sums of 8-bit products exactly, and has the faster multiplication.
    total = product(a.astype(np.float64), b.astype(np.float64)).astype(np.int64) + c_bits.view(np.int32)
    if saturate:
        total = np.clip(total, -(1 << 31), (1 << 31) - 1)
    return total.astype(np.uint64).astype(np.uint32)


def aligned_sum(terms: list[NDArray[np.float64]], fraction_bits: int) -> NDArray[np.uint32]:
    """f32 bits of a sum whose terms are cut `fraction_bits` below the largest one, as `tensor_core_dot` does."""
    largest = np.full(terms[0].shape, ALIGNMENT_FLOOR)
    for term in terms:
        largest = np.maximum(largest, _exponent(term, F32_MIN_EXPONENT))
    scale = np.ldexp(1.0, fraction_bits - largest)
    plain = sum(terms[1:], terms[0])
    total = sum((np.trunc(term * scale) for term in terms[1:]), np.trunc(terms[0] * scale)) / scale
    return _truncate_to_f32(np.where(np.isfinite(plain), total, plain))


def _exponent(values: NDArray[np.float64], smallest: int) -> NDArray[np.int32]:
    """Exponents with 1 <= significand < 2, not below `smallest`; a zero never is the largest."""
    exponent = np.maximum(np.frexp(values)[1] - 1, smallest)
    return np.where(values == 0, -4096, exponent).astype(np.int32)


def _truncate_to_f32(values: NDArray[np.float64]) -> NDArray[np.uint32]:
    """Bits of the f32 nearest toward zero; beyond the range infinity, NaN canonical."""
    with np.errstate(all="ignore"):
        nearest = values.astype(np.float32)
        magnitude = np.abs(values)
        rounded_up = (np.abs(nearest).astype(np.float64) > magnitude) & (magnitude < 2.0**128)
    bits = nearest.view(np.uint32) - rounded_up
    return np.where(np.isnan(values), np.uint32(CANONICAL_NAN_F32), bits.astype(np.uint32))
