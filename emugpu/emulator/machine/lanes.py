"""Lanes of a warp: masks, and register values, which are a scalar for all lanes or an array with one item per lane."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from emugpu.emulator.errors import Fault
from emugpu.emulator.machine.poison import Poison

WARP_SIZE = 32
FULL_MASK = 0xFFFFFFFF

Value = Any
"""An int or bool if all lanes agree, else an array of 32 items. None: a wgmma accumulates in the register. `Poison`:
some of its bits are undefined.
"""

ALL_LANES = np.arange(WARP_SIZE)
_BIT_WEIGHTS = (1 << ALL_LANES).astype(np.uint64)


@lru_cache(maxsize=1024)
def lanes_of(mask: int) -> tuple[tuple[int, ...], np.ndarray]:
    """Returns the lanes of a mask, as a tuple and as an index array."""
    lanes = tuple(lane for lane in range(WARP_SIZE) if mask >> lane & 1)
    return lanes, np.array(lanes, np.intp)


def mask_of(predicate: Value) -> int:
    """Returns the mask of the lanes in which a predicate is true."""
    if isinstance(predicate, np.ndarray):
        return int(predicate @ _BIT_WEIGHTS)
    if isinstance(predicate, Poison):
        return mask_of(predicate.used())
    return FULL_MASK if predicate else 0


def lane_array(mask: int) -> np.ndarray:
    """Returns a mask as an array of 32 bools."""
    return (mask >> ALL_LANES & 1).astype(np.bool_)


def lane_value(value: Value, lane: int) -> int:
    """Returns one lane's scalar of a register value."""
    if isinstance(value, int):
        return value
    if value is None:
        raise Fault("uses a register in which a wgmma accumulates", "wgmma")
    return int(value[lane])


def agreed(values: np.ndarray) -> Value:
    """Returns the values of some lanes as one scalar if all of them agree."""
    return int(values[0]) if (values == values[0]).all() else values


def stack_rows(values: Sequence[Value]) -> np.ndarray:
    """Returns 32-bit register values as an array [registers, 32 lanes]."""
    try:
        rows: np.ndarray = np.array(values, np.uint32)
        if rows.ndim == 2:
            return rows
    except (ValueError, TypeError):
        # Some of them are scalars.
        if any(v is None for v in values):
            raise Fault("uses a register in which a wgmma accumulates that was not waited for", "wgmma") from None
    rows = np.empty((len(values), WARP_SIZE), np.uint32)
    for row, value in zip(rows, values, strict=True):
        row[...] = value
    return rows
