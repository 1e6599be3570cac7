"""The element types of A, B and C, by the names of the command line."""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np

from harness.errors import UsageProblem


@dataclass(frozen=True)
class ElementType:
    """One floating-point type.

    ptx: its name in PTX. unit_roundoff: half an ulp of 1, relative. smallest_normal: below it numbers are
    evenly spaced.
    """

    name: str
    ptx: str
    numpy: np.dtype
    unit_roundoff: float
    smallest_normal: float

    @property
    def bytes(self) -> int:
        return self.numpy.itemsize


BF16 = ElementType("bf16", "bf16", np.dtype(ml_dtypes.bfloat16), 2.0**-8, 2.0**-126)
FP16 = ElementType("fp16", "f16", np.dtype(np.float16), 2.0**-11, 2.0**-14)
ELEMENT_TYPES = {dtype.name: dtype for dtype in (BF16, FP16)}


def element_type(name: str) -> ElementType:
    """Looks up a type by name."""
    if name not in ELEMENT_TYPES:
        raise UsageProblem(f"dtype {name!r} is not supported; use one of: {', '.join(ELEMENT_TYPES)}")
    return ELEMENT_TYPES[name]
