"""tcgen05.mma of every kind and form, executed at once (PTX ISA 9.7.16.10).

`mma` defers and collects what it can. The rest is here, and everything for which the bits of single sums matter:
integers, results in f16, sparse A, ``.ws``, lane masks, a scaled D, and A in tensor memory if it is scaled or narrow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from math import gcd
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emugpu.emulator.errors import Fault
from emugpu.emulator.memory.bytes import ALL_VALID
from emugpu.emulator.memory.descriptors import InstructionDescriptor
from emugpu.emulator.memory.tmem import CHUNK_COLUMNS, COLUMNS, LANES, TensorMemory, UndefinedWords, split_address
from emugpu.emulator.units import formats, numerics, sums
from emugpu.emulator.units.mma_instruction import (
    QUADRANT,
    WORD_BYTES,
    Mma,
    TensorCoreCta,
    TensorMemoryBlock,
    a_lanes,
    metadata_columns,
    scale_places,
)
from emugpu.emulator.units.operands import Operand, table, to_numbers
from emugpu.emulator.units.sparsity import chosen

CODES, TF32_CODES = (4, 8, 12, 9, 13, 6, 14), (4, 14)
"""The defined codes of sparsity metadata: two indices of two bits each. Other codes may select one element twice."""
SPARSE_ROWS = 16
"""Rows that share one block of sparsity metadata."""
A_NAME = "A of tcgen05.mma"
Warn = Callable[[str, str], None]


def multiply(
    what: Mma, ctas: Sequence[TensorCoreCta], accumulation: str, warn: Warn, undefined: Sequence[UndefinedWords]
) -> int:
    """Executes an MMA on one CTA or a pair, whose operands in shared memory make these words of D undefined.

    Returns the operations, 2 * M * N * K. warn: called with rule and message.
    """
    shape = what.shape()
    a_operand, b_operand = what.operands()
    b = np.concatenate([_fetch(cta, b_operand) for cta in ctas])
    if a_operand is not None:
        a = np.concatenate([_fetch(cta, a_operand) for cta in ctas])[None]
    else:
        a = np.concatenate([_fetch_from_tmem(cta.tmem, what, shape) for cta in ctas], axis=1)
    if shape.negate:
        a = -a
    blocks, first, end = what.layout()
    rows = shape.m // len(ctas)
    old = np.zeros((shape.m, shape.n), np.uint32)
    for i, cta in enumerate(ctas):
        claim(cta.tmem, blocks, first, end, what.accumulate)
        if what.accumulate:
            for block in blocks:
                old[i * rows : (i + 1) * rows][block.target] = cta.tmem.data[block.lanes, block.columns]
    if what.shift and what.accumulate:
        c = old.view(np.float32) if shape.d_type == "f32" else numerics.f16_to_f32(old.astype(np.uint16))
        c = np.ldexp(c, -what.shift)
        old = c.view(np.uint32) if shape.d_type == "f32" else numerics.f32_to_f16_storage(c)
    if what.vectors or what.sparse:
        result = _compute_in_parts(what, shape, ctas, a, b, old, accumulation, warn)
    else:
        parts = zip(a, np.split(b, len(a)), np.split(old, len(a), axis=1), strict=True)
        result = np.concatenate([compute(shape, *part, None, accumulation) for part in parts], axis=1)
    kept = _kept(what)
    for i, cta in enumerate(ctas):
        share = result[i * rows : (i + 1) * rows]
        for block in blocks:
            written = slice(None) if kept is None else ~kept[i, block.lanes]
            was_undefined = cta.tmem.is_undefined(block.lanes, block.columns) & what.accumulate
            cta.tmem.data[block.lanes, block.columns][written] = share[block.target][written]
            cta.tmem.valid[block.lanes, block.columns][written] = True
            cta.tmem.valid[block.lanes, block.columns][written] &= ~was_undefined[written]
            for one in undefined:
                words = one.words[i * rows : (i + 1) * rows][block.target].copy()
                if kept is not None:
                    words[kept[i, block.lanes]] = False
                cta.tmem.undefine(block.lanes, block.columns, words, one.origin)
    return what.flops


def _fetch(cta: TensorCoreCta, operand: Operand) -> NDArray[Any]:
    return operand.fetched(cta.shared.chunks.take(operand.positions))


def _read(tmem: TensorMemory, lanes: NDArray[np.intp], columns: NDArray[np.intp], what: str) -> NDArray[np.uint32]:
    """Returns words of tensor memory that must be written, at lanes and columns that are broadcast together."""
    first, end = int(columns.min()), int(columns.max()) + 1
    tmem.check_allocated(first, end, what)
    tmem.settle(first, end)
    written = tmem.valid[lanes, columns]
    if not written.all():
        lane, column = (int(x[~written][0]) for x in np.broadcast_arrays(lanes, columns))
        at = f"lane {lane}, column {column}"
        fault = Fault(f"{what} is read at tensor memory {at}, which was never written", "uninitialised")
        tmem.unwritten.read(fault, tmem.data, tmem.valid, (lanes, columns), spreads=True)
    return np.ascontiguousarray(tmem.data[lanes, columns])


def read_a(tmem: TensorMemory, what: Mma) -> NDArray[np.uint32]:
    """Returns the words of an A in tensor memory, [parts, rows, columns]."""
    return _read(tmem, a_lanes(what)[..., None], np.array(what.a_columns), A_NAME)


def check_a(tmem: TensorMemory, what: Mma, chunks: NDArray[np.intp]) -> None:
    """Does what `read_a` does except for reading. chunks: those of the rows of A."""
    columns = what.a_columns
    tmem.check_allocated(columns.start, columns.stop, A_NAME)
    tmem.settle(columns.start, columns.stop)
    if (tmem.valid_chunks.take(chunks) != ALL_VALID[CHUNK_COLUMNS]).any():
        read_a(tmem, what)


def _fetch_from_tmem(tmem: TensorMemory, what: Mma, shape: InstructionDescriptor) -> NDArray[Any]:
    """Returns A [parts, rows, K], one for each part of the columns of D."""
    if shape.a_type in ("e2m3", "e3m2"):
        raise Fault(f"A of type {shape.a_type} in tensor memory is not implemented", "unsupported")
    if what.sparse:
        raise Fault("a sparse A in tensor memory is not implemented", "unsupported")
    lanes = a_lanes(what)
    raw = read_a(tmem, what).reshape(-1, len(what.a_columns)).view(np.uint8)
    if shape.a_type == "e2m1" and what.kind in ("f8f6f4", "mxf8f6f4"):
        # One byte each, of which bits 2 to 5 count, as in Triton's test_tcgen05_mma_scaled_lhs_tmem (2026).
        numbers = table("e2m1").take(raw >> 2)
    else:
        numbers = to_numbers(raw, shape.a_type, what.kind in ("mxf4", "mxf4nvf4"))
    return numbers.reshape(*lanes.shape, -1)


def claim(tmem: TensorMemory, blocks: list[TensorMemoryBlock], first: int, end: int, accumulate: bool) -> None:
    """Checks that D is allocated and, if it is added to, written. Pending writes on it are carried out first."""
    tmem.check_allocated(first, end, "tcgen05.mma D")
    tmem.retire(first, end)
    for block in blocks if accumulate else ():
        tmem.check_accumulator(block.lanes, block.columns)


def _kept(what: Mma) -> NDArray[np.bool_] | None:
    if what.lane_mask is None or not any(what.lane_mask):
        return None
    packed = np.array(what.lane_mask, "<u4").view(np.uint8)
    return np.unpackbits(packed, bitorder="little").astype(np.bool_).reshape(what.cta_group, LANES)


def _compute_in_parts(
    what: Mma,
    shape: InstructionDescriptor,
    ctas: Sequence[TensorCoreCta],
    a: NDArray[Any],
    b: NDArray[Any],
    old: NDArray[np.uint32],
    accumulation: str,
    warn: Warn,
) -> NDArray[np.uint32]:
    """Returns the bits of D [M, N], computed part by part.

    The scale factors and metadata of a part lie in its own lanes. So every CTA has scale factors in each quadrant. They
    should be the same in all quadrants. If they are not, a B200 was seen to take those of its quadrant for row 0
    (sf-tensor/tcgen05, tcgen05_block_scaled_probe.cu, 2026). Sparsity metadata belongs to the rows of D in its lanes.
    If the factors are the same and A is not sparse, all lanes of a CTA are one part.
    """
    result = np.zeros_like(old)
    rows, step = shape.m // len(ctas), SPARSE_ROWS if what.sparse else QUADRANT
    whole = not what.sparse and agreed_scales(ctas, what) is not None
    for i, cta in enumerate(ctas):
        for block in what.layout()[0]:
            columns = block.target[1]
            if whole:
                step = block.lanes.stop - block.lanes.start
            for lane in range(block.lanes.start, block.lanes.stop, step):
                own = block.target[0].start + lane - block.lanes.start + np.arange(step)
                part, numbers = i * rows + own, np.arange(columns.start, columns.stop)
                scales = None
                if what.vectors:
                    scales = (
                        _scales(cta.tmem, lane, what, shape, 0, own, [] if whole else [cta], warn),
                        _scales(cta.tmem, lane, what, shape, 1, numbers, [] if whole else ctas, warn),
                    )
                of_a, of_b = a[columns.start * len(a) // shape.n][part], b[columns]
                if what.sparse:
                    of_a, of_b = _match(of_a, of_b, _kept_positions(cta.tmem, what, shape, lane, warn), shape)
                result[part, columns] = compute(shape, of_a, of_b, old[part, columns], scales, accumulation)
    return result


# ---- a sparse A ----


def _kept_positions(
    tmem: TensorMemory, what: Mma, shape: InstructionDescriptor, lane: int, warn: Warn
) -> NDArray[np.intp]:
    """Returns the positions along K of the kept elements of the 16 rows of D from a lane on: [rows, kept].

    A code of four bits keeps two of four elements; for tf32, one of two; for mxf4 and mxf4nvf4, two of four pairs. For
    types of 16 and 32 bits, lanes 0 to 7 of 16 hold four codes of a row in their lower half, and of the row eight below
    in their upper half; lanes 8 to 15 hold the next four. For other types, each row's lane holds eight codes in a
    column and eight in the next one. This is the layout of CuTe (mma_traits_sm100.hpp), of CUTLASS's examples 83 and
    84, and of kernels that were verified on a B200 (sf-tensor/tcgen05, 2026).
    """
    assert what.metadata is not None
    first, column = split_address(what.metadata)
    columns = metadata_columns(what)
    if column % 2 or first != split_address(what.d_address)[0]:
        raise Fault(
            f"sparsity metadata at {what.metadata:#x}: odd columns, and other lanes than those of D, are not supported",
            "unsupported",
        )
    lanes = lane + np.arange(SPARSE_ROWS)
    words = _read(tmem, lanes[:, None], np.arange(columns.start, columns.stop), "sparsity metadata of tcgen05.mma")
    if what.kind in ("f16", "tf32"):
        halves = words.view(np.uint16).reshape(2, 8, 2).transpose(2, 1, 0).reshape(SPARSE_ROWS, 2, 1)
        codes = (halves >> 4 * np.arange(4) & 15).reshape(SPARSE_ROWS, -1).astype(np.intp)
    else:
        codes = (words[:, :, None] >> 4 * np.arange(8) & 15).reshape(SPARSE_ROWS, -1).astype(np.intp)
    kept, start = np.stack([codes & 3, codes >> 2], axis=-1), np.arange(codes.shape[1])
    allowed = TF32_CODES if what.kind == "tf32" else CODES
    wrong = codes[~np.isin(codes, allowed)]
    if wrong.size:
        warn("sparse-metadata", f"sparsity metadata {int(wrong[0]):#x} is none of {', '.join(map(hex, allowed))}")
    if what.kind == "tf32":
        return 2 * start + (kept[..., 0] >> 1)
    if what.kind in ("mxf4", "mxf4nvf4"):
        kept = (2 * kept[..., None] + np.arange(2)).reshape(*codes.shape, 4)
    return (kept + what.depth // len(start) * start[:, None]).reshape(SPARSE_ROWS, -1)


def _match(
    a: NDArray[Any], b: NDArray[Any], positions: NDArray[np.intp], shape: InstructionDescriptor
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Returns A and B for `compute`: B [rows, columns, kept]; for the mxf4 kinds A with zeros at masked elements."""
    if shape.kind not in ("mxf4", "mxf4nvf4"):
        return a, chosen(b, positions)
    whole = np.zeros((len(a), b.shape[1]), a.dtype)
    np.put_along_axis(whole, positions, a, axis=1)
    return whole, b


