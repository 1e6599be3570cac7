"""The tensor core as one warp uses it: mma.sync (PTX ISA 9.7.14.5), its fragments and its arithmetic.

A fragment is one matrix spread over the registers of 32 threads: register r of thread t holds neighbours along K, of
row t / 4 of A, and of column t / 4 of B. Arithmetic follows the accumulation of the device, on every GPU as on
an H200.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.emulator.units import float_math, sparsity, sums
from harness.emulator.units.formats import FORMATS, decode

ELEMENT_BITS = {"f16": 16, "bf16": 16, "tf32": 32, "e4m3": 8, "e5m2": 8, "s8": 8, "u8": 8, "f64": 64}
_STEP = {"f16": 16, "bf16": 16, "e4m3": 16, "e5m2": 16, "tf32": 8}
"""Elements along K that the tensor core adds up at once. fp8 goes through it as f16 does."""


class Form(NamedTuple):
    """What the text of an mma.sync fixes. saturate: s32 results stop at the ends of their range.

    selector: of the lanes whose metadata counts, for a sparse A.
    """

    m: int
    n: int
    k: int
    d_type: str
    a_type: str
    b_type: str
    saturate: bool = False
    selector: int | None = None


@lru_cache(maxsize=64)
def operand_index(rows: int, k: int, per_register: int) -> NDArray[np.intp]:
    """Flat index row * k + column of each element [registers * per_register, 32] of A, or of B by its columns.

    Register r: row t / 4 + 8 * (r % 2) of a 16-row A, and of K elements per_register * (t % 4) and up, in blocks of
    four registers' worth.
    """
    count = rows * k // (32 * per_register)
    thread = np.arange(32)
    register, element = np.divmod(np.arange(count * per_register), per_register)
    halves = rows // 8
    row = thread // 4 + 8 * (register % halves)[:, None]
    column = per_register * (thread % 4) + element[:, None] + 4 * per_register * (register // halves)[:, None]
    index: NDArray[np.intp] = row * k + column
    return index


@lru_cache(maxsize=16)
def result_index(m: int) -> NDArray[np.intp]:
    """Flat index row * 8 + column of each element [m / 4, 32] of C and D: pairs of neighbours along N."""
    thread = np.arange(32)
    element = np.arange(m // 4)
    row = thread // 4 + 8 * (element // 2)[:, None]
    return row * 8 + 2 * (thread % 4) + (element % 2)[:, None]


def elements(registers: NDArray[Any], bits: int) -> NDArray[Any]:
    """Registers [n, 32] as their elements [n * per register, 32], low bits first."""
    if bits >= 32:
        return registers
    per = 32 // bits
    narrow = np.ascontiguousarray(registers.T).view(f"u{bits // 8}")
    return narrow.reshape(32, -1, per).transpose(1, 2, 0).reshape(-1, 32)


def gather(registers: NDArray[Any], rows: int, k: int, kind: str) -> NDArray[Any]:
    """A [rows, k], or B [n, k], from its registers: numbers, or integers."""
    bits = ELEMENT_BITS[kind]
    index = operand_index(rows, k, max(1, 32 // bits))
    matrix = np.empty(rows * k, f"u{bits // 8}")
    matrix[index] = elements(registers, bits)
    if kind in ("s8", "u8"):
        return matrix.view(np.int8 if kind == "s8" else np.uint8).astype(np.int64).reshape(rows, k)
    return decode(matrix, FORMATS[kind]).reshape(rows, k)


def multiply(
    form: Form,
    a: NDArray[Any],
    b: NDArray[Any],
    c: NDArray[Any],
    accumulation: str,
    metadata: NDArray[np.uint32] | None = None,
) -> NDArray[Any]:
    """D = A . B + C on register values [registers, 32]; returns those of D. metadata: of a sparse A, [32]."""
    m, n = form.m, form.n
    b_values = gather(b, n, form.k, form.b_type)
    if form.selector is None or metadata is None:
        a_values = gather(a, m, form.k, form.a_type)
    else:
        a_values = gather(a, m, form.k // 2, form.a_type)
        codes = sparsity.codes_of_warp(metadata, form.selector, form.a_type, form.k)
        b_values = sparsity.chosen(b_values, sparsity.kept_positions(codes, form.a_type))
    index = result_index(m)
    kind = form.d_type
    old = np.empty(m * n, np.uint64 if kind == "f64" else np.uint32)
    old[index] = elements(c, 16) if kind == "f16" else c
    result: NDArray[Any] = compute(form, a_values, b_values, old.reshape(m, n), accumulation).reshape(-1)[index]
    if kind == "f16":
        result = result[0::2] | result[1::2] << 16
    return result


def compute(form: Form, a: NDArray[Any], b: NDArray[Any], c: NDArray[Any], accumulation: str) -> NDArray[Any]:
    """Bits of D [m, n] from numbers, and the bits of C."""
    if form.d_type == "s32":
        return sums.integer_dot(a, b, c, form.saturate)
    with np.errstate(all="ignore"):
        if form.d_type == "f64":
            return _fused_sums(a, b, c)
        if form.a_type in ("e4m3", "e5m2") and accumulation == "tensor_core":
            return _compute_fp8(form, a, b, c)
        types = (form.a_type, form.b_type, form.d_type)
        return sums.dot(a, b, c, *types, accumulation, _STEP[form.a_type], sums.HOPPER)


def _fused_sums(a: NDArray[Any], b: NDArray[Any], c: NDArray[Any]) -> NDArray[Any]:
    """One fused multiply-add along K after the other, as an H200 does; the ISA leaves the order open."""
    total = np.ascontiguousarray(c).view(np.float64)
    for k in range(a.shape[1]):
        total = float_math.compute64("fma", "rn", *np.broadcast_arrays(a[:, k, None], b[None, :, k], total))
    return np.ascontiguousarray(total).view(np.uint64)


def _compute_fp8(form: Form, a: NDArray[Any], b: NDArray[Any], c: NDArray[Any]) -> NDArray[Any]:
    """What ptxas makes of fp8: two products of f16, of the lower and of the upper two of every four elements along K.

    C is added last, rounded to nearest. So it stands in the SASS for sm_90a and sm_100a; an H200 gives the same f32.
    """
    of_four = np.arange(a.shape[1]) % 4
    total = np.zeros(c.shape, np.uint32)
    for part in (of_four < 2, of_four >= 2):
        total = sums.dot(a[:, part], b[..., part], total, "f16", "f16", form.d_type, "tensor_core", 16, sums.HOPPER)
    kind = FORMATS[form.d_type]
    result = float_math.add(decode(c, kind), decode(total, kind))
    return np.asarray(float_math.finish(result, kind, "rn")).astype(np.uint32)
