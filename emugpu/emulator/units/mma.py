"""The tensor core of tcgen05.mma (PTX ISA 9.7.16.10).

Operands are read and checked when `MmaUnit.mma` is called. In "f32" accumulation the multiplication is deferred: the K
slices of one accumulator are collected, and multiplied in one BLAS call as soon as the accumulator is read or used
differently, or the panel is full. Only the order in which f32 sums are taken can differ. `tensor_kinds` executes at
once the instructions that cannot be deferred. A row of A with undefined bits makes a row of D undefined, and a column
of B a column.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emugpu.emulator.errors import Fault, UndefinedRead
from emugpu.emulator.memory.descriptors import InstructionDescriptor, Major
from emugpu.emulator.memory.tmem import CHUNK_COLUMNS, COLUMNS, TensorMemory, UndefinedWords, split_address
from emugpu.emulator.units.formats import ELEMENT_BITS
from emugpu.emulator.units.mma_instruction import Mma, TensorCoreCta, a_lanes, scale_places
from emugpu.emulator.units.numerics import CANONICAL_NAN_F32
from emugpu.emulator.units.operands import PANEL_SLICES, Accumulation, Operand, Panels, table
from emugpu.emulator.units.tensor_kinds import Warn, agreed_scales, check_a, claim, multiply, step_of_id

LARGEST_FACTOR = 40
"""Up to this exponent of a ue8m0 scale factor, f32 holds all products exactly."""


@dataclass(frozen=True, eq=False)
class DecodedMma:
    """The decoded form of an instruction, which depends only on its descriptors.

    positions: chunk numbers in shared memory, of A, then of B. in_tmem: those in tensor memory, of A, if it is there.
    accumulator: two instructions with an equal value here have the same D and form, and may be multiplied together.
    """

    accumulator: tuple[Any, ...]
    shape: InstructionDescriptor
    a: Operand
    b: Operand
    positions: NDArray[np.intp]
    in_tmem: NDArray[np.intp]
    flops: int

    def numbers(self, chunks: NDArray[np.complex128]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Returns A [M, slices * K] and B [N, slices * K] from the fetched chunks [slices, CTAs, positions]."""
        behind_a = self.a.positions.size
        return self.a.numbers(chunks[..., :behind_a]), self.b.numbers(chunks[..., behind_a:])


@lru_cache(maxsize=4096)
def decode_mma(what: Mma) -> DecodedMma | None:
    """Returns the decoded form of an instruction, or None if its multiplication cannot be deferred."""
    shape = what.shape()
    a, b = what.operands()
    if shape.d_type != "f32" or what.lane_mask is not None or what.shift or what.weights or what.sparse:
        return None
    shared = [operand.positions.ravel() for operand in (a, b) if operand is not None]
    a = _in_tmem(what, shape) if a is None else a
    if a is None:
        return None
    in_tmem = a.positions.ravel() if what.a_in_tmem else np.empty(0, np.intp)
    forms = (what.kind, what.vectors, shape.m, shape.n, shape.a_type, shape.b_type, shape.scale, shape.negate)
    accumulator = (what.d_address, *forms, what.a_in_tmem, shape.a_major, shape.b_major)
    return DecodedMma(accumulator, shape, a, b, np.concatenate(shared), in_tmem, what.flops)


