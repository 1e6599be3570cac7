"""How a tensor core adds up: the bits of D = A . B + C, of unscaled kinds and of block-scaled ones.

In "f32" accumulation products are exact, and are added in the host's float32. In
"tensor_core" accumulation each sum has the bits that a tensor core gives. What is published of both generations has
one form: terms are *cut* at a quantum 2^q, that is, divided by it and cut toward zero; the integers are added exactly;
an f32 result is cut toward zero, an f16 result rounded to nearest even. A sum that is or becomes zero is +0. The
generations differ in q, and in what a term is:

- Hopper, and ``mma.sync``: MMA-Sim (arXiv 2511.10909). An H200's wgmma and mma.sync give the same bits; no recorded
  sum tells the sign of one that is cut to zero.
- Blackwell's ``tcgen05.mma``: published for B200: sf-tensor/tcgen05, MODEL.md. None of it was measured by us.

Exponents are *raw*: those of the encoding without bias, and of a subnormal number that of the smallest normal one. A
product's is the sum of its factors' (with block scaling, of the scale factors', too), whatever their fractions multiply
to. float64 holds all that is computed here exactly: scaled products have at most 12 significant bits, others 22, and a
sum of cut terms fewer than 50.
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
"""The exponent of a zero, which never is the largest; that of a product with a zero lies below -3000, too."""
LOWEST = -600
"""Below the exponents of all products that are not zero: where every term is zero, this one is taken."""


class Window(NamedTuple):
    """Where the terms of an unscaled sum are cut: ``fraction_bits`` below the largest exponent of products and C, or
    below ``floor`` if that is larger. An f32 result keeps no more fraction bits either.
    """

    fraction_bits: int
    floor: int


HOPPER = Window(25, -133)
"""The floor is MMA-Sim's. On an H200 it lies below the exponent of normal f32 numbers, -126: two recorded subnormal
sums need that. They do not tell how far below; from -127 down all recorded sums agree."""
HOPPER_FP8 = Window(13, -133)
"""fp8 by wgmma."""
BLACKWELL = Window(25, LOWEST)
"""Also of scaled products of mxf8f6f4. No floor is published."""


class Factors(NamedTuple):
    """Numbers and their raw exponents, of the same shape."""

    values: Values
    exponents: Exponents

    def along_k(self, first: int, end: int) -> Factors:
        return Factors(self.values[..., first:end], self.exponents[..., first:end])

    def scaled(self, scales: Factors) -> Factors:
        """Numbers [.., K] times scale factors [.., vectors]; each belongs to K / vectors neighbours."""
        per = self.values.shape[-1] // scales.values.shape[-1]
        values = self.values * np.repeat(scales.values, per, axis=-1)
        return Factors(values, self.exponents + np.repeat(scales.exponents, per, axis=-1))


def factors(values: NDArray[np.floating], element: str) -> Factors:
    """Numbers of a type, a name of `FORMATS`."""
    wide = values.astype(np.float64)
    exponents = np.maximum(np.frexp(wide)[1] - 1, FORMATS[element].smallest_exponent)
    return Factors(wide, np.where(wide == 0, NONE, exponents).astype(np.int16))


def product(a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
    """A . B^T, of B [N, K], or [M, N, K] with a sparse A."""
    result: NDArray[Any] = a @ b.T if b.ndim == 2 else (b @ a[:, :, None])[..., 0]
    return result


def integer_dot(a: NDArray[Any], b: NDArray[Any], c_bits: Bits, saturate: bool) -> Bits:
    """D = A . B^T + C in s32: it wraps around, or stops at the ends of the range."""
    # float64 holds the sums of 8-bit products exactly, and has the faster multiplication.
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
    window: Window,
) -> Bits:
    """D = A . B^T + C in f32 or f16, by the device's accumulation: bits [M, N], of f16 in the low halves.

    "f32" multiplies with the host's float32; "tensor_core" takes `step` elements along K at once.
    """
    bits = np.ascontiguousarray(c_bits)
    if accumulation != "tensor_core":
        total = product(a.astype(np.float32), b.astype(np.float32)) + _numbers(bits, d_type)
        return f32_to_f16_storage(total) if d_type == "f16" else _canonical(total)
    for first in range(0, a.shape[1], step):
        part = slice(first, first + step)
        c = _numbers(bits, d_type)
        bits = tensor_core_dot(a[:, part], b[..., part], c, a_type, b_type, d_type, window)
    return bits


def tensor_core_dot(
    a: NDArray[np.floating],
    b: NDArray[np.floating],
    c: NDArray[np.floating],
    a_type: str,
    b_type: str,
    d_type: str,
    window: Window,
) -> Bits:
    """One step D = A . B^T + C of a tensor core: every product and C is cut by itself.

    Args:
        a, b, c: values, shapes [M, K], [N, K], [M, N]; K at most 64. With a sparse A each of its rows meets other
            elements of B: [M, N, K]. What is masked is not there, and cannot make a NaN.
        a_type, b_type, d_type: names of `FORMATS`, D "f32" or "f16"; `c` has the type of D.
    Returns:
        Bits of D, one 32-bit word each [M, N].
    """
    with np.errstate(all="ignore"):
        exact, _ = _sum_of_products(factors(a, a_type), factors(b, b_type), factors(c, d_type), window)
    if d_type == "f16":
        bits = f32_to_f16_storage(exact)
        return np.where(bits == 0x8000, np.uint32(0), bits)
    result = _cut_to_f32(exact)
    lost = 23 - window.fraction_bits
    return result if lost <= 0 else np.where(np.isnan(exact), result, result >> lost << lost)


def _sum_of_products(a: Factors, b: Factors, c: Factors, window: Window) -> tuple[Values, Exponents]:
    """The sum of products and C, each cut by itself, and the products' largest exponent: both [M, N]."""
    of_products = _largest(a.exponents, b.exponents)
    quantum = np.maximum(np.maximum(of_products, c.exponents), window.floor) - window.fraction_bits
    scale = np.ldexp(1.0, -quantum)
    total = np.trunc(c.values * scale)
    for k in range(a.values.shape[1]):
        total += np.trunc(a.values[:, k, None] * b.values[..., k] * scale)
    return total / scale, of_products


