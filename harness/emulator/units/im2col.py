"""TMA in im2col mode: columns of pixels between global and shared memory (PTX ISA 5.5.4)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from harness.emulator.memory.global_memory import GlobalMemory
from harness.emulator.memory.im2col_map import Im2colMap


def pixel_addresses(tmap: Im2colMap, start: tuple[int, ...], offsets: Sequence[int]) -> list[tuple[int, int]]:
    """(device address, bytes) of each pixel's channels; no bytes where the pixel is outside of the tensor."""
    size = tmap.element.bytes
    channels = max(0, min(tmap.box[0], tmap.dims[0] - start[0]))
    found = []
    for *spatial, image in tmap.column(start):
        at = [*(x + o for x, o in zip(spatial, offsets, strict=True)), image]
        inside = all(0 <= x < d for x, d in zip(at, tmap.dims[1:], strict=True))
        address = tmap.address + start[0] * size + sum(x * s for x, s in zip(at, tmap.strides, strict=True))
        found.append((address, channels * size if inside else 0))
    return found


def load_column(memory: GlobalMemory, tmap: Im2colMap, places: list[tuple[int, int]]) -> tuple[NDArray[np.uint8], int]:
    """The dense column, filled as the map asks where there is nothing, and the bytes read."""
    row = tmap.box[0] * tmap.element.bytes
    dense = np.zeros((tmap.pixels, row), np.uint8)
    if tmap.fill_nan and tmap.element.nan_bits is not None:
        nan = tmap.element.nan_bits.to_bytes(tmap.element.bytes, "little")
        dense[:] = np.frombuffer(nan * tmap.box[0], np.uint8)
    for pixel, (address, nbytes) in enumerate(places):
        if nbytes:
            dense[pixel, :nbytes] = memory.read(address, nbytes)
    return dense.reshape(-1), sum(nbytes for _, nbytes in places)


def store_column(memory: GlobalMemory, places: list[tuple[int, int]], dense: NDArray[np.uint8]) -> int:
    """Write what lies inside the tensor; returns the bytes."""
    rows = dense.reshape(len(places), -1)
    for row, (address, nbytes) in zip(rows, places, strict=True):
        if nbytes:
            memory.write(address, row[:nbytes])
    return sum(nbytes for _, nbytes in places)
