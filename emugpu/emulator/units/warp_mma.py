"""The tensor core of one warp: mma.sync (PTX ISA 9.7.14.5), its fragments and its arithmetic.

A fragment is one matrix spread over the registers of 32 threads. Register r of thread t holds neighbours along K, of
row t / 4 of A, and of column t / 4 of B. The arithmetic follows the device's accumulation mode; on every GPU it is that
of an H200. No rule is published for the kinds that sm_120 adds, so their products are added in f32 in every mode.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from emugpu.emulator.units import float_math, sparsity, sums
from emugpu.emulator.units.formats import ELEMENT_BITS, FORMATS, decode

_STEP = {"f16": 16, "bf16": 16, "e4m3": 16, "e5m2": 16, "tf32": 8}
"""The elements along K that the tensor core adds at once. fp8 passes through it as f16."""


_RESULTS = {"f16": ("f16", "f32"), "e4m3": ("f16", "f32"), "e5m2": ("f16", "f32"), "bf16": ("f32",), "tf32": ("f32",),
            "f64": ("f64",)}  # fmt: skip


def results_of(a_type: str) -> tuple[str, ...]:
    """Returns the types that D can have in mma.sync, wmma and wgmma."""
    return _RESULTS.get(a_type, ("s32",))


class Scaling(NamedTuple):
    """How an mma.sync is block-scaled (PTX ISA 9.7.14.3).

    kind: mxf8f6f4, mxf4 or mxf4nvf4. vectors: the number of scale factors of a row of A, and of a column of B. type:
    that of the factors.
    """

    kind: str
    vectors: int
    type: str


class WarpMmaForm(NamedTuple):
    """The fixed parts of an mma.sync. saturate: s32 results saturate.

    selector: for a sparse A, the selector of the lanes whose metadata counts. kind: of an mma of sm_120. scaling: of a
    block-scaled one.
    """

    m: int
    n: int
    k: int
    d_type: str
    a_type: str
    b_type: str
    saturate: bool = False
    selector: int | None = None
    kind: str = ""
    scaling: Scaling | None = None

    def bits(self, element: str) -> int:
        """Returns the bits that an element takes in a register; 6 and 4 bits take a byte unless the kind is mxf4."""
        return max(8, ELEMENT_BITS[element]) if self.kind.endswith("f8f6f4") else ELEMENT_BITS[element]

    def used(self, element: str) -> int:
        """Returns the bits of a register's byte in which an element of 6 or 4 bits lies; 0 if elements fill registers.

        A byte has 4 bits in its middle, and 6 bits at its lower end.
        """
        return 0 if self.bits(element) == ELEMENT_BITS[element] else 0x3C if element == "e2m1" else 0x3F

    @property
    def pairs(self) -> bool:
        """Returns whether a sparse A keeps pairs of neighbours: four of every eight elements along K."""
        return self.kind.startswith("mxf4")


class Matrix(NamedTuple):
    """A matrix in the registers of a warp. Each register holds neighbours of a row of A or C, or of a column of B.

    which: "a", "b", or "c" for C and D. rows, depth: rows and columns of A and C; columns and K of B. bits: size of an
    element. registers: their number, of 32 bits each, or 64 for f64. used: as `WarpMmaForm.used` says.
    """

    which: str
    rows: int
    depth: int
    bits: int
    registers: int
    used: int = 0

    @property
    def width(self) -> int:
        return max(32, self.bits)


@lru_cache(maxsize=64)
def places(matrix: Matrix) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Returns (row, first item along the depth) of the content of each thread's registers: [registers, 32] each."""
    thread = np.arange(32)
    # A register of C holds one element of a pair of neighbours if it has no room for both.
    pair = 2 if matrix.which == "c" and matrix.bits == matrix.width else 1
    per = matrix.width // matrix.bits
    step = 4 * per * pair  # items along the depth in a block of 8 rows
    blocks = list(itertools.product(range(matrix.depth // step), range(matrix.rows // 8)))
    if matrix.which == "b":
        blocks.sort(key=lambda block: block[1])
    found = [
        (8 * down + thread // 4, step * right + per * pair * (thread % 4) + per * item)
        for right, down in blocks
        for item in range(pair)
    ]
    repeats = matrix.registers // len(found)
    row, item = (np.array([place[axis] for place in found] * repeats) for axis in (0, 1))
    return row, item


@lru_cache(maxsize=64)
def _index(matrix: Matrix) -> NDArray[np.intp]:
    """Returns the flat index row * depth + item of each element [registers, threads * items], low bits first."""
    row, item = places(matrix)
    items = np.arange(matrix.width // matrix.bits)
    return ((row * matrix.depth + item)[..., None] + items).reshape(matrix.registers, -1)


def from_registers(registers: NDArray[Any], matrix: Matrix) -> NDArray[Any]:
    """Returns the matrix's elements as unsigned integers [rows, depth]."""
    if matrix.bits >= 8:
        elements = np.ascontiguousarray(registers).view(f"u{matrix.bits // 8}")
    else:
        shifts = np.arange(0, matrix.width, matrix.bits, dtype=np.uint32)
        elements = (registers[..., None] >> shifts & (1 << matrix.bits) - 1).reshape(matrix.registers, -1)
    found = np.empty(matrix.rows * matrix.depth, elements.dtype)
    found[_index(matrix)] = elements
    return found.reshape(matrix.rows, matrix.depth)


def to_registers(bits: NDArray[Any], matrix: Matrix) -> NDArray[Any]:
    """Returns registers from elements of 16 bits and more, as the inverse of `from_registers`."""
    found = bits.reshape(-1)[_index(matrix)]
    return found if matrix.bits == matrix.width else found.astype(np.uint16).view(np.uint32)


def scale_bytes(words: NDArray[np.uint32], rows: int, thread: int, byte: int, vectors: int) -> NDArray[np.uint8]:
    """Returns the bytes [rows, vectors] that a warp's register [32] holds of scale_A (16 rows) or scale_B (8 columns).

    A pair of lanes in each quad, which ``thread`` chooses, holds those of rows g and g + 8 of A; one lane of each quad
    those of column g of B (PTX ISA 9.7.14.3). CUTLASS's mma_traits_sm120.hpp says which lane of a pair has row g + 8.
    """
    row = np.arange(rows)
    lane = 4 * (row % 8) + (2 * thread + row // 8 if rows == 16 else thread)
    return np.ascontiguousarray(words, "<u4").view(np.uint8).reshape(32, 4)[lane, byte : byte + vectors]


def spread(
    operands: Sequence[tuple[NDArray[Any], Matrix]], result: Matrix, scales: Sequence[NDArray[np.uint8]] = ()
) -> NDArray[Any]:
    """Returns the undefined bits of the registers of D = A . B + C, from those of A, B, C and the scale factors.

    An element of D is undefined if an element of its row of A, of its column of B, a factor of these, or the element of
    C is.
    """
    a, b, c = (_has_undefined(*operand) for operand in operands)
    of_a, of_b = (np.logical_or.reduce(x, axis=1) for x in (a, b))
    if scales:
        of_a, of_b = of_a | scales[0].any(axis=1), of_b | scales[1].any(axis=1)
    undefined = of_a[:, None] | of_b[None, :] | c
    everything = np.array((1 << result.bits) - 1, f"u{result.bits // 8}")
    return to_registers(np.where(undefined, everything, 0).astype(everything.dtype), result)


def _has_undefined(registers: NDArray[Any], matrix: Matrix) -> NDArray[Any]:
    """Returns which elements have an undefined bit that counts."""
    bits = from_registers(registers, matrix)
    if matrix.used:
        bits = bits & matrix.used
    return bits.astype(bool)


def numbers(bits: NDArray[Any], kind: str) -> NDArray[Any]:
    """Returns the numbers or integers that elements encode."""
    if kind in ("s8", "s4"):
        half = 1 << (ELEMENT_BITS[kind] - 1)
        return (bits.astype(np.int64) ^ half) - half
    return bits.astype(np.int64) if kind in ("u8", "u4", "b1") else decode(bits, FORMATS[kind])


def _operand(form: WarpMmaForm, registers: NDArray[Any], which: str, rows: int, k: int, kind: str) -> NDArray[Any]:
    bits = form.bits(kind)
    elements = from_registers(registers, Matrix(which, rows, k, bits, len(registers)))
    return numbers(elements >> 2 if kind == "e2m1" and bits == 8 else elements, kind)


def multiply(
    form: WarpMmaForm,
    a: NDArray[Any],
    b: NDArray[Any],
    c: NDArray[Any],
    accumulation: str,
    metadata: NDArray[np.uint32] | None = None,
    scales: Sequence[NDArray[np.uint8]] = (),
) -> NDArray[Any]:
    """Returns the registers [registers, 32] of D = A . B + C.

    metadata: [32], for a sparse A. scales: bytes of the factors of A [m, vectors] and of B [n, vectors].
    """
    m, n = form.m, form.n
    b_values = _operand(form, b, "b", n, form.k, form.b_type)
    if form.selector is None or metadata is None:
        a_values = _operand(form, a, "a", m, form.k, form.a_type)
    else:
        a_values = _operand(form, a, "a", m, form.k // 2, form.a_type)
        if form.pairs:
            codes = sparsity.codes_of_warp(metadata, form.selector, "e4m3", form.k // 2)
            kept = sparsity.kept_positions(codes, "e4m3")
            whole = np.zeros((m, form.k))
            np.put_along_axis(whole, np.stack([2 * kept, 2 * kept + 1], axis=-1).reshape(m, -1), a_values, axis=1)
            a_values = whole
        else:
            codes = sparsity.codes_of_warp(metadata, form.selector, form.a_type, form.k)
            b_values = sparsity.chosen(b_values, sparsity.kept_positions(codes, form.a_type))
    result = Matrix("c", m, n, ELEMENT_BITS[form.d_type], len(c))
    of_c = from_registers(c, result)
    if form.scaling:
        kind, _, scale_type = form.scaling
        factors = [decode(codes, FORMATS[scale_type]) for codes in scales]
        types = (form.a_type, form.b_type, scale_type)
        bits = sums.scaled_dot(kind, types, a_values, b_values, of_c, (factors[0], factors[1]), "f32")
    elif form.kind:
        with np.errstate(all="ignore"):
            types = (form.a_type, form.b_type, form.d_type)
            bits = sums.dot(a_values, b_values, of_c, *types, "f32", form.k, sums.BLACKWELL)
    else:
        bits = compute(form, a_values, b_values, of_c, accumulation)
    return to_registers(bits, result)


def compute(form: WarpMmaForm, a: NDArray[Any], b: NDArray[Any], c: NDArray[Any], accumulation: str) -> NDArray[Any]:
    """Returns the bits of D [m, n] from numbers, and the bits of C."""
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
    """Computes one fused multiply-add after another along K, as an H200 does. The ISA leaves the order open."""
    total = np.ascontiguousarray(c).view(np.float64)
    for k in range(a.shape[1]):
        total = float_math.compute64("fma", "rn", *np.broadcast_arrays(a[:, k, None], b[None, :, k], total))
    return np.ascontiguousarray(total).view(np.uint64)


def _compute_fp8(form: WarpMmaForm, a: NDArray[Any], b: NDArray[Any], c: NDArray[Any]) -> NDArray[Any]:
    """Computes fp8 as ptxas compiles it: as two f16 products.

    They are those of the lower and of the upper two of every four elements along K. C is added last, rounded to
    nearest. This is in the SASS for sm_90a and sm_100a, and an H200 gives the same f32.
    """
    of_four = np.arange(a.shape[1]) % 4
    total = np.zeros(c.shape, np.uint32)
    for part in (of_four < 2, of_four >= 2):
        total = sums.dot(a[:, part], b[..., part], total, "f16", "f16", form.d_type, "tensor_core", 16, sums.HOPPER)
    kind = FORMATS[form.d_type]
    result = float_math.add(decode(c, kind), decode(total, kind))
    return np.asarray(float_math.finish(result, kind, "rn")).astype(np.uint32)
