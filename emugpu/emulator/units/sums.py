"""How a tensor core adds: the bits of D = A . B + C, without and with block scaling.

In "f32" accumulation products are exact, and they are added in the host's float32. In "tensor_core" accumulation each
sum has the bits that a tensor core gives. The published rules of both generations have one form. Terms are *cut* at a
quantum 2^q, which means that they are divided by it and rounded toward zero. The integers are added exactly. An f32
result is rounded toward zero, an f16 result to nearest even. A sum that is or becomes zero is +0. The generations
differ in q, and in what a term is:

- Hopper, and ``mma.sync``: MMA-Sim (arXiv 2511.10909). An H200's wgmma and mma.sync give the same bits; no recorded
  sum shows the sign of one that is cut to zero.
- Blackwell's ``tcgen05.mma``: published for B200: sf-tensor/tcgen05, MODEL.md. We have measured none of it.

Exponents are *raw*: they are those of the encoding without bias, and a subnormal number has that of the smallest normal
one. The exponent of a product is the sum of its factors' exponents (with block scaling, also those of the scale
factors), whatever the product of their fractions is. float64 holds everything that is computed here exactly: scaled
products have at most 12 significant bits, others 22, and a sum of cut terms fewer than 50.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from emugpu.emulator.units.formats import FORMATS
from emugpu.emulator.units.numerics import CANONICAL_NAN_F32, f16_to_f32, f32_to_f16_storage

Bits = NDArray[np.uint32]
Values = NDArray[np.float64]
Exponents = NDArray[np.int16]

NONE = -4096
"""The exponent of a zero, which is never the largest. That of a product with a zero is below -3000."""
LOWEST = -600
"""An exponent below those of all products that are not zero. It is used if every term is zero."""


class Quantum(NamedTuple):
    """The quantum of an unscaled sum: ``fraction_bits`` below the largest exponent of products and C, or below
    ``floor`` if that is larger. An f32 result keeps at most as many fraction bits.
    """

    fraction_bits: int
    floor: int


HOPPER = Quantum(25, -133)
"""The floor is MMA-Sim's. On an H200 it lies below the exponent of normal f32 numbers, -126: two recorded subnormal
sums need that. They do not show how far below; with any floor from -127 down all recorded sums agree.
"""
HOPPER_FP8 = Quantum(13, -133)
"""For fp8 in wgmma."""
BLACKWELL = Quantum(25, LOWEST)
"""Also for scaled products of mxf8f6f4. No floor is published."""


class Factors(NamedTuple):
    """Numbers and their raw exponents, with the same shape."""

    values: Values
    exponents: Exponents

    def along_k(self, first: int, end: int) -> Factors:
        return Factors(self.values[..., first:end], self.exponents[..., first:end])

    def scaled(self, scales: Factors) -> Factors:
        """Multiplies numbers [.., K] by scale factors [.., vectors]. Each factor belongs to K / vectors neighbours."""
        per = self.values.shape[-1] // scales.values.shape[-1]
        values = self.values * np.repeat(scales.values, per, axis=-1)
        return Factors(values, self.exponents + np.repeat(scales.exponents, per, axis=-1))


def factors(values: NDArray[np.floating], element: str) -> Factors:
    """Returns numbers of a type (a name of `FORMATS`) with their raw exponents."""
    wide = values.astype(np.float64)
    exponents = np.maximum(np.frexp(wide)[1] - 1, FORMATS[element].smallest_exponent)
    return Factors(wide, np.where(wide == 0, NONE, exponents).astype(np.int16))


def product(a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
    """Returns A . B^T for B [N, K], or for B [M, N, K] with a sparse A."""
    result: NDArray[Any] = a @ b.T if b.ndim == 2 else (b @ a[:, :, None])[..., 0]
    return result


def integer_dot(a: NDArray[Any], b: NDArray[Any], c_bits: Bits, saturate: bool) -> Bits:
    """Returns D = A . B^T + C in s32. It wraps around, or saturates."""
    # float64 holds the sums of 8-bit products exactly, and its multiplication is faster.
    total = product(a.astype(np.float64), b.astype(np.float64)).astype(np.int64) + c_bits.view(np.int32)
    if saturate:
        total = np.clip(total, -(1 << 31), (1 << 31) - 1)
    return total.astype(np.uint64).astype(np.uint32)


# ---- unscaled ----


def dot(
    a: NDArray[np.floating],
    b: NDArray[np.floating],
    c_bits: Bits,
    a_type: str,
    b_type: str,
    d_type: str,
    accumulation: str,
    step: int,
    quantum: Quantum,
) -> Bits:
    """Returns the bits of D = A . B^T + C in f32 or f16, [M, N]; f16 in the low halves.

    accumulation: "f32" multiplies in the host's float32; "tensor_core" adds `step` elements along K at once.
    """
    bits = np.ascontiguousarray(c_bits)
    if accumulation != "tensor_core":
        total = product(a.astype(np.float32), b.astype(np.float32)) + _numbers(bits, d_type)
        return f32_to_f16_storage(total) if d_type == "f16" else _canonical(total)
    for first in range(0, a.shape[1], step):
        part = slice(first, first + step)
        c = _numbers(bits, d_type)
        bits = tensor_core_dot(a[:, part], b[..., part], c, a_type, b_type, d_type, quantum)
    return bits


def tensor_core_dot(
    a: NDArray[np.floating],
    b: NDArray[np.floating],
    c: NDArray[np.floating],
    a_type: str,
    b_type: str,
    d_type: str,
    quantum: Quantum,
) -> Bits:
    """Computes one step D = A . B^T + C of a tensor core, in which every product and C is cut by itself.

    Args:
        a, b, c: values, shapes [M, K], [N, K], [M, N]; K at most 64. With a sparse A each of its rows has its own
            elements of B: [M, N, K]. Masked elements are left out, so they cannot make a NaN.
        a_type, b_type, d_type: names of `FORMATS`, D "f32" or "f16"; `c` has the type of D.
    Returns:
        Bits of D, one 32-bit word each [M, N].
    """
    with np.errstate(all="ignore"):
        exact, _ = _sum_of_products(factors(a, a_type), factors(b, b_type), factors(c, d_type), quantum)
    if d_type == "f16":
        bits = f32_to_f16_storage(exact)
        return np.where(bits == 0x8000, np.uint32(0), bits)
    result = _cut_to_f32(exact)
    lost = 23 - quantum.fraction_bits
    return result if lost <= 0 else np.where(np.isnan(exact), result, result >> lost << lost)


def _sum_of_products(a: Factors, b: Factors, c: Factors, quantum: Quantum) -> tuple[Values, Exponents]:
    """Returns the sum of products and C, each cut by itself, and the products' largest exponent: both [M, N]."""
    of_products = _largest(a.exponents, b.exponents)
    exponent = np.maximum(np.maximum(of_products, c.exponents), quantum.floor) - quantum.fraction_bits
    scale = np.ldexp(1.0, -exponent)
    total = np.trunc(c.values * scale)
    for k in range(a.values.shape[1]):
        total += np.trunc(a.values[:, k, None] * b.values[..., k] * scale)
    return total / scale, of_products


