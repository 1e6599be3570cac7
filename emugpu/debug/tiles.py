"""Tiles as matrices: boxes in shared memory without their swizzle, and accumulators in tensor memory."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from emugpu.debug.names import LaunchNames
from emugpu.debug.stopped import Stopped
from emugpu.debug.writers import CHUNK, Write, Writers
from emugpu.emulator.machine import events
from emugpu.emulator.memory.tensor_map import TensorMap
from emugpu.launch.spec import DATA_TYPES, DataType, find_type

ACCUMULATOR = DATA_TYPES["f32"]


@dataclass(frozen=True)
class Tile:
    """The last data that was written to a place as a whole.

    ``place`` is its name, ``what`` its origin, ``shape`` that of the matrix. ``chunks`` are those of shared memory
    in the order of the box, or None for tensor memory.
    """

    place: str
    what: str
    dtype: DataType
    shape: tuple[int, int]
    write: Write
    chunks: NDArray[np.int64] | None = None

    @property
    def first(self) -> int | None:
        """Returns its first offset in shared memory, or None."""
        return None if self.chunks is None else int(self.chunks.min()) * CHUNK

    def values(self, stopped: Stopped) -> tuple[NDArray[np.generic], NDArray[np.bool_]]:
        """Returns the matrix where the machine was stopped, and which elements were written."""
        _, _, cluster, cta, *_ = self.write.memory
        if self.chunks is None:
            data, written = stopped.tensor(cluster, cta)
            lanes, columns = self.write.region.lanes, self.write.region.columns
            part = slice(lanes.start, lanes.stop), slice(columns.start, columns.stop)
            return data[part].view(self.dtype.numpy), written[part]
        places = (self.chunks[:, None] * CHUNK + np.arange(CHUNK)).reshape(-1)
        first = int(places.min())
        held, valid = stopped.shared(cluster, cta, first, int(places.max()) + 1 - first)
        values, known = held[places - first], valid[places - first]
        return self.dtype.from_memory(values, self.shape), written_elements(known, self.shape)


def tiles(writers: Writers, names: LaunchNames, launch: int, cluster: int, cta: int, before: int) -> list[Tile]:
    """Returns the tiles of a CTA at a position.

    These are the boxes in shared memory, and the last accumulator in each block of tensor memory.
    """
    found: dict[tuple[str, int, int], Tile] = {}
    for write in writers.backwards(("shared", launch, cluster, cta), before):
        tile = _box(write, names)
        if tile is not None and tile.first is not None:
            found.setdefault(("shared", tile.first, 0), tile)
    for write in writers.backwards(("tensor", launch, cluster, cta), before):
        assert write.operation is not None
        if write.operation.kind == "mma":
            lanes, columns = write.region.lanes, write.region.columns
            place = f"tensor memory, lanes from {lanes.start}, columns from {columns.start}"
            tile = Tile(place, names.operation(write.operation), ACCUMULATOR, (len(lanes), len(columns)), write)
            found.setdefault(("tensor", lanes.start, columns.start), tile)
    return [found[key] for key in sorted(found)]


def _box(write: Write, names: LaunchNames) -> Tile | None:
    operation = write.operation
    source = operation.reads[0] if operation is not None and operation.reads else None
    if not isinstance(write.region, events.SharedChunks) or not isinstance(source, events.GlobalBox):
        return None
    tmap: TensorMap = source.tensor_map
    placed = names.buffer_at(tmap.address)
    dtype = placed.dtype if placed is not None else find_type(tmap.element.name)
    chunks = np.asarray(write.region.chunks, np.int64).reshape(-1)
    if dtype is None or tmap.element.global_bytes:
        return None  # shared memory holds these elements padded
    columns, rows = tmap.box_shape[0] * tmap.element.bytes * 8 // dtype.bits, prod(tmap.box_shape[1:])
    place = names.shared(int(chunks.min()) * CHUNK, write.memory[3])
    return Tile(place, f"{names.box(source)}, {rows}x{columns} {dtype.name}", dtype, (rows, columns), write, chunks)


def written_elements(valid: NDArray[np.bool_], shape: tuple[int, ...]) -> NDArray[np.bool_]:
    """Returns for each element whether all its bytes were written."""
    count = prod(shape)
    first = np.arange(count) * len(valid) // count
    return (np.logical_and.reduceat(valid, first) if len(valid) >= count else valid[first]).reshape(shape)
