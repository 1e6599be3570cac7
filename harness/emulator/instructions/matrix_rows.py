"""The rows of matrices in shared memory that ldmatrix and stmatrix are given: 16 bytes each, an address from a lane."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from harness.emulator.errors import Fault
from harness.emulator.machine.lanes import FULL_MASK, Value
from harness.emulator.machine.state import Fragment
from harness.emulator.memory.address_space import OFFSET_MASK, RANK_SHIFT
from harness.emulator.memory.bytes import CHUNK

ROWS = 8
"""Rows of one matrix, of 16 bytes each."""


class Rows(NamedTuple):
    """Rows of matrices in a CTA's shared memory. span: the first byte of any, and the one behind the last."""

    offsets: np.ndarray
    chunks: np.ndarray
    span: tuple[int, int]


def rows_of(f: Fragment, address: Value, matrices: int) -> Rows:
    """The 8 rows of each matrix: row j of matrix m comes from lane 8m + j."""
    if f.mask != FULL_MASK:
        f.require_whole_warp()
    if isinstance(address, int):
        raise Fault("stmatrix/ldmatrix got one address for all rows; every row needs its own lane's address", "address")
    return _rows_at(address.tobytes(), address.itemsize, matrices, f.cta.window)


@lru_cache(maxsize=4096)
def _rows_at(addresses: bytes, nbytes: int, matrices: int, window: int) -> Rows:
    """The same from the bytes of the addresses: loops use the same ones again and again."""
    rows = np.frombuffer(addresses, f"u{nbytes}")[: ROWS * matrices].astype(np.int64) - window
    merged = int(np.bitwise_or.reduce(rows))
    if merged >> RANK_SHIFT:
        raise Fault(f"a row address names a CTA other than its own, rank {window >> RANK_SHIFT}", "address")
    if merged & (CHUNK - 1):
        bad = int(np.flatnonzero(rows & (CHUNK - 1))[0])
        offset = int(rows[bad]) & OFFSET_MASK
        fault = Fault(f"row address 0x{offset:x} is not a multiple of {CHUNK}", "alignment", offset)
        fault.position = bad
        raise fault
    rows.setflags(write=False)
    return Rows(rows, rows // CHUNK, (int(rows.min()), int(rows.max()) + CHUNK))