def _largest(a: Exponents, b: Exponents) -> Exponents:
    """Returns the largest exponent of a product [M, N]; it is below -3000 if all products are zero."""
    largest = a[:, 0, None] + b[..., 0]
    for k in range(1, a.shape[1]):
        np.maximum(largest, a[:, k, None] + b[..., k], out=largest)
    return largest


# ---- block-scaled ----


def scaled_dot(
    kind: str,
    types: tuple[str, str, str],
    a: Values,
    b: Values,
    c_bits: Bits,
    scales: tuple[Values, Values],
    accumulation: str,
) -> Bits:
    """Returns the bits [M, N] of D = A . B^T + C in f32, where each scale factor belongs to K / vectors neighbours.

    In "tensor_core" accumulation, if all products are zero the result is C itself, even a -0.

    Args: kind: "mxf8f6f4", "mxf4" or "mxf4nvf4". types: of A, of B and of the scale factors. a, b: values [M, K] and
        [N, K], or [M, N, K]. With a sparse A of e2m1, K includes masked elements, as zeros of A. c_bits: [M, N].
        scales: factors of A [M, vectors], and of B [N, vectors] or [M, N, vectors].
    """
    vectors = scales[0].shape[1]
    c = np.ascontiguousarray(c_bits).view(np.float32)
    with np.errstate(all="ignore"):
        if accumulation != "tensor_core":
            per = a.shape[1] // vectors
            a, b = (x * np.repeat(s, per, axis=-1) for x, s in zip((a, b), scales, strict=True))
            return _canonical(product(a, b).astype(np.float32) + c)
        of_a, of_b = (factors(s, types[2]) for s in scales)
        scaled_a, scaled_b = factors(a, types[0]).scaled(of_a), factors(b, types[1]).scaled(of_b)
        if kind == "mxf8f6f4":
            exact, largest = _sum_of_products(scaled_a, scaled_b, factors(c, "f32"), BLACKWELL)
        else:
            pairs = [of_a.exponents[:, v, None] + of_b.exponents[..., v] for v in range(vectors)]
            exact, largest = _sum_of_groups(scaled_a, scaled_b, factors(c, "f32"), pairs, types[2] == "ue8m0")
        return np.where((largest < LOWEST) & ~np.isnan(exact), c_bits, _cut_to_f32(exact))


