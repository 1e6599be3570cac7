"""Lanes of a warp: masks, and register values that are one scalar for all lanes or an array with one item a lane."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from harness.emulator.errors import Fault

WARP_SIZE = 32
FULL_MASK = 0xFFFFFFFF

Value = Any
"""int or bool where all lanes agree, else an array of 32 items. None: a wgmma accumulates in the register."""

ALL_LANES = np.arange(WARP_SIZE)
_BIT_WEIGHTS = (1 << ALL_LANES).astype(np.uint64)


@lru_cache(maxsize=1024)
def lanes_of(mask: int) -> tuple[tuple[int, ...], np.ndarray]:
    """The lanes of a mask, as a tuple and as an array to index with."""
    lanes = tuple(lane for lane in range(WARP_SIZE) if mask >> lane & 1)
    return lanes, np.array(lanes, np.intp)


def mask_of(predicate: Value) -> int:
    """The lanes in which a predicate holds."""
    if isinstance(predicate, np.ndarray):
        return int(predicate @ _BIT_WEIGHTS)
    return FULL_MASK if predicate else 0


def lane_value(value: Value, lane: int) -> int:
    """One lane's scalar of a register value."""
    if isinstance(value, int):
        return value
    if value is None:
        raise Fault("uses a register in which a wgmma accumulates", "wgmma")
    return int(value[lane])


def as_row(value: Value) -> np.ndarray:
    """A 32-bit register value as an array of 32 lanes."""
    return np.broadcast_to(np.asarray(value, np.uint32), WARP_SIZE)