# ---- scale factors ----


def step_of_id(vectors: int) -> int:
    """Returns of what a scale factor's id, a byte of its word, is a multiple (PTX ISA 9.7.16.10.7)."""
    return gcd(vectors, WORD_BYTES)


def agreed_scales(ctas: Sequence[TensorCoreCta], what: Mma) -> list[tuple[NDArray[np.uint8], NDArray[np.uint8]]] | None:
    """Returns, for each CTA, the words of the scale factors of its rows of A, and those of B, as bytes [numbers, ..].

    None unless all copies were written and are equal.
    """
    positions, (rows, columns) = _scale_positions(what), what.scaled
    of_a = scale_places(what)[0].columns.size
    first, found = None, []
    for cta in ctas:
        copies = cta.tmem.data.take(positions)
        if not cta.tmem.valid.take(positions).all() or (copies != copies[0]).any():
            return None
        a, b = (part.view(np.uint8) for part in (copies[0, :of_a], copies[0, of_a:]))
        first = b if first is None else first
        if (b != first).any():
            return None
        found.append((a.reshape(rows, -1), b.reshape(columns, -1)))
    return found


@lru_cache(maxsize=1024)
def _scale_positions(what: Mma) -> NDArray[np.intp]:
    """Returns the flat indices of the words of A and then of B, [4 copies, words]."""
    places = scale_places(what)
    return np.hstack([(p.lanes[..., None] * COLUMNS + p.columns).reshape(len(p.lanes), -1) for p in places])


