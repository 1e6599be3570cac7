"""Rebuilds the memories of a run from its event stream and the initial contents of global memory.

Nothing here uses the emulator's own TMA, MMA or memory units: boxes, operands and accumulators are written down
element by element. If what comes out differs from what the emulator holds, something is missing from the stream.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from math import prod
from typing import Any

import numpy as np

from emugpu.emulator.machine import events
from emugpu.emulator.machine.events import Operation
from emugpu.emulator.memory.descriptors import Major, MatrixDescriptor, decode, decode_sm100
from emugpu.emulator.memory.tensor_map import TensorMap

SHARED_BYTES = 1 << 18
"""More than any CTA has: the stream says where writes go, not how much there is."""
TENSOR_LANES, TENSOR_COLUMNS = 128, 512
K = 16
"""Elements along K of one MMA of 16-bit types."""

CtaName = tuple[int, int]
"""Number of the cluster, rank of the CTA."""


@dataclass
class Contents:
    """What a memory holds, and which of it was ever written."""

    data: np.ndarray
    valid: np.ndarray

    @classmethod
    def unwritten(cls, shape: int | tuple[int, ...], dtype: type) -> Contents:
        return cls(np.zeros(shape, dtype), np.zeros(shape, np.bool_))

    def copy(self) -> Contents:
        return Contents(self.data.copy(), self.valid.copy())

    def put(self, where: Any, values: Any) -> None:
        self.data[where] = values
        self.valid[where] = True

    def differences(self, other: Contents) -> str:
        """How another memory, which may be shorter, differs; nothing if it does not."""
        size = len(other.data)
        if self.valid[size:].any():
            return f"something is written beyond {size:#x}"
        for what, differ in (
            ("is written in one and not in the other", self.valid[:size] != other.valid),
            ("holds different values", (self.data[:size] != other.data) & other.valid),
        ):
            if differ.any():
                first = tuple(int(n) for n in np.argwhere(differ)[0])
                return f"{np.count_nonzero(differ)} places, the first at {first}: {what}"
        return ""


@dataclass
class Memories:
    """Of a CTA."""

    shared: Contents = field(default_factory=lambda: Contents.unwritten(SHARED_BYTES, np.uint8))
    tensor: Contents = field(default_factory=lambda: Contents.unwritten((TENSOR_LANES, TENSOR_COLUMNS), np.uint32))

    def copy(self) -> Memories:
        return Memories(self.shared.copy(), self.tensor.copy())


class Replay:
    """A sink. ``device``: allocations by first address. ``ended``: what each CTA held when it ended."""

    def __init__(self, initial: dict[int, Contents]) -> None:
        self.device = {base: contents.copy() for base, contents in initial.items()}
        self._bases = sorted(self.device)
        self._ctas: dict[CtaName, Memories] = {}
        self.ended: dict[CtaName, Memories] = {}
        self._boxes: dict[int, _Box] = {}
        self._started: set[int] = set()
        self._events: dict[type, Callable[[Any], None]] = {
            events.GridStarted: self._grid_started,
            events.CtaStarted: self._cta_started,
            events.CtaEnded: self._cta_ended,
            events.Access: self._access,
            events.Started: self._operation_started,
            events.Finished: self._operation_finished,
            events.TensorMemoryAllocated: self._allocated,
        }

    def __call__(self, event: Any) -> None:
        take = self._events.get(type(event))
        if take is not None:
            take(event)

    # ---- who there is ----

    def _grid_started(self, event: events.GridStarted) -> None:
        sizes = {base: nbytes for _, base, nbytes in event.allocations}
        assert sizes == {base: len(contents.data) for base, contents in self.device.items()}

    def _cta_started(self, event: events.CtaStarted) -> None:
        assert (event.cluster, event.cta) not in self._ctas
        self._ctas[event.cluster, event.cta] = Memories()

    def _cta_ended(self, event: events.CtaEnded) -> None:
        self.ended[event.cluster, event.cta] = self._ctas[event.cluster, event.cta].copy()

    def _allocated(self, event: events.TensorMemoryAllocated) -> None:
        """Columns come unwritten. The even CTA of a pair allocates for both."""
        cluster, cta = event.agent.cluster, event.agent.cta
        ranks = (cta,)
        if "cta_group::2" in event.site.modifiers:
            ranks = () if cta & 1 else (cta, cta + 1)
        for rank in ranks:
            columns = slice(event.column, event.column + event.columns)
            self._ctas[cluster, rank].tensor.valid[:, columns] = False

    # ---- synchronous accesses ----

    def _access(self, event: events.Access) -> None:
        if event.mode == "read":
            return
        where = np.atleast_1d(np.asarray(event.where)).astype(np.int64)
        if event.space == "shared":
            memory = self._ctas[event.agent.cluster, event.cta].shared
        else:
            assert event.space == "global"
            base, memory = self._allocation(int(where[0]))
            where = where - base
        items = event.values if event.items > 1 else (event.values,)
        assert len(items) == event.items
        for n, item in enumerate(items):
            values = _as_bytes(item, event.nbytes, len(where))
            memory.put(where[:, None] + n * event.nbytes + np.arange(event.nbytes), values)

    def _allocation(self, address: int) -> tuple[int, Contents]:
        base = self._bases[bisect_right(self._bases, address) - 1]
        assert address < base + len(self.device[base].data)
        return base, self.device[base]

    # ---- asynchronous operations ----

    def _operation_started(self, event: events.Started) -> None:
        operation = event.operation
        assert operation.id not in self._started, f"{operation.kind} starts twice"
        self._started.add(operation.id)
        if operation.kind == "tma.load":
            self._boxes[operation.id] = self._fetch(operation)
        elif operation.kind == "tma.store":
            self._boxes[operation.id] = self._gather(operation)
        elif operation.kind == "mma":
            self._multiply(operation)

    def _operation_finished(self, event: events.Finished) -> None:
        operation = event.operation
        if operation.kind == "tma.load":
            box = self._boxes[operation.id]
            for region in event.regions:
                assert set(region.chunks.tolist()) == set((box.shared // 16).ravel().tolist())
                self._ctas[operation.agent.cluster, region.cta].shared.put(box.shared, box.items)
        elif operation.kind == "tma.store":
            box = self._boxes[operation.id]
            memory = self._allocation(operation.writes[0].tensor_map.address)[1]
            memory.put(box.device[box.inside], box.items[box.inside])
        elif operation.kind == "tmem.store":
            place, values = operation.detail["place"], operation.detail["values"]
            if place.packed:
                values = np.stack([values & 0xFFFF, values >> 16])
            at = np.divmod(place.flat, TENSOR_COLUMNS)
            (block,) = event.regions
            assert set(np.unique(at[0])) <= set(block.lanes) and set(np.unique(at[1])) <= set(block.columns)
            self._ctas[operation.agent.cluster, block.cta].tensor.put(at, values)
        elif operation.kind == "cp.async":
            self._copy_items(operation)
        elif operation.kind == "launch-control":
            for region in event.regions:
                memory = self._ctas[operation.agent.cluster, region.cta].shared
                memory.put(slice(region.offset, region.offset + region.nbytes), operation.detail["answer"])

    def _copy_items(self, operation: Operation) -> None:
        """An item a lane; what the source does not give is zero."""
        (source,), (target,) = operation.reads, operation.writes
        shared = self._ctas[operation.agent.cluster, target.cta].shared
        for address, size, offset in zip(source.addresses, source.nbytes, target.offsets, strict=True):
            item = np.zeros(target.nbytes, np.uint8)
            if size:
                base, memory = self._allocation(int(address))
                at = slice(int(address) - base, int(address) - base + int(size))
                assert memory.valid[at].all()
                item[:size] = memory.data[at]
            shared.put(slice(int(offset), int(offset) + target.nbytes), item)

    def _fetch(self, operation: Operation) -> _Box:
        """What a load finds in global memory; zeros outside the tensor."""
        (source,) = operation.reads
        box = self._place(source, operation.detail["offset"])
        memory = self._allocation(source.tensor_map.address)[1]
        assert memory.valid[box.device[box.inside]].all()
        box.items[box.inside] = memory.data[box.device[box.inside]]
        return box

    def _gather(self, operation: Operation) -> _Box:
        """What a store finds in shared memory."""
        (source,), (target,) = operation.reads, operation.writes
        box = self._place(target, operation.detail["offset"])
        assert set(source.chunks.tolist()) == set((box.shared // 16).ravel().tolist())
        memory = self._ctas[operation.agent.cluster, source.cta].shared
        assert memory.valid[box.shared[box.inside]].all()
        box.items[...] = memory.data[box.shared]
        return box

    def _place(self, box: events.GlobalBox, offset: int) -> _Box:
        base, _ = self._allocation(box.tensor_map.address)
        device, inside = _device_places(box.tensor_map, box.coordinates)
        shared = _shared_places(box.tensor_map, offset)
        return _Box(device - base, shared, inside, np.zeros(shared.shape, np.uint8))

    def _multiply(self, operation: Operation) -> None:
        """tcgen05.mma.kind::f16 with f32 results."""
        what, ranks = operation.detail["mma"], operation.detail["ctas"]
        group = len(ranks)
        assert group == what.cta_group
        form = decode("f16", what.idesc, group)
        assert form.d_type == "f32"
        ctas = [self._ctas[operation.agent.cluster, rank] for rank in ranks]
        a_places = _operand_places(decode_sm100(what.a), form.m // group, form.a_major)
        b_places = _operand_places(decode_sm100(what.b_descriptor), form.n // group, form.b_major)
        a = np.concatenate([_elements(cta.shared, a_places, form.a_type) for cta in ctas])
        b = np.concatenate([_elements(cta.shared, b_places, form.b_type) for cta in ctas])
        product = -(a @ b.T) if form.negate else a @ b.T
        rows = form.m // group
        lane, column = _accumulator_places(form.m, form.n, group, what.d_address >> 16)
        column = column + (what.d_address & 0xFFFF)
        for index, cta in enumerate(ctas):
            share = product[index * rows : (index + 1) * rows]
            if what.accumulate:
                assert cta.tensor.valid[lane, column].all()
                share = share + cta.tensor.data[lane, column].view(np.float32)
            written = np.ones(share.shape, np.bool_)
            if what.lane_mask is not None:
                words = np.array(what.lane_mask[4 * index : 4 * index + 4], np.uint32)
                written = words[lane // 32] >> (lane % 32).astype(np.uint32) & 1 == 0
            cta.tensor.put((lane[written], column[written]), share.view(np.uint32)[written])


def _as_bytes(item: Any, nbytes: int, lanes: int) -> np.ndarray:
    """One value for all lanes or one a lane, as bytes [lanes, nbytes]."""
    if isinstance(item, int):
        return np.tile(np.frombuffer(item.to_bytes(nbytes, "little"), np.uint8), (lanes, 1))
    values = np.asarray(item)
    if values.itemsize != nbytes:
        values = values.astype(f"<u{nbytes}")
    return np.ascontiguousarray(values).view(np.uint8).reshape(lanes, nbytes)


# ---- boxes of tensor maps ----


@dataclass
class _Box:
    """Its bytes in the order of the tensor: place in the allocation, place in shared memory, whether it is inside the
    tensor, and value.
    """

    device: np.ndarray
    shared: np.ndarray
    inside: np.ndarray
    items: np.ndarray


@cache
def _box_indices(tmap: TensorMap) -> tuple[np.ndarray, ...]:
    """Index along each dimension (innermost first) of every byte of a box; then its number within the element."""
    steps = (1, *tmap.element_strides[1:])
    extents = [-(-extent // step) for extent, step in zip(tmap.box, steps, strict=True)]
    *outer, byte = np.indices((*reversed(extents), tmap.element.bytes))
    return (*(index * step for index, step in zip(reversed(outer), steps, strict=True)), byte)


def _device_places(tmap: TensorMap, coordinates: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Device address of every byte of a box, and whether the tensor has it."""
    *indices, byte = _box_indices(tmap)
    address = tmap.address + byte
    inside = np.ones(byte.shape, np.bool_)
    pitches = (tmap.element.bytes, *tmap.strides)
    for index, start, extent, pitch in zip(indices, coordinates, tmap.dims, pitches, strict=True):
        at = index + start
        inside &= (at >= 0) & (at < extent)
        address = address + at * pitch
    return address, inside


