"""Operands of the tensor core of any type: from the 16-byte chunks they are fetched in to numbers.

One instruction takes 32 bytes along K of every row: two chunks. Types of fewer than 8 bits lie there as TMA unpacks
them, 16 elements to a chunk: ``b4x16_p64`` and ``b6x16_p32`` (PTX ISA 9.7.16.3.2); those of the mxf4 kinds are packed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.emulator.memory.bytes import CHUNK
from harness.emulator.memory.descriptors import Major, MatrixDescriptor, operand_positions
from harness.emulator.units.formats import FORMATS, decode

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
