"""Shared-memory swizzle modes of TMA and of the matrix descriptors (PTX ISA 5.5.7 "Swizzling Modes")."""

from __future__ import annotations

from enum import Enum
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Addresses = TypeVar("Addresses", int, NDArray[np.integer])


class Swizzle(Enum):
    """The value of a mode is (span, atom) in bytes. Chunks of atom size change places within a row of span bytes.

    In every mode the number of the 128-byte line (address bits 7 and up) is XORed into the chunk number (bits 4 and up,
    or 5 and up). Span and atom set how many bits take part: 1, 2 or 3. The pattern depends on absolute shared-memory
    addresses.
    """

    NONE = (16, 16)
    B32 = (32, 16)
    B64 = (64, 16)
    B128 = (128, 16)
    B128_ATOM_32B = (128, 32)
    """Used by TMA only. It is CuTe's Swizzle<2, 5, 2>, with which CUTLASS's example 83 stores f32 by columns."""

    @property
    def span_bytes(self) -> int:
        """The longest inner box that TMA accepts in this mode; 16 for NONE, which moves no chunks."""
        return self.value[0]

    @property
    def pattern_bytes(self) -> int:
        """The period of the pattern, and the alignment of a buffer whose pattern starts at line 0."""
        span, atom = self.value
        return 16 if self is Swizzle.NONE else 128 * span // atom

    @classmethod
    def from_name(cls, name: str) -> Swizzle:
        """Returns the mode named "none", "32B", "64B", "128B" or "128B_ATOM_32B" (any case)."""
        key = name.strip().upper()
        try:
            if key == "128B_ATOM_32B":
                return cls.B128_ATOM_32B
            return cls.NONE if key == "NONE" else cls["B" + key.removesuffix("B")]
        except KeyError:
            raise ValueError(f"swizzle '{name}': must be one of none, 32B, 64B, 128B, 128B_ATOM_32B") from None

    def apply(self, addresses: Addresses) -> Addresses:
        """Returns the address that holds the byte of an unswizzled address. The same function maps back."""
        span, atom = self.value
        return addresses ^ (((addresses >> 7) & (span // atom - 1)) << (atom.bit_length() - 1))
