"""Operands of the tensor core: how A and B come from shared memory, and the numbers that their chunks hold.

Fetching an operand and multiplying it are separate steps: K slices of 16 are collected in panels, and several of
them go through one BLAS call. Of other types than f16 and bf16 one instruction takes 32 bytes along K of every row: two
chunks. Types of fewer than 8 bits lie there as TMA unpacks them, 16 elements to a chunk: ``b4x16_p64`` and
``b6x16_p32`` (PTX ISA 9.7.16.3.2); those of the mxf4 kinds are packed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from harness.emulator.memory.bytes import CHUNK, CHUNK_DTYPE
from harness.emulator.memory.descriptors import Major, MatrixDescriptor, operand_positions
from harness.emulator.units import numerics
from harness.emulator.units.formats import FORMATS, decode

K = 16
"""Elements along K of one instruction: 32 bytes of 16-bit types."""

_ROW_OF_SLICE = np.dtype((np.void, 2 * K))
"""The 16 elements of one row of a K slice, for moving them as one item."""

PANEL_SLICES = 32
"""K slices collected before they are multiplied: K = 512 is long enough for BLAS."""

Accumulation = Literal["f32", "tensor_core"]


@dataclass(frozen=True, eq=False)
class Operand:
    """How to fetch one CTA's share of A or B; also the key under which shared memory knows it valid.

    positions: chunk numbers (shared address / 16); rows: rows of A or columns of B; element: "bf16" or "f16".
    """

    positions: NDArray[np.intp]
    rows: int
    major: Major
    element: str

    def values(self, raw: NDArray[np.uint16]) -> NDArray[np.float32]:
        """Fetched 16-bit items [slices, CTAs, ..] -> f32 [CTAs * rows, slices * K]."""
        slices, ctas = raw.shape[:2]
        if self.major is Major.K:
            rows = raw.reshape(slices, ctas, self.rows, K).view(_ROW_OF_SLICE)
            ordered = np.ascontiguousarray(rows.transpose(1, 2, 0, 3)).view(np.uint16)
        else:
            ordered = raw.reshape(slices, ctas, K, self.rows).transpose(1, 3, 0, 2)
        widen = numerics.bf16_to_f32 if self.element == "bf16" else numerics.f16_to_f32
        return widen(ordered).reshape(ctas * self.rows, slices * K)


@lru_cache(maxsize=4096)
def operand(descriptor: MatrixDescriptor, rows: int, major: Major, element: str) -> Operand:
    """The operand a decoded matrix descriptor names."""
    return Operand(operand_positions(descriptor, rows, K, 2, major), rows, major, element)


class Panels:
    """Buffers of 16-byte items for fetched K slices; reused ones spare the page faults of fresh memory."""

    def __init__(self) -> None:
        self._spare: dict[tuple[int, ...], list[NDArray[np.complex128]]] = {}

    def take(self, shape: tuple[int, ...]) -> NDArray[np.complex128]:
        """A buffer with unspecified content."""
        spare = self._spare.get(shape)
        return spare.pop() if spare else np.empty(shape, CHUNK_DTYPE)

    def give(self, panel: NDArray[np.complex128]) -> None:
        """Return a buffer for reuse."""
        self._spare.setdefault(panel.shape, []).append(panel)


BITS = {"f16": 16, "bf16": 16, "tf32": 32, "e4m3": 8, "e5m2": 8, "e2m3": 6, "e3m2": 6, "e2m1": 4, "s8": 8, "u8": 8}
SLICE = 32
"""Bytes along K."""


@dataclass(frozen=True, eq=False)
class AnyOperand:
    """One CTA's share of A or B. positions: chunk numbers; k: elements along K; packed: two e2m1 to a byte."""

    positions: NDArray[np.intp]
    rows: int
    k: int
    major: Major
    element: str
    packed: bool

    def numbers(self, chunks: NDArray[np.complex128]) -> NDArray[Any]:
        """Fetched chunks, shaped like positions, as float64 (integers of i8 kinds as int64) [rows, k]."""
        raw = np.ascontiguousarray(chunks).view(np.uint8)
        if self.major is Major.MN:
            size = BITS[self.element] // 8
            raw = np.ascontiguousarray(raw.reshape(self.k, self.rows, size).transpose(1, 0, 2))
        return to_numbers(raw.reshape(self.rows, -1), self.element, self.packed)


def to_numbers(raw: NDArray[np.uint8], element: str, packed: bool) -> NDArray[Any]:
    """Rows of bytes as numbers [rows, k]."""
    bits = BITS[element]
    rows = raw.shape[0]
    if element in ("s8", "u8"):
        return raw.view(np.int8 if element == "s8" else np.uint8).astype(np.int64)
    if packed:
        codes = np.stack([raw & 15, raw >> 4], axis=-1).reshape(rows, -1)
    elif bits < 8:
        codes = unpacked(raw.reshape(-1, CHUNK), bits).reshape(rows, -1)
    else:
        codes = raw.view(f"u{bits // 8}")
    return decode(codes, FORMATS[element])


def unpacked(chunks: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    """Chunks [n, 16] of 16 elements of 6 or 4 bits, and padding: each element in the low bits of a byte [n, 16]."""
    if bits == 4:
        half = chunks[:, : CHUNK // 2]
        return np.stack([half & 15, half >> 4], axis=-1).reshape(-1, CHUNK)
    stream = np.unpackbits(chunks[:, :12], axis=-1, bitorder="little")
    return np.packbits(stream.reshape(-1, CHUNK, 6), axis=-1, bitorder="little").reshape(-1, CHUNK)


@lru_cache(maxsize=2048)
def any_operand(
    descriptor: MatrixDescriptor, rows: int, k: int, major: Major, element: str, packed: bool = False, slices: int = 1
) -> AnyOperand:
    """The operand a decoded matrix descriptor names. slices: of 32 bytes along K; two for the B of a sparse A."""
    nbytes = slices * SLICE
    size = nbytes // k if k <= nbytes else 1
    extent = k if k <= nbytes else nbytes
    positions = operand_positions(descriptor, rows, extent, size, major)
    return AnyOperand(positions, rows, k, major, element, packed)