def _in_tmem(what: Mma, shape: InstructionDescriptor) -> Operand | None:
    """Returns an A in tensor memory, by the chunks of its rows; None if `tensor_kinds` must read it."""
    columns = what.a_columns
    if what.vectors or what.parts > 1 or ELEMENT_BITS[shape.a_type] < 8 or columns.start % CHUNK_COLUMNS:
        return None
    if split_address(what.a)[0] != split_address(what.d_address)[0] or columns.stop > COLUMNS:
        return None
    chunks = np.arange(columns.start, columns.stop, CHUNK_COLUMNS) // CHUNK_COLUMNS
    rows = a_lanes(what)[0][:, None] * (COLUMNS // CHUNK_COLUMNS)
    return Operand(rows + chunks, len(rows), shape.k, Major.K, shape.a_type)


Codes = tuple[NDArray[np.uint8], NDArray[np.uint8]]
"""The bytes of the scale factors of A [M, vectors] and of B [N, vectors]."""


def _scale_codes(ctas: Sequence[TensorCoreCta], what: Mma, shape: InstructionDescriptor) -> Codes | None:
    """Returns an instruction's scale factors. None unless all copies agree and f32 holds the scaled numbers exactly."""
    for cta in ctas:
        for columns in (span for places in scale_places(what) for span in places.spans):
            cta.tmem.check_allocated(columns.start, columns.stop, "a scale factor of tcgen05.mma")
            cta.tmem.settle(columns.start, columns.stop)
    words = agreed_scales(ctas, what)
    if words is None or (shape.a_id | shape.b_id) % step_of_id(what.vectors):
        return None
    a = np.concatenate([of_a[:, shape.a_id : shape.a_id + what.vectors] for of_a, _ in words])
    b = words[0][1][:, shape.b_id : shape.b_id + what.vectors]
    if shape.scale == "ue8m0" and any(np.abs(codes.astype(np.int16) - 127).max() > LARGEST_FACTOR for codes in (a, b)):
        return None
    return a, b


def _stop(fault: Fault) -> str:
    raise fault


def _undefined(ctas: Sequence[TensorCoreCta], what: Mma, origin: Callable[[Fault], str]) -> list[UndefinedWords]:
    """Returns the words of D [M, N] that undefined bits of operands in shared memory would decide, CTA by CTA."""
    shape, found = what.shape(), []
    for i, cta in enumerate(ctas):
        for axis, operand in enumerate(what.operands()):
            if operand is None:
                continue
            try:
                cta.shared.check_chunks(operand.positions, operand)
            except UndefinedRead as fault:
                words = np.zeros((shape.m, shape.n), np.bool_)
                lines = words if axis == 0 else words.T
                own = slice(i * operand.rows, (i + 1) * operand.rows)
                lines[own] = operand.undefined_rows(cta.shared.peek_chunks(operand.positions)[1])[:, None]
                found.append(UndefinedWords(words, origin(fault)))
    return found


class _PendingProduct:
    """K slices of one accumulator that were read but not multiplied yet, and their scale factors.

    It is registered in the tensor memory of every CTA of the pair. `accumulate`: whether the product adds to D.
    """

    def __init__(self, unit: MmaUnit, members: Sequence[TensorMemory], what: Mma, decoded: DecodedMma) -> None:
        self.unit = unit
        self.members = tuple(members)
        self.decoded = decoded
        self.blocks, self.first_column, self.end_column = what.layout()
        chunks = decoded.in_tmem.size + decoded.positions.size
        self.panel = unit.panels.take((PANEL_SLICES, len(members), chunks))
        self.scales: list[Codes] = []
        self.undefined: list[UndefinedWords] = []
        self.count = 0
        self.accumulate = what.accumulate
        for tmem in self.members:
            tmem.pending.append(self)

    def append(
        self,
        ctas: Sequence[TensorCoreCta],
        decoded: DecodedMma,
        scales: Codes | None,
        undefined: Sequence[UndefinedWords],
    ) -> None:
        for i, cta in enumerate(ctas):
            fetched = self.panel[self.count, i]
            if in_tmem := decoded.in_tmem.size:
                cta.tmem.chunks.take(decoded.in_tmem, out=fetched[:in_tmem], mode="clip")
            cta.shared.chunks.take(decoded.positions, out=fetched[in_tmem:], mode="clip")
        if scales is not None:
            self.scales.append(scales)
        self.undefined += undefined
        self.count += 1
        if self.count == 1:
            self._note()
        elif self.count == PANEL_SLICES:
            self.flush()

    def forget(self) -> None:
        """Drops the collected slices, because D is overwritten as a whole and they can have no effect."""
        self._clear()
        self.accumulate = False

    def _clear(self) -> None:
        self.count = 0
        self.scales.clear()
        self.undefined.clear()
        self._note()

    def _note(self) -> None:
        for tmem in self.members:
            tmem.note_readable()

    def flush(self) -> None:
        if not self.count:
            return
        shape = self.decoded.shape
        a, b = self.decoded.numbers(self.panel[: self.count])
        for numbers, codes in zip((a, b), zip(*self.scales, strict=True), strict=False):
            factors = table(shape.scale).take(np.stack(codes, axis=1)).reshape(len(numbers), -1, 1)
            blocks = numbers.reshape(*factors.shape[:2], -1)
            blocks *= factors
        product = a @ b.T
        if shape.negate:
            np.negative(product, out=product)
        rows = product.shape[0] // len(self.members)
        for i, tmem in enumerate(self.members):
            share = product[i * rows : (i + 1) * rows]
            for block in self.blocks:
                words = tmem.data[block.lanes, block.columns]
                target = words.view(np.float32)
                if self.accumulate:
                    target += share[block.target]
                else:
                    target[...] = share[block.target]
                    tmem.valid[block.lanes, block.columns] = True
                if np.isnan(target).any():
                    words[np.isnan(target)] = CANONICAL_NAN_F32
                for one in self.undefined:
                    tmem.undefine(
                        block.lanes, block.columns, one.words[i * rows : (i + 1) * rows][block.target], one.origin
                    )
        self._clear()
        self.accumulate = True

    def retire(self) -> None:
        for tmem in self.members:
            tmem.pending.remove(self)
        self.unit.panels.give(self.panel)


class MmaUnit:
    """Executes tcgen05.mma.

    Args:
        accumulation: "f32" multiplies and adds in f32 (exact for integers below 2^24). "tensor_core" follows the
            published rules of the hardware (`sums`), instruction by instruction, and is slow.
    """

    def __init__(self, accumulation: Accumulation = "f32") -> None:
        if accumulation not in ("f32", "tensor_core"):
            raise ValueError(f"accumulation '{accumulation}': must be f32 or tensor_core")
        self.accumulation = accumulation
        self.panels = Panels()

    def mma(self, ctas: Sequence[TensorCoreCta], what: Mma, warn: Warn, origin: Callable[[Fault], str] = _stop) -> int:
        """Computes D = A . B (+ D) on one CTA, or on a pair, even rank first. Returns the operations, 2 * M * N * K.

        On a pair, A is split by rows, B by columns, and D by rows; every address applies to both CTAs. warn: called
        with the rule and a message if a rule is broken. origin: returns where undefined bits come from that a read of
        an operand finds, or raises its fault.
        """
        if len(ctas) != what.cta_group:
            raise Fault(f"tcgen05.mma with cta_group::{what.cta_group} needs {what.cta_group} CTAs, got {len(ctas)}")
        decoded = decode_mma(what) if self.accumulation == "f32" else None
        scales = _scale_codes(ctas, what, decoded.shape) if decoded is not None and what.vectors else None
        if decoded is None or (what.vectors and scales is None):
            return multiply(what, ctas, self.accumulation, warn, _undefined(ctas, what, origin))
        try:
            for cta in ctas:
                cta.shared.check_chunks(decoded.positions, decoded)
            undefined = []
        except UndefinedRead:
            undefined = _undefined(ctas, what, origin)
        for cta in ctas if what.a_in_tmem else ():
            check_a(cta.tmem, what, decoded.in_tmem)
        self._pending(ctas, what, decoded).append(ctas, decoded, scales, undefined)
        return decoded.flops

    def _pending(self, ctas: Sequence[TensorCoreCta], what: Mma, decoded: DecodedMma) -> _PendingProduct:
        """Returns the pending product that collects the slices of D, and makes one if there is none."""
        for product in ctas[0].tmem.pending:
            if (
                isinstance(product, _PendingProduct)
                and product.decoded.accumulator == decoded.accumulator
                and product.members[-1] is ctas[-1].tmem
            ):
                if not what.accumulate:
                    product.forget()
                return product
        for cta in ctas:
            claim(cta.tmem, *what.layout(), what.accumulate)
        return _PendingProduct(self, [cta.tmem for cta in ctas], what, decoded)
