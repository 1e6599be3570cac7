"""Which bytes of global memory a box of a tensor map covers, and which chunks of its shared side are inside."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from harness.emulator.memory.tensor_map import TensorMap

CHUNK = 16


def rows_of(tmap: TensorMap, coordinates: tuple[int, ...]) -> tuple[NDArray[np.int64], int]:
    """Device address of each inner row of the part that lies inside the tensor, and the bytes of one."""
    starts = np.array([tmap.address], np.int64)
    for start, extent, step, size, pitch in zip(
        coordinates[1:], tmap.box_shape[1:], tmap.steps[1:], tmap.dims[1:], tmap.strides, strict=True
    ):
        at = start + step * np.arange(extent)
        at = at[(at >= 0) & (at < size)]
        starts = (at[:, None] * pitch + starts).ravel()
    first = max(0, coordinates[0])
    last = min(tmap.dims[0], coordinates[0] + tmap.box_shape[0])
    if last <= first or not len(starts):
        return starts[:0], 0
    return starts + first * tmap.global_bytes, (last - first) * tmap.global_bytes


def is_inside(tmap: TensorMap, coordinates: tuple[int, ...]) -> bool:
    """Whether all of a box lies inside the tensor."""
    return all(
        start >= 0 and start + (extent - 1) * step < size
        for start, extent, step, size in zip(coordinates, tmap.box_shape, tmap.steps, tmap.dims, strict=True)
    )


def inside(tmap: TensorMap, coordinates: tuple[int, ...]) -> NDArray[np.bool_]:
    """Of each chunk of a box in shared memory, innermost first: whether any of it lies inside the tensor."""
    chunk, outer = _chunks(tmap)
    first = coordinates[0] + chunk * CHUNK // tmap.element.bytes
    found = (first + (CHUNK // tmap.element.bytes) > 0) & (first < tmap.dims[0])
    for start, index, size in zip(coordinates[1:], outer, tmap.dims[1:], strict=True):
        found &= (start + index >= 0) & (start + index < size)
    return found


@lru_cache(maxsize=64)
def _chunks(tmap: TensorMap) -> tuple[NDArray[np.int64], tuple[NDArray[np.int64], ...]]:
    """Of each chunk of a box: its number in its row, and the index along each outer dimension."""
    per_row = tmap.box_shape[0] * tmap.element.bytes // CHUNK
    indices = np.indices((*reversed(tmap.box_shape[1:]), per_row))
    *outer, chunk = (index.ravel() for index in indices)
    return chunk, tuple(index * step for index, step in zip(reversed(outer), tmap.steps[1:], strict=True))