_GROUP, _SMALL_GROUP = 16, 4
"""The number of neighbours along K whose products are added exactly and cut as one term: for ue8m0, and for ue4m3."""
_FRACTION_BITS = 35
"""The quantum lies this far below the exponent of C, or of the largest pair of factors."""
_LEFT_OUT, _SMALLEST = -174, -149
"""Groups below 2^-174 are left out, unless the result is cut to zero because it is below 2^-149."""


def _sum_of_groups(a: Factors, b: Factors, c: Factors, pairs: list[Exponents], ue8m0: bool) -> tuple[Values, Exponents]:
    """Returns the sum of scaled e2m1 products and C, and the products' largest exponent: both [M, N].

    If C is not below the largest product, the quantum depends on C, and whole blocks of ue4m3 are cut as one term.
    Otherwise it depends on the factors, except for groups of ue8m0 whose products are not above C. Further published
    conditions change nothing: a quantum is at most 39 below the largest product, which lies at most 4 above its
    factors; and groups are left out of subnormal results only, but never those with the largest factors. If a quantum
    lies below 2^-174, all products together are subnormal, and those groups are zero or large.

    pairs: for each block, the exponents [M, N] of the factors of A and B together.
    """
    depth = a.values.shape[1]
    per = depth // len(pairs)
    size = _GROUP if ue8m0 else per
    groups = [(a.along_k(first, first + size), b.along_k(first, first + size)) for first in range(0, depth, size)]
    of_groups = [_largest(x.exponents, y.exponents) for x, y in groups]
    largest = np.maximum.reduce(of_groups)
    scales = [np.where(g < LOWEST, LOWEST, pairs[n * size // per]) for n, g in enumerate(of_groups)]
    outranked = c.exponents >= largest
    quantum = np.maximum(np.where(outranked, c.exponents, np.maximum.reduce(scales)), LOWEST) - _FRACTION_BITS
    fine, below_c = np.ldexp(1.0, -quantum), np.ldexp(1.0, _FRACTION_BITS - c.exponents)

    terms = []
    for (x, y), of_group in zip(groups, of_groups, strict=True):
        if ue8m0:
            scale = np.where(c.exponents >= of_group, np.minimum(fine, below_c), fine)
            terms.append(np.trunc(product(x.values, y.values) * scale) / scale)
        else:
            fours = [slice(first, first + _SMALL_GROUP) for first in range(0, size, _SMALL_GROUP)]
            parts = [product(x.values[:, four], y.values[..., four]) * fine for four in fours]
            terms.append(np.where(outranked, np.trunc(sum(parts)), sum(map(np.trunc, parts))) / fine)
    total = np.trunc(c.values * fine) / fine + sum(terms)
    if (quantum < _LEFT_OUT).any():
        left_out = sum(np.where(np.abs(term) < 2.0**_LEFT_OUT, term, 0) for term in terms)
        total -= np.where(np.abs(total) >= 2.0**_SMALLEST, left_out, 0)
    return total, largest


def _numbers(bits: Bits, d_type: str) -> NDArray[np.float32]:
    """Returns the numbers in words of D."""
    return bits.view(np.float32) if d_type == "f32" else f16_to_f32(bits.astype(np.uint16))


def _canonical(total: NDArray[np.float32]) -> Bits:
    """Returns the bits of f32 numbers, with the one NaN that tensor cores give."""
    return np.where(np.isnan(total), np.uint32(CANONICAL_NAN_F32), total.view(np.uint32))


def _cut_to_f32(values: Values) -> Bits:
    """Returns the bits of the nearest f32 toward zero: +0 for zeros, infinity out of range, the canonical NaN."""
    with np.errstate(all="ignore"):
        nearest = values.astype(np.float32)
        magnitude = np.abs(values)
        rounded_up = (np.abs(nearest).astype(np.float64) > magnitude) & (magnitude < 2.0**128)
    bits = (nearest.view(np.uint32) - rounded_up).astype(np.uint32)
    bits = np.where(bits == 0x80000000, np.uint32(0), bits)
    return np.where(np.isnan(values), np.uint32(CANONICAL_NAN_F32), bits)
