"""The TMA unit: it moves boxes and pixels of a tensor between global memory and (swizzled) shared memory.

A box is passed on as `dense` bytes: its elements one after another, dimension 0 fastest, without swizzle. Multicast
loads a dense box once and writes it into several CTAs. Source: PTX ISA 5.5 "Tensors", 9.7.9.27 "cp.async.bulk.tensor";
im2col mode is in 5.5.4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from operator import add, le, mul
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emugpu.emulator.errors import Fault
from emugpu.emulator.memory.bytes import CHUNK, CHUNK_DTYPE
from emugpu.emulator.memory.global_memory import Allocation, GlobalMemory
from emugpu.emulator.memory.shared import SharedMemory
from emugpu.emulator.memory.swizzle import Swizzle
from emugpu.emulator.memory.tensor_map import Im2colMap, TensorMap
from emugpu.emulator.units import numerics

NOWHERE = -1
"""The place of a byte that a copy does not write."""
SHARED_ALIGNMENT = 128
"""Alignment of a box in shared memory (CUDA C++ Programming Guide, TMA alignment requirements)."""


def load_box(memory: GlobalMemory, tmap: TensorMap, coords: Sequence[int]) -> tuple[NDArray[np.uint8], int]:
    """Loads the box that starts at `coords` (elements, innermost first; they may be negative or past the end).

    Returns the dense box, in which elements outside the tensor are zero (or NaN, if the map says so), and the number of
    bytes read from global memory. Fault on bytes that were never written or are outside every allocation.
    """
    inside = _Inside(tmap, coords)
    if inside.empty:
        return _filled(tmap), 0
    source, nbytes = inside.global_view(memory, reading=True)
    if tmap.element.name == "tf32":
        source = numerics.round_to_tf32(np.ascontiguousarray(source).view(np.uint32)).view(np.uint8)
    if tmap.element.global_bytes:
        source = _pad(source, tmap)
    if inside.complete:
        return source.flatten(), nbytes
    dense = _filled(tmap)
    inside.dense_view(dense)[...] = source
    return dense, nbytes


def _pad(source: NDArray[np.uint8], tmap: TensorMap) -> NDArray[np.uint8]:
    """Returns rows of units as in shared memory: zeros follow each unit (their real content is not documented)."""
    size, padded = tmap.global_bytes, tmap.element.bytes
    units = np.ascontiguousarray(source).reshape(*source.shape[:-1], source.shape[-1] // size, size)
    spread: NDArray[np.uint8] = np.zeros((*units.shape[:-1], padded), np.uint8)
    spread[..., :size] = units
    return spread.reshape(*source.shape[:-1], -1)


def store_box(memory: GlobalMemory, tmap: TensorMap, coords: Sequence[int], dense: NDArray[np.uint8]) -> int:
    """Stores the part of a dense box that lies inside the tensor. Returns the number of bytes written.

    Fault on negative coordinates (PTX ISA 9.7.9.27.1.1: a store starts at non-negative coordinates).
    """
    if min(coords) < 0:
        raise Fault(f"TMA store to coordinates {tuple(coords)}: a store must not start at a negative coordinate")
    if tmap.element.global_bytes:
        raise Fault(f"a TMA store of {tmap.element.name} is not implemented", "unsupported")
    inside = _Inside(tmap, coords)
    if inside.empty:
        return 0
    target, nbytes = inside.global_view(memory, reading=False)
    target[...] = inside.dense_view(dense)
    return nbytes


def box_addresses(tmap: TensorMap, coords: Sequence[int]) -> NDArray[np.int64]:
    """Returns the device address of each byte of a dense box that is stored at `coords`, NOWHERE outside the tensor."""
    inside = _Inside(tmap, coords)
    dense = np.full(tmap.dense_bytes, NOWHERE)
    if not inside.empty:
        layout = tmap.byte_layout(inside.counts)
        offsets = [np.arange(n) * stride for n, stride in zip(layout.shape, layout.strides, strict=True)]
        inside.dense_view(dense)[...] = tmap.address + inside.offset + reduce(np.add.outer, offsets)
    return dense


class _Inside:
    """The part of a box that lies inside its tensor, as a range of box indices in each dimension.

    Fault if the box starts off the 16-byte grid of the innermost dimension (an H200 traps on that).
    """

    __slots__ = ("complete", "counts", "empty", "first", "offset", "tmap")

    def __init__(self, tmap: TensorMap, coords: Sequence[int]) -> None:
        if len(coords) != tmap.rank:
            raise Fault(f"TMA access with {len(coords)} coordinates to a tensor map of rank {tmap.rank}")
        if coords[0] * tmap.element.bytes % CHUNK:
            raise Fault(
                f"TMA access at inner coordinate {coords[0]} of {tmap.element.name}: byte "
                f"{coords[0] * tmap.element.bytes} of the row must be a multiple of {CHUNK}"
            )
        self.tmap = tmap
        self.complete = min(coords) >= 0 and all(map(le, coords, tmap.last_whole))
        self.empty = False
        self.first: Sequence[int] = (0,) * len(coords)
        self.counts: Sequence[int] = tmap.box_shape
        if not self.complete:
            self._clip(coords)
        starts = map(add, coords, map(mul, self.first, tmap.steps))
        self.offset = sum(map(mul, starts, tmap.pitches))

    def _clip(self, coords: Sequence[int]) -> None:
        firsts, counts = [], []
        for coord, extent, dim, step in zip(coords, self.tmap.box_shape, self.tmap.dims, self.tmap.steps, strict=True):
            first, end = 0, extent
            if coord < 0:
                first = -(coord // step)
            if coord + (extent - 1) * step >= dim:
                end = -((coord - dim) // step)
            firsts.append(first)
            counts.append(end - first)
        self.first, self.counts = firsts, counts
        self.empty = min(self.counts) <= 0

    def global_view(self, memory: GlobalMemory, reading: bool) -> tuple[NDArray[np.uint8], int]:
        """Returns the part in global memory as a byte view [.., dim 1, dim 0 bytes], and its size in bytes.

        For a read, unwritten bytes are handled as `memory.unwritten` says. For a write, the bytes are marked as
        written.
        """
        tmap = self.tmap
        layout = tmap.whole_box if self.complete else tmap.byte_layout(self.counts)
        block, offset = memory.find(tmap.address + self.offset, layout.span)
        if block.valid is not None:
            valid = np.ndarray(layout.shape, np.bool_, block.valid, offset, layout.strides)
            if not reading:
                valid[...] = True
            elif not valid.all():
                data = np.ndarray(layout.shape, np.uint8, block.data, offset, layout.strides)
                memory.unwritten.read(self._unwritten(block, offset, valid), data, valid)
        return np.ndarray(layout.shape, np.uint8, block.data, offset, layout.strides), layout.nbytes

    def _unwritten(self, block: Allocation, offset: int, valid: NDArray[np.bool_]) -> Fault:
        position = np.argwhere(~valid)[0]
        byte = offset + int(position @ np.array(valid.strides))
        at = [int(p) for p in position[::-1]]
        at[0] //= self.tmap.global_bytes
        where = tuple(f + p for f, p in zip(self.first, at, strict=True))
        return block.undefined_read(byte, f" (element {where} of the box)")

    def dense_view(self, dense: NDArray[Any]) -> NDArray[Any]:
        """Returns the part as a view of a dense box with an item for each byte, with the shape of `global_view`."""
        tmap = self.tmap
        size = tmap.element.bytes
        shape = (*tmap.box_shape[:0:-1], tmap.box_shape[0] * size)
        inner = slice(self.first[0] * size, (self.first[0] + self.counts[0]) * size)
        outer = [slice(f, f + c) for f, c in zip(self.first[:0:-1], self.counts[:0:-1], strict=True)]
        return dense.reshape(shape)[(*outer, inner)]


def _filled(tmap: TensorMap) -> NDArray[np.uint8]:
    """Returns a dense box with the fill value for elements outside the tensor."""
    size, nan_bits = tmap.element.bytes, tmap.element.nan_bits
    if not tmap.fill_nan or nan_bits is None:
        return np.zeros(tmap.dense_bytes, np.uint8)
    nan = np.frombuffer(nan_bits.to_bytes(size, "little"), np.uint8)
    return np.tile(nan, tmap.dense_bytes // size)


@dataclass(frozen=True, eq=False)
class _Place:
    positions: NDArray[np.intp]
    first: int
    nbytes: int
    order: NDArray[np.intp]
    """For each chunk in the range of a solid box, the index of that chunk in the dense box."""
    solid: bool
    """Whether the box fills the range of `nbytes` bytes at `first` without holes."""


@lru_cache(maxsize=1024)
def _place(swizzle: Swizzle, offset: int, nbytes: int, inner: int, pitch: int) -> _Place:
    if offset % SHARED_ALIGNMENT:
        raise Fault(f"TMA box at shared address {offset:#x}: must be {SHARED_ALIGNMENT}-byte aligned")
    row = np.arange(nbytes // inner)[:, None] * pitch
    swizzled = swizzle.apply(offset + row + np.arange(0, inner, CHUNK)[None, :])
    positions: NDArray[np.intp] = np.asarray(swizzled.reshape(-1) // CHUNK, np.intp)
    positions.setflags(write=False)
    first, end = int(positions.min()) * CHUNK, int(positions.max() + 1) * CHUNK
    return _Place(positions, first, end - first, np.argsort(positions), end - first == nbytes)


def _place_of(tmap: TensorMap, offset: int) -> _Place:
    place = tmap.places.get(offset)
    if place is None:
        place = _place(tmap.swizzle, offset, tmap.dense_bytes, tmap.box[0] * tmap.element.bytes, tmap.row_pitch)
        tmap.places[offset] = place
    return place


def chunk_positions(tmap: TensorMap, offset: int) -> NDArray[np.intp]:
    """Returns the chunk number (shared offset / 16) of each 16-byte chunk of a dense box that is put at `offset`.

    The swizzle is applied to the address that a chunk would have without it. Fault unless `offset` is 128-byte aligned.
    """
    return _place_of(tmap, offset).positions


def box_places(tmap: TensorMap, offset: int) -> NDArray[np.int64]:
    """Returns the shared memory offset of each byte of a dense box that is put at `offset`."""
    return (chunk_positions(tmap, offset)[:, None] * CHUNK + np.arange(CHUNK)).reshape(-1)


def write_boxes(memories: Sequence[SharedMemory], tmap: TensorMap, offset: int, dense: NDArray[np.uint8]) -> None:
    """Writes a dense box into the shared memory of several CTAs at one offset, with the map's swizzle."""
    place = _place_of(tmap, offset)
    items = dense.view(CHUNK_DTYPE)
    if not place.solid:
        for shared in memories:
            shared.check_range(place.first, place.nbytes)
            shared.write_chunks(place.positions, items)
        return
    end = place.first + place.nbytes
    chunks = slice(place.first // CHUNK, end // CHUNK)
    image = items.take(place.order)
    for shared in memories:
        shared.check_range(place.first, place.nbytes)
        shared.check_no_mbarrier(place.first, end, "filled by a TMA load")
        shared.chunks[chunks] = image
        shared.mark_valid(place.first, end, place)


def read_box(
    shared: SharedMemory, tmap: TensorMap, offset: int, coords: Sequence[int] | None = None
) -> NDArray[np.uint8]:
    """Returns the dense box at `offset` of one CTA's shared memory, without the swizzle.

    Fault on bytes never written, except those that fall outside the tensor when the box is stored at `coords`.
    """
    place = _place_of(tmap, offset)
    shared.check_range(place.first, place.nbytes)
    inside = _Inside(tmap, coords) if coords is not None else None
    if inside is None or inside.complete:
        shared.check_chunks(place.positions, place)
    elif not inside.empty:
        valid = shared.valid.view(CHUNK_DTYPE).take(place.positions).view(np.uint8)
        if not inside.dense_view(valid).all():
            shared.check_chunks(place.positions)
    return shared.chunks.take(place.positions).view(np.uint8)


# ---- im2col mode ----


def pixel_addresses(tmap: Im2colMap, start: tuple[int, ...], offsets: Sequence[int]) -> list[tuple[int, int]]:
    """Returns (device address, bytes) of each pixel's channels. A pixel outside the tensor has 0 bytes."""
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
    """Returns the dense column, with the map's fill value outside the tensor, and the number of bytes read."""
    dense = _filled(tmap.placed).reshape(tmap.pixels, -1)
    for pixel, (address, nbytes) in enumerate(places):
        if nbytes:
            dense[pixel, :nbytes] = memory.read(address, nbytes)
    return dense.reshape(-1), sum(nbytes for _, nbytes in places)


def column_addresses(tmap: Im2colMap, places: list[tuple[int, int]]) -> NDArray[np.int64]:
    """Returns the device address of each byte of a dense column that is stored, NOWHERE outside the tensor."""
    inner = np.arange(tmap.placed.dense_bytes // len(places))
    return np.concatenate([np.where(inner < nbytes, address + inner, NOWHERE) for address, nbytes in places])


def store_column(memory: GlobalMemory, places: list[tuple[int, int]], dense: NDArray[np.uint8]) -> int:
    """Stores the part of a column that lies inside the tensor. Returns the number of bytes."""
    rows = dense.reshape(len(places), -1)
    for row, (address, nbytes) in zip(rows, places, strict=True):
        if nbytes:
            memory.write(address, row[:nbytes])
    return sum(nbytes for _, nbytes in places)