def _largest(a: Exponents, b: Exponents) -> Exponents:
    """The largest exponent of a product [M, N]; below -3000 if all products are zero."""
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
    """D = A . B^T + C in f32, where a scale factor belongs to each K / vectors neighbours of a row: bits [M, N].

    In "tensor_core" accumulation C itself comes back, a -0 too, where no product is other than zero.

    Args:
        kind: "mxf8f6f4", "mxf4" or "mxf4nvf4".
        types: of A, of B and of the scale factors.
        a, b: values [M, K] and [N, K], or [M, N, K]. Of a sparse A of e2m1, K counts what is masked, as zeros of A.
        c_bits: [M, N].
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
"""Neighbours along K whose products are summed exactly and cut as one term: with factors of ue8m0, and of ue4m3."""
_FRACTION_BITS = 35
"""The quantum lies so far below the exponent of C, or of the largest pair of factors."""
_LEFT_OUT, _SMALLEST = -174, -149
"""Groups below 2^-174 are left out, unless the result is cut to zero: is below 2^-149."""


def _sum_of_groups(a: Factors, b: Factors, c: Factors, pairs: list[Exponents], ue8m0: bool) -> tuple[Values, Exponents]:
    """The sum of scaled products of e2m1 and C, and the products' largest exponent: both [M, N].

    Unless C is below the largest product, the quantum hangs on C, and whole blocks of ue4m3 are cut as one term.
    Otherwise it hangs on the factors, but for groups of ue8m0 whose products C is not below. Conditions that are
    published, too, and decide nothing: a quantum is not more than 39 below the largest product, which lies at most 4
    above its factors; groups are left out of subnormal results alone, and never those with the largest factors: where
    a quantum lies below 2^-174 all products together are subnormal, and those groups are zero or large.

    pairs: exponents [M, N] of the factors of A and B together, of each block.
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
    """The numbers that words of D hold."""
    return bits.view(np.float32) if d_type == "f32" else f16_to_f32(bits.astype(np.uint16))


def _canonical(total: NDArray[np.float32]) -> Bits:
    """Bits of f32 numbers with the one NaN that tensor cores give."""
    return np.where(np.isnan(total), np.uint32(CANONICAL_NAN_F32), total.view(np.uint32))


def _cut_to_f32(values: Values) -> Bits:
    """Bits of the f32 nearest toward zero, of zeros +0; beyond the range infinity, NaN canonical."""
    with np.errstate(all="ignore"):
        nearest = values.astype(np.float32)
        magnitude = np.abs(values)
        rounded_up = (np.abs(nearest).astype(np.float64) > magnitude) & (magnitude < 2.0**128)
    bits = (nearest.view(np.uint32) - rounded_up).astype(np.uint32)
    bits = np.where(bits == 0x80000000, np.uint32(0), bits)
    return np.where(np.isnan(values), np.uint32(CANONICAL_NAN_F32), bits)
