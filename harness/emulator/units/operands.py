"""How the tensor core fetches A and B from shared memory, one 16-wide K slice at a time.

Fetching an operand and multiplying it are separate steps: K slices are collected in panels, and several of
them go through one BLAS call.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from harness.emulator.memory.bytes import CHUNK_DTYPE
from harness.emulator.memory.descriptors import Major, MatrixDescriptor, operand_positions
from harness.emulator.units import numerics

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