def _scales(
    tmem: TensorMemory,
    lane: int,
    what: Mma,
    shape: InstructionDescriptor,
    operand: int,
    numbers: NDArray[np.intp],
    others: Sequence[TensorCoreCta],
    warn: Warn,
) -> NDArray[np.float64]:
    """Returns the scale factors of some rows of A (operand 0) or columns of B (operand 1), from the quadrant of a lane.

    Each has as many bytes as there are vectors, starting with the byte that the descriptor names. others: CTAs whose
    copies should be equal.
    """
    identifier, places = (shape.a_id, shape.b_id)[operand], scale_places(what)[operand]
    if identifier % step_of_id(what.vectors):
        raise Fault(f"scale factor id {identifier} must be a multiple of {step_of_id(what.vectors)}", "descriptor")
    copies = (places.lanes[:, numbers, None], places.columns[numbers])
    used = slice(identifier, identifier + what.vectors)
    words = _read(tmem, copies[0][lane // QUADRANT], copies[1], "a scale factor of tcgen05.mma")
    codes = words.view(np.uint8)[:, used]
    for cta in others:
        found = np.ascontiguousarray(cta.tmem.data[copies]).view(np.uint8)[..., used]
        if (found != codes).any() or not cta.tmem.valid[copies].all():
            text = "its scale factors differ between quadrants of 32 lanes, or CTAs, or are not in all of them"
            warn("scale-copies", text)
            break
    return formats.decode(codes, formats.FORMATS[shape.scale])


# ---- arithmetic ----


def compute(
    shape: InstructionDescriptor,
    a: NDArray[Any],
    b: NDArray[Any],
    old: NDArray[np.uint32],
    scales: tuple[NDArray[Any], NDArray[Any]] | None,
    accumulation: str,
) -> NDArray[np.uint32]:
    """Returns the bits of D [M, N] = A . B^T + old D, from numbers [M, K] and [N, K] and scale factors [.., vectors].

    B and its factors may also differ for each row of A: [M, N, ..].
    """
    if shape.d_type == "s32":
        return sums.integer_dot(a, b, old, shape.saturate)
    if scales is not None:
        if accumulation == "tensor_core" and shape.is_k96:
            raise Fault("accumulation=tensor_core: no rules of the sums of K = 96 are published", "unsupported")
        types = (shape.a_type, shape.b_type, shape.scale)
        return sums.scaled_dot(shape.kind, types, a, b, old, scales, accumulation)
    types = (shape.a_type, shape.b_type, shape.d_type)
    return sums.dot(a, b, old, *types, accumulation, a.shape[1], sums.BLACKWELL)