@cache
def _shared_places(tmap: TensorMap, offset: int) -> np.ndarray:
    """Offset in shared memory of every byte of a box; rows of a swizzled box are as long as its span."""
    shape = _box_indices(tmap)[0].shape
    inner, outer = shape[-2] * shape[-1], prod(shape[:-2])
    pitch = inner if tmap.swizzle.span_bytes == 16 else tmap.swizzle.span_bytes
    places = offset + np.arange(outer)[:, None] * pitch + np.arange(inner)
    return _swizzled(places, tmap.swizzle.span_bytes).reshape(shape)


def _swizzled(places: np.ndarray, span: int) -> np.ndarray:
    """Bits 4 and up of an address are changed by bits 7 and up: one bit for a span of 32 bytes, 2 for 64, 3 for 128."""
    return places ^ (places >> 7 & span // 16 - 1) << 4


# ---- matrices ----


@cache
def _operand_places(descriptor: MatrixDescriptor, rows: int, major: Major) -> np.ndarray:
    """Offset in shared memory of every 16-bit element [rows, K] of an operand (PTX ISA 9.7.16.3.3)."""
    span, stride, leading = descriptor.swizzle.span_bytes, descriptor.stride_bytes, descriptor.leading_bytes
    row, k = np.indices((rows, K))
    if major is Major.K and span == 16:
        offset = k // 8 * leading + row // 8 * stride + row % 8 * 16 + k % 8 * 2
    elif major is Major.K:
        offset = row // 8 * stride + row % 8 * span + k * 2
    elif span == 16:
        offset = row // 8 * stride + k // 8 * leading + k % 8 * 16 + row % 8 * 2
    else:
        across = span // 2
        offset = row // across * leading + k // 8 * stride + k % 8 * span + row % across * 2
    assert descriptor.base_offset == 0
    return _swizzled(descriptor.start + offset, span)


def _elements(shared: Contents, places: np.ndarray, element: str) -> np.ndarray:
    """bf16 or f16 values as f32."""
    both = np.stack([places, places + 1], axis=-1)
    assert shared.valid[both].all()
    bits = shared.data[both].view(np.uint16)[..., 0]
    if element == "f16":
        return bits.view(np.float16).astype(np.float32)
    return (bits.astype(np.uint32) << 16).view(np.float32)


@cache
def _accumulator_places(m: int, n: int, group: int, first_lane: int) -> tuple[np.ndarray, np.ndarray]:
    """Lane and column, from the first one, of every element of one CTA's rows of D (PTX ISA 9.7.16.10.5)."""
    row, column = np.indices((m // group, n))
    if m // group == 128:
        return row, column
    if group == 2:
        return row + 64 * (column // (n // 2)), column % (n // 2)
    return row // 16 * 32 + row % 16 + first_lane, column
