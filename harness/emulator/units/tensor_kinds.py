"""tcgen05.mma of every kind and form, one instruction at a time (PTX ISA 9.7.16.10).

`mma` has the short way for what kernels do most: kind::f16, both operands in shared memory. Here is the rest: tf32, fp8
and its relatives, integers, block scaling, A in tensor memory, ``.ws``, a scaled D.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.emulator.errors import Fault
from harness.emulator.memory.descriptors import DEPTH, Shape, decode, decode_sm100
from harness.emulator.memory.tmem import LANES, TensorMemory, split_address
from harness.emulator.units import formats, numerics, sums
from harness.emulator.units.mma import Block, Cta, accumulator_layout
from harness.emulator.units.operands import AnyOperand, any_operand, to_numbers

QUADRANT = 32
A_COLUMNS = 8
"""32-bit columns that a row of A takes in tensor memory."""


Warn = Callable[[str, str], None]


class KindMma(NamedTuple):
    """One instruction. a: descriptor, or tensor memory address if ``a_in_tmem``. vectors: scale factors a row and
    operand, 0 without block scaling; scales: the addresses of those of A and B. shift: D is divided by 2^shift first.
    """

    kind: str
    d_address: int
    a: int
    a_in_tmem: bool
    b_descriptor: int
    idesc: int
    accumulate: bool
    cta_group: int
    lane_mask: tuple[int, ...] | None
    shift: int = 0
    weights: bool = False
    vectors: int = 0
    scales: tuple[int, int] = (0, 0)

    def shape(self) -> Shape:
        return decode(self.kind, self.idesc, self.cta_group, self.weights)

    def operands(self) -> tuple[AnyOperand | None, AnyOperand]:
        """A (None if it is in tensor memory) and B, of one CTA."""
        shape, depth = self.shape(), DEPTH[self.kind]
        packed = self.kind in ("mxf4", "mxf4nvf4")
        a = None
        if not self.a_in_tmem:
            rows = shape.m // self.cta_group
            a = any_operand(decode_sm100(self.a), rows, depth, shape.a_major, shape.a_type, packed)
        columns = shape.n // self.cta_group
        return a, any_operand(decode_sm100(self.b_descriptor), columns, depth, shape.b_major, shape.b_type, packed)

    def layout(self) -> tuple[list[Block], int, int]:
        """The blocks of D in each CTA's tensor memory, and its first and one-past-last column."""
        shape = self.shape()
        if self.weights and shape.m < LANES:
            return _weights_layout(self.d_address, shape.m, shape.n)
        return accumulator_layout(self.d_address, shape.m, shape.n, self.cta_group)

    @property
    def flops(self) -> int:
        shape = self.shape()
        return 2 * shape.m * shape.n * DEPTH[self.kind]


@lru_cache(maxsize=256)
def _weights_layout(d_address: int, m: int, n: int) -> tuple[list[Block], int, int]:
    """Layouts E and G of ``.ws``: parts of the columns one above the other, as many as rows leave room for."""
    lane, column = split_address(d_address)
    if lane:
        raise Fault(f"tcgen05.mma.ws D address {d_address:#x}: lane {lane} must be 0", "operand")
    parts = LANES // m
    width = n // parts
    blocks = [
        Block(
            slice(m * p, m * (p + 1)), slice(column, column + width), (slice(0, m), slice(p * width, (p + 1) * width))
        )
        for p in range(parts)
    ]
    return blocks, column, column + width


