"""The comparisons of floats (PTX ISA 9.7.3, 9.7.6), of which each engine makes its own code."""

from __future__ import annotations

_ORDERED = {
    "eq": ("==",), "ne": ("<", ">"), "lt": ("<",), "le": ("<=",), "gt": (">",), "ge": (">=",), "num": ("<=", ">")
}  # fmt: skip
_OPPOSITE = {"equ": "ne", "neu": "eq", "ltu": "ge", "leu": "gt", "gtu": "le", "geu": "lt", "nan": "num"}
FLOAT_COMPARISONS = {
    **{name: (signs, True) for name, signs in _ORDERED.items()},
    **{name: (_ORDERED[opposite], False) for name, opposite in _OPPOSITE.items()},
}
"""By name: signs, and the result if one of them holds. None of these signs holds where an operand is NaN."""
