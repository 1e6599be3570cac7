"""The tensor core of a warpgroup: wgmma.mma_async (PTX ISA 9.7.15).

An accumulator is a 64 x N matrix in the registers of four warps, 16 rows in each. As in `mma`, the K slices are fetched
when the instruction executes, and in "f32" accumulation they are multiplied together later. A row of A with undefined
bits makes a row of the accumulator undefined, and a column of B a column.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from emugpu.emulator.errors import Fault, UndefinedRead
from emugpu.emulator.memory.bytes import CHUNK_DTYPE
from emugpu.emulator.memory.descriptors import Major, decode_sm90
from emugpu.emulator.memory.shared import SharedMemory
from emugpu.emulator.units import numerics, sparsity, sums
from emugpu.emulator.units.formats import ELEMENT_BITS
from emugpu.emulator.units.mma import MmaUnit
from emugpu.emulator.units.operands import PANEL_SLICES, SLICE, Operand, operand
from emugpu.emulator.units.warp_mma import Matrix, from_registers, to_registers

M = 64
WARP_ROWS = 16
"""The rows of D, and of an A in registers, that one of the four warps holds."""

A_REGISTER_POSITIONS = np.arange(2 * M).reshape(M, 2)
"""An A from registers is passed as 64 rows of two 16-byte chunks."""


class WgmmaForm(NamedTuple):
    """The fixed parts of a wgmma.mma_async. negate: whether exactly one of A and B changes sign.

    b_element: the type of B if it differs from A's. d_type: "f32", "f16" or "s32", which saturates or wraps around.
    selector: for a sparse A, the selector of the lanes whose metadata counts.
    """

    n: int
    element: str
    a_major: Major
    b_major: Major
    negate: bool
    a_in_registers: bool
    b_element: str = ""
    d_type: str = "f32"
    saturate: bool = False
    selector: int | None = None

    @property
    def collects(self) -> bool:
        """Whether K slices may be collected and multiplied together: for a dense A and f32 results."""
        return self.d_type == "f32" and self.selector is None

    @property
    def kept(self) -> int:
        """The elements along K that A has."""
        return 8 * SLICE // ELEMENT_BITS[self.element]

    @property
    def k(self) -> int:
        return self.kept if self.selector is None else 2 * self.kept


class WarpRegisters(NamedTuple):
    """Registers [number, 32] of one warp. undefined: the mask of their undefined bits, or None if there are none.

    origin: where these bits come from, as `machine.poison` has it.
    """

    bits: NDArray[np.uint32]
    undefined: NDArray[np.uint32] | None = None
    origin: str = ""


class WgmmaA(NamedTuple):
    """An A from registers: its chunks [64 rows, 2], and the rows with undefined bits, which come from ``origin``."""

    chunks: NDArray[np.complex128]
    undefined: NDArray[np.bool_]
    origin: str = ""


@dataclass(frozen=True, eq=False)
class DecodedWgmma:
    """An instruction with its descriptors decoded. flops: 2 * 64 * N * K."""

    form: WgmmaForm
    a: Operand
    b: Operand
    flops: int


@lru_cache(maxsize=4096)
def decode_wgmma(form: WgmmaForm, a_descriptor: int, b_descriptor: int) -> DecodedWgmma:
    """Decodes the descriptors (0 for an A in registers). Fault on invalid ones."""
    if form.a_in_registers:
        a = Operand(A_REGISTER_POSITIONS, M, form.kept, Major.K, form.element)
    else:
        a = operand(decode_sm90(a_descriptor), M, form.kept, form.a_major, form.element)
    b_element, slices = form.b_element or form.element, form.k // form.kept
    b = operand(decode_sm90(b_descriptor), form.n, form.k, form.b_major, b_element, slices=slices)
    return DecodedWgmma(form, a, b, 2 * M * form.n * form.k)


_FP8 = ("e4m3", "e5m2")


class Accumulator:
    """64 x N f32 values, and the K slices that were fetched for them but not multiplied yet.

    For other result types it holds the bits (s32) or the numbers (f16). ``d_type``: the type of the last result.
    """

    def __init__(self, unit: MmaUnit, n: int) -> None:
        self.unit = unit
        self.n = n
        self.d_type = "f32"
        self._values = np.zeros((M, n), np.float32)
        self._form: WgmmaForm | None = None
        self._count = 0
        self._undefined: NDArray[np.bool_] | None = None
        """Which values are undefined, if any are."""
        self._origin = ""

    def clear(self) -> None:
        """Starts from zero (scale-d is false). The collected slices can have no effect any more."""
        self._count = 0
        self._values[...] = 0
        self._undefined = None

    def set_rows(self, warp: int, registers: WarpRegisters) -> None:
        """Sets the rows of one of the four warps from its registers [N / 2, 32]; for f16 results, [N / 4, 32]."""
        self.flush()
        own, fragment = slice(WARP_ROWS * warp, WARP_ROWS * (warp + 1)), d_fragment(self.n, self.d_type)
        rows = from_registers(registers.bits, fragment)
        numbers = numerics.f16_to_f32(rows) if self.d_type == "f16" else rows.view(np.float32)
        self._values[own] = numbers
        if self._undefined is not None:
            self._undefined[own] = False
        if registers.undefined is not None:
            undefined = np.zeros((M, self.n), np.bool_)
            undefined[own] = from_registers(registers.undefined, fragment) != 0
            self._undefine(undefined, registers.origin)

    def rows(self, warp: int) -> WarpRegisters:
        """Returns the registers [N / 2, 32] of one of the four warps; for f16 results, [N / 4, 32]."""
        self.flush()
        own, fragment = slice(WARP_ROWS * warp, WARP_ROWS * (warp + 1)), d_fragment(self.n, self.d_type)
        rows = self._values[own]
        bits = numerics.f32_to_f16_storage(rows) if self.d_type == "f16" else rows.view(np.uint32)
        registers = to_registers(bits, fragment)
        if self._undefined is None or not self._undefined[own].any():
            return WarpRegisters(registers)
        masks = np.where(self._undefined[own], np.iinfo(bits.dtype).max, 0).astype(bits.dtype)
        return WarpRegisters(registers, to_registers(masks, fragment), self._origin)

    def _undefine(self, where: NDArray[np.bool_], origin: str) -> None:
        """Makes values undefined. ``where`` is a mask that can be broadcast to [64, N]."""
        if self._undefined is None or not self._undefined.any():
            self._undefined, self._origin = np.zeros((M, self.n), np.bool_), origin
        self._undefined |= where

    def _take_undefined(
        self, shared: SharedMemory, decoded: DecodedWgmma, a: WgmmaA | None, origin: Callable[[Fault], str]
    ) -> None:
        """Makes those values undefined that undefined bits of A or B would decide."""
        rows, columns = None, None
        if a is None:
            rows, came_from = _undefined_rows(shared, decoded.a, origin)
        elif a.undefined.any():
            rows, came_from = a.undefined, a.origin
        if rows is not None:
            self._undefine(rows[:, None], came_from)
        columns, came_from = _undefined_rows(shared, decoded.b, origin)
        if columns is not None:
            self._undefine(columns, came_from)

    def add(
        self,
        shared: SharedMemory,
        decoded: DecodedWgmma,
        a: WgmmaA | None,
        metadata: NDArray[np.uint32] | None,
        origin: Callable[[Fault], str],
    ) -> None:
        """Fetches one K slice of A (unless it comes from registers) and of B, and adds their product.

        metadata: one register per lane [4 warps, 32], for a sparse A. origin: returns where undefined bits come from
        that a read finds, or raises its fault.
        """
        self._take_undefined(shared, decoded, a, origin)
        a_registers = None if a is None else a.chunks
        if self.unit.accumulation == "tensor_core" or not decoded.form.collects:
            self._execute(shared, decoded, a_registers, metadata)
            return
        if decoded.form != self._form:
            self._open_panels(decoded)
        slot = self._count
        if a_registers is None:
            shared.chunks.take(decoded.a.positions, out=self._a_panel[slot, 0], mode="clip")
        else:
            self._a_panel[slot, 0] = a_registers
        shared.chunks.take(decoded.b.positions, out=self._b_panel[slot, 0], mode="clip")
        self._count = slot + 1
        if self._count == PANEL_SLICES:
            self.flush()

    def _open_panels(self, decoded: DecodedWgmma) -> None:
        self.retire()
        self._form, self._decoded = decoded.form, decoded
        self._a_panel = self.unit.panels.take((PANEL_SLICES, 1, *decoded.a.positions.shape))
        self._b_panel = self.unit.panels.take((PANEL_SLICES, 1, *decoded.b.positions.shape))

    def flush(self) -> None:
        """Multiplies the collected slices."""
        if not self._count:
            return
        a = self._decoded.a.numbers(self._a_panel[: self._count])
        b = self._decoded.b.numbers(self._b_panel[: self._count])
        product = a @ b.T
        if self._decoded.form.negate:
            self._values -= product
        else:
            self._values += product
        if np.isnan(self._values).any():
            self._values.view(np.uint32)[np.isnan(self._values)] = numerics.CANONICAL_NAN_F32
        self._count = 0

    def retire(self) -> None:
        """Multiplies the collected slices and gives back the panels."""
        self.flush()
        if self._form is not None:
            self.unit.panels.give(self._a_panel)
            self.unit.panels.give(self._b_panel)
            self._form = None

    def _execute(
        self,
        shared: SharedMemory,
        decoded: DecodedWgmma,
        a_registers: NDArray[np.complex128] | None,
        metadata: NDArray[np.uint32] | None,
    ) -> None:
        """Executes one instruction at once."""
        self.retire()
        form, accumulation = decoded.form, self.unit.accumulation
        if a_registers is None:
            a_registers = shared.chunks.take(decoded.a.positions)
        a, b = decoded.a.fetched(a_registers), decoded.b.fetched(shared.chunks.take(decoded.b.positions))
        if form.selector is not None and metadata is not None:
            codes = [sparsity.codes_of_warp(words, form.selector, form.element, form.k) for words in metadata]
            b = sparsity.chosen(b, sparsity.kept_positions(np.concatenate(codes), form.element))
        if form.d_type == "s32":
            result = sums.integer_dot(a, b, self._values.view(np.uint32), form.saturate)
            self._values = result.view(np.float32)
            return
        a = -a if form.negate else a
        halves = form.d_type == "f16"
        old = numerics.f32_to_f16_storage(self._values) if halves else self._values.view(np.uint32)
        quantum = sums.HOPPER_FP8 if form.element in _FP8 else sums.HOPPER
        types = (form.element, form.b_element or form.element, form.d_type)
        found = sums.dot(a, b, old, *types, accumulation, form.kept, quantum)
        self._values = numerics.f16_to_f32(found.astype(np.uint16)) if halves else found.view(np.float32)


def _undefined_rows(
    shared: SharedMemory, operand: Operand, origin: Callable[[Fault], str]
) -> tuple[NDArray[np.bool_] | None, str]:
    """Returns the rows of an operand with undefined bits, and where they come from; None if there are none."""
    try:
        shared.check_chunks(operand.positions, operand)
    except UndefinedRead as fault:
        return operand.undefined_rows(shared.peek_chunks(operand.positions)[1]), origin(fault)
    return None, ""


def d_fragment(n: int, d_type: str = "f32") -> Matrix:
    """Returns the place of D of one warp in its registers: [N / 2, 32], or [N / 4, 32] of f16 (PTX ISA 9.7.15.5.1.1).

    It is that of C and D in mma.sync, for 16 rows and N columns.
    """
    bits = 16 if d_type == "f16" else 32
    return Matrix("c", WARP_ROWS, n, bits, n * bits // 64)


def a_from_registers(registers: NDArray[np.uint32]) -> NDArray[np.complex128]:
    """Converts A of one warp from 4 registers of 32 threads to chunks [16 rows, 2].

    Whatever its type, its bytes lie as those of an A of 16 bits in mma.sync (PTX ISA 9.7.15.5.1.1).
    """
    return from_registers(registers, Matrix("a", WARP_ROWS, 16, 16, len(registers))).view(CHUNK_DTYPE)
