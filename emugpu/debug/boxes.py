"""Boxes of tensor maps, byte by byte: the place of a byte of a tensor in the dense box, and the reverse.

A box is transferred dense, with dimension 0 fastest. The swizzle places its 16-byte chunks in shared memory, and
events list the chunks in the order of the dense box.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from emugpu.emulator.memory.tensor_map import TensorMap


@lru_cache(maxsize=4096)
def box_rows(tmap: TensorMap, coordinates: tuple[int, ...]) -> tuple[NDArray[np.int64], int]:
    """Returns the addresses of the rows of a box, clipped to the tensor, and the bytes of a row."""
    first = max(0, coordinates[0])
    count = min(coordinates[0] + tmap.box_shape[0], tmap.dims[0]) - first
    starts = np.array([tmap.address + first * tmap.pitches[0]], np.int64)
    for at, extent, dim, step, pitch in zip(
        coordinates[1:], tmap.box_shape[1:], tmap.dims[1:], tmap.steps[1:], tmap.pitches[1:], strict=True
    ):
        places = at + np.arange(extent) * step
        places = places[(places >= 0) & (places < dim)]
        starts = (starts[None, :] + (places * pitch)[:, None]).reshape(-1)
    return (starts, count * tmap.pitches[0]) if count > 0 else (starts[:0], 0)


def address_of(tmap: TensorMap, coordinates: tuple[int, ...], dense: int) -> int | None:
    """Returns the address of a byte of the dense box, or None if it lies outside of the tensor.

    If shared memory holds the elements padded, the address is that of the first byte of the 16 elements.
    """
    size = tmap.element.bytes
    number, byte = divmod(dense, size)
    address = tmap.address + (0 if tmap.element.global_bytes else byte)
    for at, extent, dim, step, pitch in zip(
        coordinates, tmap.box_shape, tmap.dims, tmap.steps, tmap.pitches, strict=True
    ):
        number, index = divmod(number, extent)
        place = at + index * step
        if not 0 <= place < dim:
            return None
        address += place * pitch
    return address


def dense_of(tmap: TensorMap, coordinates: tuple[int, ...], address: int) -> int | None:
    """Returns the place of an address in the dense box, or None if the box does not contain it."""
    offset = address - tmap.address
    index = []
    for at, extent, step, pitch in reversed(
        list(zip(coordinates, tmap.box_shape, tmap.steps, tmap.pitches, strict=True))
    ):
        # A dimension with one index in the box may overlap others, so the address does not give the index.
        place, offset = divmod(offset, pitch) if extent > 1 else (at, offset - at * pitch)
        number, rest = divmod(place - at, step)
        if rest or not 0 <= number < extent:
            return None
        index.append(number)
    if not 0 <= offset < tmap.global_bytes:
        return None
    dense = 0
    for number, extent in zip(index, reversed(tmap.box_shape), strict=True):
        dense = dense * extent + number
    return dense * tmap.element.bytes + offset
