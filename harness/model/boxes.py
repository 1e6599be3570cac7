"""The geometry of a TMA box: its part inside the tensor, the part that a load fills, and its rows in lines and
sectors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd
from operator import le

from emugpu.emulator.memory.tensor_map import TensorMap

LINE = 128
"""Bytes of a line of L2."""
SECTOR = 32
"""Bytes of the smallest part of a line that is read or written."""


@dataclass(frozen=True)
class Parts:
    """The bytes of a box: ``inside`` the tensor, and ``filled`` in rows completely outside of it. ``cut`` says whether
    rows lie partly outside.
    """

    inside: int
    filled: int
    cut: bool


def parts(box: TensorMap, coordinates: Sequence[int]) -> Parts:
    """Divides the box at these coordinates."""
    if all(map(le, coordinates, box.last_whole)) and min(coordinates) >= 0:
        return Parts(box.box_bytes, 0, False)
    shares = [
        sum(0 <= first + n * step < dim for n in range(extent)) / extent
        for first, extent, dim, step in zip(coordinates, box.box_shape, box.dims, box.steps, strict=True)
    ]
    rows = 1.0 if shares[0] else 0.0
    for share in shares[1:]:
        rows *= share
    inside = rows * shares[0]
    return Parts(round(box.box_bytes * inside), round(box.box_bytes * (1 - rows)), rows > 0 and shares[0] < 1)


def alignment(box: TensorMap) -> int:
    """Returns the common alignment of the rows' distances, at most a line: at least 16 bytes, as a tensor map requires;
    a line if each row lies within one.
    """
    common = gcd(LINE, *box.strides)
    return LINE if common >= row_of(box) else common


def row_of(box: TensorMap) -> int:
    """Returns the contiguous bytes of a box in global memory."""
    return box.box[0] * box.element.bytes


def lines_of(box: TensorMap) -> int:
    """Returns the number of L2 lines requested for the rows of a box, if each begins with a line."""
    row = row_of(box)
    return box.box_bytes // row * -(-row // LINE)


def in_a_row(box: TensorMap) -> bool:
    """Returns whether a box is contiguous in global memory, so each row begins where the one before ends."""
    return bool(box.strides) and box.strides[0] == row_of(box)
