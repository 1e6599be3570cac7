"""Numbers as PTX writes them (PTX ISA 4.5)."""

from __future__ import annotations

import re

import numpy as np

from harness.emulator.ptx.ast import Immediate

_NUMBER = re.compile(r"[+-]?(0[xX][0-9a-fA-F]+|0[bB][01]+|\d+)U?$")
_DECIMAL = re.compile(r"[+-]?(\d+\.\d*|\.\d+|\d+(?=[eE]))([eE][+-]?\d+)?$")
_FLOAT = re.compile(r"0[fF]([0-9a-fA-F]{8})$|0[dD]([0-9a-fA-F]{16})$")


def number(text: str) -> Immediate | None:
    """The number that a word is, or None. Floats are their bits."""
    sign = -1 if text.startswith("-") else 1
    float_match = _FLOAT.match(text)
    if float_match:
        if float_match.group(1):
            return Immediate(int(float_match.group(1), 16), 32)
        return Immediate(int(float_match.group(2), 16), 64)
    if _DECIMAL.match(text):
        return Immediate(int(np.float64(text).view(np.uint64)), 64, decimal=True)
    if _NUMBER.match(text):
        digits = text.lstrip("+-").rstrip("U")
        base = 8 if len(digits) > 1 and digits[0] == "0" and digits.isdigit() else 0
        return Immediate(sign * int(digits, base))
    return None