def a_lanes(address: int, rows: int, pair_halves: bool) -> NDArray[np.intp]:
    """Lanes of the rows of an A in tensor memory: those of D."""
    lane, _ = split_address(address)
    row = np.arange(rows)
    if rows in (LANES, QUADRANT) or pair_halves:
        return row + lane
    return row % 16 + 32 * (row // 16) + lane


def multiply(what: KindMma, ctas: Sequence[Cta], accumulation: str, warn: Warn) -> int:
    """Execute it on one CTA or a pair; returns the operations, 2 * M * N * K. warn: is told of a rule and a breach."""
    if len(ctas) != what.cta_group:
        raise Fault(f"tcgen05.mma with cta_group::{what.cta_group} needs {what.cta_group} CTAs, got {len(ctas)}")
    shape = what.shape()
    a_operand, b_operand = what.operands()
    b = np.concatenate([_fetch(cta, b_operand) for cta in ctas])
    if a_operand is not None:
        a = np.concatenate([_fetch(cta, a_operand) for cta in ctas])
    else:
        a = np.concatenate([_fetch_from_tmem(cta.tmem, what, shape) for cta in ctas])
    if shape.negate:
        a = -a
    blocks, first, end = what.layout()
    rows = shape.m // len(ctas)
    old = np.zeros((shape.m, shape.n), np.uint32)
    for i, cta in enumerate(ctas):
        _claim(cta.tmem, blocks, first, end, what.accumulate)
        if what.accumulate:
            for block in blocks:
                old[i * rows : (i + 1) * rows][block.target] = cta.tmem.data[block.lanes, block.columns]
    if what.shift and what.accumulate:
        c = old.view(np.float32) if shape.d_type == "f32" else numerics.f16_to_f32(old.astype(np.uint16))
        c = np.ldexp(c, -what.shift)
        old = c.view(np.uint32) if shape.d_type == "f32" else numerics.f32_to_f16_storage(c)
    if what.vectors:
        result = _compute_scaled(what, shape, ctas, a, b, old, accumulation, warn)
    else:
        result = compute(shape, a, b, old, None, accumulation)
    kept = _kept(what)
    for i, cta in enumerate(ctas):
        share = result[i * rows : (i + 1) * rows]
        for block in blocks:
            written = slice(None) if kept is None else ~kept[i, block.lanes]
            cta.tmem.data[block.lanes, block.columns][written] = share[block.target][written]
            cta.tmem.valid[block.lanes, block.columns][written] = True
    return what.flops


def _fetch(cta: Cta, operand: AnyOperand) -> NDArray[Any]:
    cta.shared.check_chunks(operand.positions, operand)
    return operand.numbers(cta.shared.chunks.take(operand.positions))


def _read(tmem: TensorMemory, lanes: NDArray[np.intp], columns: NDArray[np.intp], what: str) -> NDArray[np.uint32]:
    """Written words of tensor memory, at lanes and columns that are broadcast together."""
    first, end = int(columns.min()), int(columns.max()) + 1
    tmem.check_allocated(first, end, what)
    tmem.settle(first, end)
    written = tmem.valid[lanes, columns]
    if not written.all():
        lane, column = (int(x[~written][0]) for x in np.broadcast_arrays(lanes, columns))
        at = f"lane {lane}, column {column}"
        fault = Fault(f"{what} is read at tensor memory {at}, which was never written", "uninitialised")
        tmem.unwritten.read(fault, tmem.data, tmem.valid, (lanes, columns))
    return np.ascontiguousarray(tmem.data[lanes, columns])


def _fetch_from_tmem(tmem: TensorMemory, what: KindMma, shape: Shape) -> NDArray[Any]:
    if shape.a_type in ("e2m3", "e3m2") or (shape.a_type == "e2m1" and what.kind in ("f8f6f4", "mxf8f6f4")):
        raise Fault(f"A of type {shape.a_type} in tensor memory is not implemented", "unsupported")
    rows = shape.m // what.cta_group
    lanes = a_lanes(what.a, rows, what.cta_group == 2 and rows == 64)
    column = split_address(what.a)[1]
    words = _read(tmem, lanes[:, None], column + np.arange(A_COLUMNS), "A of tcgen05.mma")
    return to_numbers(words.view(np.uint8), shape.a_type, what.kind in ("mxf4", "mxf4nvf4"))


def _claim(tmem: TensorMemory, blocks: list[Block], first: int, end: int, accumulate: bool) -> None:
    """D must be allocated, and, if it is added to, written; what others have put off on it is done first."""
    tmem.check_allocated(first, end, "tcgen05.mma D")
    for write in [w for w in tmem.pending if w.first_column < end and first < w.end_column]:
        write.flush()
        write.retire()
    for block in blocks if accumulate else ():
        tmem.check_accumulator(block.lanes, block.columns)


def _kept(what: KindMma) -> NDArray[np.bool_] | None:
    if what.lane_mask is None or not any(what.lane_mask):
        return None
    packed = np.array(what.lane_mask, "<u4").view(np.uint8)
    return np.unpackbits(packed, bitorder="little").astype(np.bool_).reshape(what.cta_group, LANES)


# ---- scale factors ----


def scale_columns(address: int, rows: int) -> slice:
    """Columns that hold the scale factors of so many rows of A, or columns of B: 32 of them each."""
    column = split_address(address)[1]
    return slice(column, column + -(-rows // QUADRANT))


def _compute_scaled(
    what: KindMma,
    shape: Shape,
    ctas: Sequence[Cta],
    a: NDArray[Any],
    b: NDArray[Any],
    old: NDArray[np.uint32],
    accumulation: str,
    warn: Warn,
) -> NDArray[np.uint32]:
    """Bits of D [M, N], part by part, as every CTA has scale factors in each quadrant of its lanes.

    A quadrant of D is computed with its own. They should be the same in all; where they are not, a B200 was seen to do
    so for row 0 (sf-tensor/tcgen05, tcgen05_block_scaled_probe.cu, 2026).
    """
    result = np.zeros_like(old)
    rows = shape.m // len(ctas)
    for i, cta in enumerate(ctas):
        for block in what.layout()[0]:
            columns = block.target[1]
            for quadrant in range(block.lanes.start // QUADRANT, block.lanes.stop // QUADRANT):
                first = block.target[0].start + quadrant * QUADRANT - block.lanes.start
                own = np.arange(first, first + QUADRANT)
                numbers = np.arange(columns.start, columns.stop)
                scales = (
                    _scales([cta], what, shape, what.scales[0], own, shape.a_id, quadrant, warn),
                    _scales([cta, *ctas], what, shape, what.scales[1], numbers, shape.b_id, quadrant, warn),
                )
                part = slice(i * rows + first, i * rows + first + QUADRANT)
                result[part, columns] = compute(shape, a[part], b[columns], old[part, columns], scales, accumulation)
    return result


def _scales(
    ctas: Sequence[Cta],
    what: KindMma,
    shape: Shape,
    address: int,
    numbers: NDArray[np.intp],
    identifier: int,
    quadrant: int,
    warn: Warn,
) -> NDArray[np.float64]:
    """Those of some rows of A, or columns of B: number r has lane r % 32 of a quadrant and column r / 32, as many bytes
    as there are vectors from the one the descriptor names on. ctas: whose they are, and others that have a copy.
    """
    if identifier % what.vectors:
        raise Fault(f"scale factor id {identifier} must be a multiple of {what.vectors}", "descriptor")
    lanes, columns = numbers % QUADRANT, split_address(address)[1] + numbers // QUADRANT
    words = _read(ctas[0].tmem, lanes + quadrant * QUADRANT, columns, "a scale factor of tcgen05.mma")
    copies = (lanes + QUADRANT * np.arange(4)[:, None], columns)
    used = np.uint32(((1 << 8 * what.vectors) - 1) << 8 * identifier)
    if any(((cta.tmem.data[copies] ^ words) & used).any() or not cta.tmem.valid[copies].all() for cta in ctas):
        warn(
            "scale-copies", "its scale factors differ between quadrants of 32 lanes, or CTAs, or are not in all of them"
        )
    codes = words.reshape(-1, 1).view(np.uint8)
    return formats.decode(codes[:, identifier : identifier + what.vectors], formats.FORMATS[shape.scale])


# ---- arithmetic ----


def compute(
    shape: Shape,
    a: NDArray[Any],
    b: NDArray[Any],
    old: NDArray[np.uint32],
    scales: tuple[NDArray[Any], NDArray[Any]] | None,
    accumulation: str,
) -> NDArray[np.uint32]:
    """Bits of D [M, N] = A . B^T + the old D: numbers [M, K] and [N, K], and their scale factors [.., vectors].

    B and its factors may also be those of each row of A, [M, N, ..].
    """
    if shape.d_type == "s32":
        return sums.integer_dot(a, b, old, shape.saturate)
    if scales is not None:
        types = (shape.a_type, shape.b_type, shape.scale)
        return sums.scaled_dot(shape.kind, types, a, b, old, scales, accumulation)
    types = (shape.a_type, shape.b_type, shape.d_type)
    return sums.dot(a, b, old, *types, accumulation, a.shape[1], sums.BLACKWELL)
