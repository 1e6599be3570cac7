"""Operands of the tensor core: how A and B are fetched from shared memory, and which numbers their chunks hold.

Fetching and multiplying an operand are separate steps: K slices are collected in panels, and one BLAS call multiplies
several of them. One instruction takes 32 bytes along K of every row: two chunks; three with K = 96. Types of fewer than
8 bits lie in shared memory as TMA unpacks them, 16 elements to a chunk: ``b4x16_p64`` and ``b6x16_p32`` (PTX ISA
9.7.16.3.2). Those of the mxf4 kinds are packed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from emugpu.emulator.memory.bytes import CHUNK, CHUNK_DTYPE
from emugpu.emulator.memory.descriptors import Major, MatrixDescriptor, operand_positions
from emugpu.emulator.units import numerics
from emugpu.emulator.units.formats import ELEMENT_BITS, FORMATS, decode

PANEL_SLICES = 32
"""The number of K slices collected before they are multiplied. A K of 512 and more is long enough for BLAS."""

Accumulation = Literal["f32", "tensor_core"]


class Panels:
    """Buffers of 16-byte items for fetched K slices. Reusing them avoids the page faults of fresh memory."""

    def __init__(self) -> None:
        self._spare: dict[tuple[int, ...], list[NDArray[np.complex128]]] = {}

    def take(self, shape: tuple[int, ...]) -> NDArray[np.complex128]:
        """Returns a buffer with unspecified content."""
        spare = self._spare.get(shape)
        return spare.pop() if spare else np.empty(shape, CHUNK_DTYPE)

    def give(self, panel: NDArray[np.complex128]) -> None:
        """Takes back a buffer for reuse."""
        self._spare.setdefault(panel.shape, []).append(panel)


SLICE = 32
"""Bytes along K of one instruction."""


@dataclass(frozen=True, eq=False)
class Operand:
    """How one CTA's share of A or B is fetched. It is also the key by which shared memory caches its validity.

    positions: chunk numbers (shared address / 16). rows: rows of A or columns of B. k: elements along K. packed: two
    e2m1 to a byte.
    """

    positions: NDArray[np.intp]
    rows: int
    k: int
    major: Major
    element: str
    packed: bool = False

    def numbers(self, chunks: NDArray[np.complex128]) -> NDArray[np.float32]:
        """Returns the numbers [CTAs * rows, slices * k] in fetched chunks [slices, CTAs, positions]."""
        return to_numbers(self._bytes(chunks), self.element, self.packed)

    def undefined_rows(self, masks: NDArray[np.complex128]) -> NDArray[np.bool_]:
        """Returns which rows of one slice of one CTA have undefined bits. ``masks``: those of its chunks."""
        has_any: NDArray[np.bool_] = np.logical_or.reduce(self._bytes(masks[None, None]), axis=1)
        return has_any

    def _bytes(self, chunks: NDArray[np.complex128]) -> NDArray[np.uint8]:
        """Returns the bytes of each row, [CTAs * rows, ...]."""
        slices, ctas = chunks.shape[:2]
        ordered: NDArray[Any]
        if self.major is Major.K:
            row = np.dtype((np.void, self.positions.size // self.rows * CHUNK))
            ordered = chunks.reshape(slices, ctas, -1).view(row).transpose(1, 2, 0)
        else:
            items = chunks.reshape(slices, ctas, -1).view(f"u{ELEMENT_BITS[self.element] // 8}")
            ordered = items.reshape(slices, ctas, self.k, self.rows).transpose(1, 3, 0, 2)
        return np.ascontiguousarray(ordered).view(np.uint8).reshape(ctas * self.rows, -1)

    def fetched(self, chunks: NDArray[np.complex128]) -> NDArray[np.float32]:
        """Returns the numbers [rows, k] of one slice of one CTA."""
        return self.numbers(chunks[None, None])


@cache
def table(element: str) -> NDArray[np.float32]:
    """Returns the number for each byte of a type with at most 8 bits."""
    return decode(np.arange(256), FORMATS[element]).astype(np.float32)


@cache
def _pairs() -> NDArray[np.complex64]:
    """Returns the two numbers in each byte of packed e2m1, the low half first."""
    byte = np.arange(256)
    return np.ascontiguousarray(table("e2m1").take(np.stack([byte & 15, byte >> 4], axis=-1))).view(np.complex64)[:, 0]


def to_numbers(raw: NDArray[np.uint8], element: str, packed: bool) -> NDArray[np.float32]:
    """Returns rows of bytes as numbers [rows, k]."""
    bits, rows = ELEMENT_BITS[element], raw.shape[0]
    if packed:
        return _pairs().take(raw).view(np.float32)
    if element in ("s8", "u8"):
        return raw.view(np.int8 if element == "s8" else np.uint8).astype(np.float32)
    if element in ("bf16", "f16"):
        widen = numerics.bf16_to_f32 if element == "bf16" else numerics.f16_to_f32
        return widen(raw.view(np.uint16))
    if element == "tf32":
        return (raw.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
    return table(element).take(raw if bits == 8 else unpacked(raw.reshape(-1, CHUNK), bits).reshape(rows, -1))


def unpacked(chunks: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    """Unpacks chunks [n, 16] of 16 elements of 6 or 4 bits: each element into the low bits of a byte [n, 16]."""
    if bits == 4:
        half = chunks[:, : CHUNK // 2]
        return np.stack([half & 15, half >> 4], axis=-1).reshape(-1, CHUNK)
    stream = np.unpackbits(chunks[:, :12], axis=-1, bitorder="little")
    return np.packbits(stream.reshape(-1, CHUNK, 6), axis=-1, bitorder="little").reshape(-1, CHUNK)


@lru_cache(maxsize=2048)
def operand(
    descriptor: MatrixDescriptor, rows: int, k: int, major: Major, element: str, packed: bool = False, slices: int = 1
) -> Operand:
    """Returns the operand of a decoded matrix descriptor. slices: of 32 bytes along K; two for the B of a sparse A."""
    nbytes = k // 2 if packed else slices * SLICE
    size = nbytes // k if k <= nbytes else 1
    extent = k if k <= nbytes else nbytes
    positions = operand_positions(descriptor, rows, extent, size, major)
    return Operand(positions, rows, k, major, element, packed)
