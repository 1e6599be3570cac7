"""Shared-memory swizzle modes of TMA and of the matrix descriptors (PTX ISA 5.5.7 "Swizzling Modes")."""

from __future__ import annotations

from enum import Enum
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Addresses = TypeVar("Addresses", int, NDArray[np.integer])


class Swizzle(Enum):
    """The value is the span in bytes: the length of a row inside which 16-byte chunks change places.

    In every mode the number of the 128-byte line (address bits 7 and up) is XORed into the chunk number
    (bits 4 and up); the span sets how many bits take part: 1, 2 or 3. The pattern hangs on absolute
    shared-memory addresses.
    """

    NONE = 16
    B32 = 32
    B64 = 64
    B128 = 128

    @property
    def span_bytes(self) -> int:
        """Longest inner box TMA accepts in this mode; 16 for NONE, where chunks stay in place."""
        return self.value

    @property
    def pattern_bytes(self) -> int:
        """Period of the pattern, and the alignment of a buffer whose pattern starts at line 0."""
        return 16 if self is Swizzle.NONE else 8 * self.value

    @classmethod
    def from_name(cls, name: str) -> Swizzle:
        """The mode that "none", "32B", "64B" or "128B" names (any case)."""
        key = name.strip().upper()
        try:
            return cls.NONE if key == "NONE" else cls["B" + key.removesuffix("B")]
        except KeyError:
            raise ValueError(f"swizzle '{name}': must be one of none, 32B, 64B, 128B") from None

    def apply(self, addresses: Addresses) -> Addresses:
        """Where the byte with this unswizzled address is kept. The same function maps back."""
        line_mask = self.value // 16 - 1
        return addresses ^ (((addresses >> 7) & line_mask) << 4)
