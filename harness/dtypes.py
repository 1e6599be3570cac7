"""The element types of A, B and C, by the names of the command line."""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np

from harness.errors import UsageProblem


@dataclass(frozen=True)
class ElementType:
    """One floating-point type: its NumPy type and its unit roundoff (half an ulp of 1, relative)."""

    name: str
    numpy: np.dtype
    unit_roundoff: float

    @property
    def bytes(self) -> int:
        return self.numpy.itemsize


BF16 = ElementType("bf16", np.dtype(ml_dtypes.bfloat16), 2.0**-8)
ELEMENT_TYPES = {BF16.name: BF16}


def element_type(name: str) -> ElementType:
    """Looks up a type by name."""
    if name not in ELEMENT_TYPES:
        raise UsageProblem(f"dtype {name!r} is not supported; use one of: {', '.join(ELEMENT_TYPES)}")
    return ELEMENT_TYPES[name]
