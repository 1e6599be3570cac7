"""Asynchronous copies without a tensor map: cp.async.bulk, cp.reduce.async.bulk, st.async, red.async (PTX ISA 9.7.9).

And what tensor copies do beside moving boxes: reduce, gather and scatter rows. A copy ends in bytes on an mbarrier, or,
to global memory, in a bulk group of its thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from harness.emulator.errors import Fault
from harness.emulator.instructions.reductions import combine
from harness.emulator.instructions.table import (
    CONSUMER,
    TENSOR_MEMORY,
    Effect,
    Translator,
    Unsupported,
    elements,
    immediate,
    instruction,
    kind_of,
    memory,
    only,
    tuple_of,
)
from harness.emulator.instructions.tensor_maps import (
    coordinates_of,
    im2col_map_at,
    map_operand,
    signed_coordinates,
    start_operand,
    tensor_map_at,
)
from harness.emulator.machine import events
from harness.emulator.machine.bulk import BulkQueue
from harness.emulator.machine.events import Operation, Site
from harness.emulator.machine.lanes import Value, lane_value
from harness.emulator.machine.state import AsyncOperation, Cta, Fragment
from harness.emulator.memory.address_space import OFFSET_MASK, RANK_SHIFT
from harness.emulator.memory.im2col_map import Im2colMap
from harness.emulator.memory.tensor_map import TensorMap
from harness.emulator.ptx.ast import TYPE_BYTES, Instruction
from harness.emulator.units.im2col import load_column, pixel_addresses, store_column
from harness.emulator.units.tma import chunk_positions, load_box, read_box, store_box, write_boxes

ALIGNMENT = 16
BOX_ALIGNMENT = 128
Bytes = NDArray[np.uint8]
Places = list[tuple[int, int]]
"""Device address and bytes of each pixel of a column."""
Reduction = tuple[str, str] | None
"""An operation and a type, or None for a plain copy."""


def reduced(how: Reduction, old: Bytes, new: Bytes) -> Bytes:
    """What is in memory after new bytes have come to where old ones were."""
    if how is None:
        return new
    operation, kind = how
    dtype = f"u{TYPE_BYTES[kind]}"
    with np.errstate(all="ignore"):
        result = combine(operation, kind, np.ascontiguousarray(old).view(dtype), np.ascontiguousarray(new).view(dtype))
    return np.ascontiguousarray(result).view(np.uint8)


def _own_offset(f: Fragment, address: int, what: str) -> int:
    if address >> RANK_SHIFT != f.cta.rank:
        raise Fault(f"{what} 0x{address:08x} is not in the CTA's own shared memory (rank {f.cta.rank})", "address")
    return address & OFFSET_MASK


def _check(nbytes: int, *addresses: int) -> None:
    if nbytes % ALIGNMENT or nbytes == 0:
        raise Fault(f"a bulk copy of {nbytes} bytes; the size must be a multiple of {ALIGNMENT}", "operand")
    for address in addresses:
        if address % ALIGNMENT:
            raise Fault(f"a bulk copy at 0x{address:x}; addresses must be multiples of {ALIGNMENT}", "alignment")


# ---- to shared memory: bytes on an mbarrier ----


class _Arrival:
    """Bytes on their way to one offset of one or several CTAs. read: fetches them, when the copy starts."""

    def __init__(
        self, read: Callable[[], Bytes], how: Reduction, offset: int, barrier: int, operation: Operation | None
    ) -> None:
        self.read = read
        self.how = how
        self.offset = offset
        self.barrier = barrier
        self.operation = operation
        self.data: Bytes | None = None

    def land(self, targets: Sequence[Cta]) -> None:
        grid = targets[0].grid
        sink = grid.sink
        o = self.operation
        if self.data is None:
            if o is not None and sink is not None:
                sink(events.Started(o))
            self.data = self.read().copy()
        nbytes = self.data.size
        for cta in targets:
            cta.check_alive("a bulk copy writes into")
            data = self.data
            if self.how is not None:
                data = reduced(self.how, cta.shared.read(self.offset, nbytes), data)
            cta.shared.write(self.offset, data)
            barrier = cta.mbarrier(self.barrier)
            if o is not None and sink is not None:
                o.detail["values"] = data
                sink(events.Finished(o, (events.SharedBytes(cta.rank, self.offset, nbytes),)))
                sink(events.BytesLanded(o, o.agent, o.site, cta.rank, self.barrier, barrier.phase, nbytes))
            barrier.complete_bytes(nbytes)


def _send(
    f: Fragment,
    site: Site,
    kind: str,
    read: Callable[[], Bytes],
    source: events.Region | None,
    targets: Sequence[Cta],
    how: Reduction,
    places: tuple[int, int, int],
) -> None:
    """places: offset of the destination, of the mbarrier, and the bytes."""
    grid = f.grid
    offset, barrier, nbytes = places
    operation = None
    if grid.sink is not None:
        written = tuple(events.SharedBytes(cta.rank, offset, nbytes) for cta in targets)
        reads = (*(() if source is None else (source,)), *(written if how is not None else ()))
        signals = tuple((cta.rank, barrier) for cta in targets)
        operation = grid.operation(kind, f, site, reads=reads, writes=written, signals=signals, reduction=how)
    arrival = _Arrival(read, how, offset, barrier, operation)
    groups = [[cta] for cta in targets] if grid.choices.splits_multicast else [list(targets)]
    for some in groups:
        grid.submit(AsyncOperation(kind, partial(arrival.land, some), f, site))


def _same_cta(f: Fragment, destination: int, barrier: int) -> Cta:
    if destination >> RANK_SHIFT != barrier >> RANK_SHIFT:
        raise Fault(
            f"the mbarrier 0x{barrier:08x} is not in the CTA of the destination, rank {destination >> RANK_SHIFT}",
            "cluster",
        )
    return f.cta.cluster.cta_at(destination, "a bulk copy")[0]


def to_shared(
    f: Fragment,
    site: Site,
    from_global: bool,
    how: Reduction,
    destination: Value,
    source: Value,
    size: Value,
    barrier: Value,
    mask: Value,
) -> None:
    """``cp.async.bulk`` and ``cp.reduce.async.bulk`` to shared memory of the cluster; mask: None without multicast."""
    for lane in f.lanes:
        to, at, nbytes = (lane_value(v, lane) for v in (destination, source, size))
        signal = lane_value(barrier, lane)
        offset = to & OFFSET_MASK
        if mask is None:
            targets: Sequence[Cta] = [_same_cta(f, to, signal)]
        else:
            targets = f.cta.cluster.masked(lane_value(mask, lane), "a bulk multicast")
        if from_global:
            _check(nbytes, offset, at)
            read: Callable[[], Bytes] = partial(f.grid.memory.read, at, nbytes)
            region: events.Region = events.GlobalItems(np.array([at]), np.array([nbytes]))
            f.grid.counters.tma_loads += 1
        else:
            own = _own_offset(f, at, "the source of a bulk copy")
            _check(nbytes, offset, own)
            read, region = partial(f.cta.shared.read, own, nbytes), events.SharedBytes(f.cta.rank, own, nbytes)
        _send(f, site, "bulk.load", read, region, targets, how, (offset, signal & OFFSET_MASK, nbytes))


def _as_array(data: bytes) -> Bytes:
    return np.frombuffer(data, np.uint8)


def store_async(
    f: Fragment, site: Site, how: Reduction, nbytes: int, destination: Value, values: Sequence[Value], barrier: Value
) -> None:
    """``st.async`` and ``red.async``: registers to shared memory of the cluster, each lane its own."""
    for lane in f.lanes:
        to, signal = lane_value(destination, lane), lane_value(barrier, lane)
        cta = _same_cta(f, to, signal)
        offset = to & OFFSET_MASK
        total = nbytes * len(values)
        if offset % total:
            raise Fault(
                f"address 0x{offset:x} is not a multiple of the {total} bytes of the access", "alignment", offset
            )
        mask = (1 << 8 * nbytes) - 1
        data = b"".join((lane_value(v, lane) & mask).to_bytes(nbytes, "little") for v in values)
        content = partial(_as_array, data)
        _send(f, site, "st.async", content, None, [cta], how, (offset, signal & OFFSET_MASK, total))


# ---- to global memory: bulk groups ----


class _Departure:
    """Something on its way from shared to global memory, in the thread's open bulk group.

    read: the bytes, when the copy starts; write: puts them in place and says how many there were.
    """

    def __init__(
        self,
        f: Fragment,
        site: Site,
        lane: int,
        read: Callable[[], Bytes],
        write: Callable[[Bytes], int],
        regions: tuple[events.Region, tuple[events.Region, ...]],
        how: Reduction,
    ) -> None:
        self.fragment = f
        self.site = site
        self.read = read
        self.write = write
        self.queue = f.cta.bulk.setdefault((f.warp.index, lane), BulkQueue())
        self.group = self.queue.open
        self.group.reading += 1
        self.group.writing += 1
        grid = f.grid
        grid.counters.tma_stores += 1
        self.operation = None
        if grid.sink is not None:
            source, written = regions
            reads = (source, *written) if how is not None else (source,)
            group = (lane, self.queue.number)
            self.operation = grid.operation(
                "bulk.store", f, site, reads=reads, writes=written, group=group, reduction=how
            )
        grid.submit(AsyncOperation("bulk.store.read", self._start, f, site))

    def _start(self) -> None:
        f, grid = self.fragment, self.fragment.grid
        if self.operation is not None and grid.sink is not None:
            grid.sink(events.Started(self.operation))
        data = self.read().copy()
        grid.counters.tma_shared_bytes_read += data.size
        self.group.reading -= 1
        self._wake()
        grid.submit(AsyncOperation("bulk.store.write", partial(self._finish, data), f, self.site))

    def _finish(self, data: Bytes) -> None:
        grid = self.fragment.grid
        grid.counters.tma_global_bytes_written += self.write(data)
        self.group.writing -= 1
        if self.operation is not None and grid.sink is not None:
            self.operation.detail["values"] = data
            grid.sink(events.Finished(self.operation, self.operation.writes))
        self._wake()

    def _wake(self) -> None:
        waiters, self.queue.waiters = self.queue.waiters, []
        self.fragment.grid.wakeups.resume_all(waiters)


def to_global(
    f: Fragment, site: Site, how: Reduction, destination: Value, source: Value, size: Value, mask: Value
) -> None:
    """mask: of the bytes of every 16 that are written (``.cp_mask``), or None."""
    for lane in f.lanes:
        to, at, nbytes = (lane_value(v, lane) for v in (destination, source, size))
        offset = _own_offset(f, at, "the source of a bulk copy")
        _check(nbytes, to, offset)
        chosen = None if mask is None else lane_value(mask, lane)
        regions = (
            events.SharedBytes(f.cta.rank, offset, nbytes),
            (events.GlobalItems(np.array([to]), np.array([nbytes])),),
        )
        read = partial(f.cta.shared.read, offset, nbytes)
        _Departure(f, site, lane, read, partial(_put, f, to, how, chosen), regions, how)


def _put(f: Fragment, to: int, how: Reduction, chosen: int | None, data: Bytes) -> int:
    device = f.grid.memory
    if how is not None:
        data = reduced(how, device.read(to, data.size), data)
    if chosen is None:
        device.write(to, data)
        return data.size
    written = [n for n in range(data.size) if chosen >> n % 16 & 1]
    for n in written:
        device.write(to + n, data[n : n + 1])
    return len(written)


# ---- boxes that are reduced, rows that are gathered and scattered ----

_BOX_KINDS = {"u8": "", "u16": "", "tf32": "f32"}


def _box_kind(tmap: TensorMap) -> str:
    kind = _BOX_KINDS.get(tmap.element.name, tmap.element.name)
    if not kind:
        raise Fault(f"a tensor map of type {tmap.element.name} cannot be reduced into", "tensor-map")
    return kind


def _box_offset(f: Fragment, address: int) -> int:
    offset = _own_offset(f, address, "the source of a TMA store")
    if offset % BOX_ALIGNMENT:
        raise Fault(f"TMA source offset 0x{offset:x} is not a multiple of {BOX_ALIGNMENT}", "alignment", offset)
    return offset


def reduce_box(
    f: Fragment, site: Site, operation: str, address: Value, start: tuple[Value, ...], source: Value
) -> None:
    """``cp.reduce.async.bulk.tensor``: the box is combined with what is in global memory, by the map's type."""
    for lane in f.lanes:
        _, tmap = tensor_map_at(f, site, lane_value(address, lane))
        at = coordinates_of(tmap, start, lane)
        how = (operation, _box_kind(tmap))
        if operation in ("inc", "dec", "and", "or", "xor"):
            how = (operation, f"b{8 * tmap.element.bytes}")
        offset = _box_offset(f, lane_value(source, lane))
        read = partial(read_box, f.cta.shared, tmap, offset, at)
        box = events.SharedChunks(f.cta.rank, chunk_positions(tmap, offset))
        write = partial(_put_box, f, tmap, at, how)
        _Departure(f, site, lane, read, write, (box, (events.GlobalBox(tmap, at),)), how)


def _put_box(f: Fragment, tmap: TensorMap, at: tuple[int, ...], how: Reduction, data: Bytes) -> int:
    old, _ = load_box(f.grid.memory, tmap, at)
    return store_box(f.grid.memory, tmap, at, reduced(how, old, data))


ROWS = 4


def _rows(tmap: TensorMap) -> tuple[TensorMap, TensorMap]:
    """Of a map for gather4 and scatter4: one for a single row, and one for how four of them lie in shared memory."""
    if tmap.rank != 2 or any(step != 1 for step in tmap.element_strides):
        raise Fault("gather4 and scatter4 need a tensor map of rank 2 without element strides", "tensor-map")
    one, four = (replace(tmap, box=(tmap.box[0], rows), element_strides=()) for rows in (1, ROWS))
    return one, four


def _row_starts(tmap: TensorMap, start: tuple[Value, ...], lane: int) -> list[tuple[int, int]]:
    if len(start) != 1 + ROWS:
        raise Fault(f"gives {len(start)} coordinates; gather4 and scatter4 take a column and {ROWS} rows", "tensor-map")
    column, *rows = signed_coordinates(tmap, start, lane)
    return [(column, row) for row in rows]


class _Gather:
    """Rows on their way to shared memory. fetch: gets them, and the bytes read; placed: how they lie there."""

    def __init__(self, f: Fragment, name: str, placed: TensorMap, fetch: Callable[[], tuple[Bytes, int]]) -> None:
        self.fragment = f
        self.name = name
        self.placed = placed
        self.fetch = fetch
        self.data: Bytes | None = None

    def land(self, routes: list[tuple[Cta, Cta]], offset: int, barrier: int, operation: Operation | None) -> None:
        grid = self.fragment.grid
        counters, sink = grid.counters, grid.sink
        if self.data is None:
            if operation is not None and sink is not None:
                sink(events.Started(operation))
            self.data, read = self.fetch()
            counters.tma_global_bytes_read += read
            by_tensor = counters.tma_global_bytes_read_by_tensor
            by_tensor[self.name] = by_tensor.get(self.name, 0) + read
        for cta, signalled in routes:
            cta.check_alive("a TMA load writes into")
            write_boxes([cta.shared], self.placed, offset, self.data)
            reached = signalled.mbarrier(barrier)
            if operation is not None and sink is not None:
                sink(events.Finished(operation, (events.SharedChunks(cta.rank, chunk_positions(self.placed, offset)),)))
                o, nbytes = operation, self.data.size
                sink(events.BytesLanded(o, o.agent, o.site, signalled.rank, barrier, reached.phase, nbytes))
            reached.complete_bytes(self.data.size)
        counters.tma_shared_bytes_written += self.data.size * len(routes)


def gather(
    f: Fragment,
    site: Site,
    destination: Value,
    address: Value,
    start: tuple[Value, ...],
    barrier: Value,
    mask: Value,
    group: int,
) -> None:
    """``cp.async.bulk.tensor.2d...tile::gather4``: a column and four rows."""
    for lane in f.lanes:
        name, tmap = tensor_map_at(f, site, lane_value(address, lane))
        one, four = _rows(tmap)
        starts = _row_starts(tmap, start, lane)
        copy = _Gather(f, name, four, partial(_fetch_rows, f, one, starts))
        reads = tuple(events.GlobalBox(one, at) for at in starts)
        _bring(f, site, lane, copy, reads, (destination, barrier, mask), group)


def _fetch_rows(f: Fragment, one: TensorMap, starts: list[tuple[int, int]]) -> tuple[Bytes, int]:
    rows = [load_box(f.grid.memory, one, start) for start in starts]
    return np.concatenate([row for row, _ in rows]), sum(nbytes for _, nbytes in rows)


def _bring(
    f: Fragment,
    site: Site,
    lane: int,
    copy: _Gather,
    reads: tuple[events.Region, ...],
    where: tuple[Value, Value, Value],
    group: int,
) -> None:
    """where: the destination, the mbarrier, and the mask of a multicast or None."""
    grid, cluster = f.grid, f.cta.cluster
    to, signal = (lane_value(v, lane) for v in where[:2])
    offset, signal_offset = to & OFFSET_MASK, signal & OFFSET_MASK
    if where[2] is None:
        targets: Sequence[Cta] = [cluster.cta_at(to, "a TMA load")[0]]
    else:
        targets = cluster.masked(lane_value(where[2], lane), "a TMA multicast")
    routes = [(cta, cta if group == 1 else cta.pair_member(signal >> RANK_SHIFT & 1)) for cta in targets]
    grid.counters.tma_loads += 1
    operation = None
    if grid.sink is not None:
        positions = chunk_positions(copy.placed, offset)
        operation = grid.operation(
            "tma.gather",
            f,
            site,
            reads=reads,
            writes=tuple(events.SharedChunks(cta.rank, positions) for cta in targets),
            signals=tuple((cta.rank, signal_offset) for _, cta in routes),
        )
    parts = [[route] for route in routes] if grid.choices.splits_multicast else [routes]
    for some in parts:
        run = partial(copy.land, some, offset, signal_offset, operation)
        grid.submit(AsyncOperation("tma.gather", run, f, site))


# ---- columns of pixels ----


def _pixels(f: Fragment, tmap: Im2colMap, start: tuple[Value, ...], offsets: tuple[Value, ...], lane: int) -> Places:
    at = coordinates_of(tmap, start, lane)
    by = [lane_value(o, lane) & 0xFFFF for o in offsets] or [0] * (tmap.rank - 2)
    if len(by) != tmap.rank - 2:
        raise Fault(f"gives {len(by)} offsets for an im2col map of rank {tmap.rank}", "tensor-map")
    return pixel_addresses(tmap, at, by)


def _items(places: Places) -> events.GlobalItems:
    inside = [place for place in places if place[1]]
    return events.GlobalItems(np.array([a for a, _ in inside]), np.array([n for _, n in inside]))


def load_pixels(
    f: Fragment,
    site: Site,
    destination: Value,
    address: Value,
    start: tuple[Value, ...],
    barrier: Value,
    offsets: tuple[Value, ...],
    mask: Value,
    group: int,
) -> None:
    """``cp.async.bulk.tensor...im2col`` to shared memory: a column of pixels, each moved by the offsets."""
    for lane in f.lanes:
        name, tmap = im2col_map_at(f, site, lane_value(address, lane))
        places = _pixels(f, tmap, start, offsets, lane)
        copy = _Gather(f, name, tmap.placed, partial(load_column, f.grid.memory, tmap, places))
        _bring(f, site, lane, copy, (_items(places),), (destination, barrier, mask), group)


def store_pixels(f: Fragment, site: Site, address: Value, start: tuple[Value, ...], source: Value) -> None:
    """``...im2col_no_offs`` to global memory."""
    for lane in f.lanes:
        _, tmap = im2col_map_at(f, site, lane_value(address, lane))
        places = _pixels(f, tmap, start, (), lane)
        offset = _box_offset(f, lane_value(source, lane))
        column = events.SharedChunks(f.cta.rank, chunk_positions(tmap.placed, offset))
        read = partial(read_box, f.cta.shared, tmap.placed, offset)
        write = partial(store_column, f.grid.memory, places)
        _Departure(f, site, lane, read, write, (column, (_items(places),)), None)


def scatter(f: Fragment, site: Site, address: Value, start: tuple[Value, ...], source: Value) -> None:
    """``...tile::scatter4``: four rows go to rows of their own."""
    for lane in f.lanes:
        _, tmap = tensor_map_at(f, site, lane_value(address, lane))
        one, four = _rows(tmap)
        starts = _row_starts(tmap, start, lane)
        offset = _box_offset(f, lane_value(source, lane))
        box = events.SharedChunks(f.cta.rank, chunk_positions(four, offset))
        written = tuple(events.GlobalBox(one, at) for at in starts)
        read = partial(read_box, f.cta.shared, four, offset)
        _Departure(f, site, lane, read, partial(_put_rows, f, one, starts), (box, written), None)


def _put_rows(f: Fragment, one: TensorMap, starts: list[tuple[int, int]], data: Bytes) -> int:
    rows = data.reshape(ROWS, -1)
    return sum(store_box(f.grid.memory, one, at, row) for at, row in zip(starts, rows, strict=True))


# ---- the table ----

_COMPLETE = "mbarrier::complete_tx::bytes"


def _size(i: Instruction, w: Translator, position: int) -> str:
    return w.read(i.operands[position], "u32")


@instruction("cp.async.bulk", operands=range(3, 7), writes=0, family="tma")
def _copy(i: Instruction, w: Translator) -> Effect:
    return _bulk(i, w, "None", ())


def _bulk(i: Instruction, w: Translator, how: str, more: Sequence[str]) -> Effect:
    hint = i.has("L2::cache_hint")
    if i.has("bulk_group"):
        only(i, "async", "bulk", "global", "shared::cta", "bulk_group", "L2::cache_hint", "cp_mask", more)
        spaces = [m for m in i.modifiers if m in ("global", "shared::cta")]
        if spaces != ["global", "shared::cta"] or len(i.operands) != 3 + hint + i.has("cp_mask"):
            raise Unsupported
        mask = w.read(i.operands[-1], "b16") if i.has("cp_mask") else "None"
        pointers = [w.pointer(memory(o)) for o in i.operands[:2]]
        return Effect(to_global, [how, *pointers, _size(i, w, 2), mask])
    only(i, "async", "bulk", "global", "shared::cta", "shared::cluster", _COMPLETE, "L2::cache_hint",
         "multicast::cluster", more)  # fmt: skip
    spaces = [m for m in i.modifiers if m in ("global", "shared::cta", "shared::cluster")]
    multicast = i.has("multicast::cluster")
    ways = (["shared::cluster", "global"], ["shared::cta", "global"], ["shared::cluster", "shared::cta"])
    if spaces not in ways or not i.has(_COMPLETE) or len(i.operands) != 4 + hint + multicast:
        raise Unsupported
    if multicast and spaces != ["shared::cluster", "global"]:
        raise Unsupported
    mask = w.read(i.operands[4], "b16") if multicast else "None"
    pointers = [w.pointer(memory(i.operands[n])) for n in (0, 1)]
    barrier = w.pointer(memory(i.operands[3]))
    return Effect(to_shared, [str(spaces[1] == "global"), how, *pointers, _size(i, w, 2), barrier, mask])


_OPERATIONS = ("add", "min", "max", "inc", "dec", "and", "or", "xor")
_INTO_SHARED = {"add": ("u32", "s32", "u64"), "min": ("u32", "s32"), "max": ("u32", "s32"), "inc": ("u32",),
                "dec": ("u32",), "and": ("b32",), "or": ("b32",), "xor": ("b32",)}  # fmt: skip
_INTO_GLOBAL = {
    "add": ("u32", "s32", "u64", "f32", "f64", "f16", "bf16"), "min": ("u32", "s32", "u64", "s64", "f16", "bf16"),
    "max": ("u32", "s32", "u64", "s64", "f16", "bf16"), "inc": ("u32",), "dec": ("u32",), "and": ("b32", "b64"),
    "or": ("b32", "b64"), "xor": ("b32", "b64"),
}  # fmt: skip


def _operation(i: Instruction) -> str:
    found = [m for m in i.modifiers if m in _OPERATIONS]
    if len(found) != 1:
        raise Unsupported
    return found[0]


@instruction("cp.reduce.async.bulk", operands=range(2, 6), writes=0, family="tma")
def _reduce(i: Instruction, w: Translator) -> Effect:
    operation = _operation(i)
    if i.has("tensor"):
        only(i, "tensor", "1d", "2d", "3d", "4d", "5d", "global", "shared::cta", operation, "tile", "bulk_group",
             "L2::cache_hint")  # fmt: skip
        if not i.has("bulk_group") or len(i.operands) != 2 + i.has("L2::cache_hint"):
            raise Unsupported
        target, source = i.operands[:2]
        arguments = [repr(operation), map_operand(target, w), start_operand(target, w), w.pointer(memory(source))]
        return Effect(reduce_box, arguments)
    kind = kind_of(i)
    table = _INTO_GLOBAL if i.has("bulk_group") else _INTO_SHARED
    halves = kind in ("f16", "bf16") and operation == "add"
    if kind not in table[operation] or i.has("noftz") != halves:
        raise Unsupported
    return _bulk(i, w, repr((operation, kind)), ("reduce", operation, "noftz"))


@instruction("cp.async.bulk.prefetch", operands=range(1, 4), writes=0, family="other")
def _prefetch(i: Instruction, w: Translator) -> None:
    """A hint."""
    if i.has("tensor"):
        only(i, "tensor", "1d", "2d", "3d", "4d", "5d", "L2", "global", "tile", "im2col", "L2::cache_hint",
             "tile::gather4", "im2col::w", "im2col::w::128")  # fmt: skip
    else:
        only(i, "L2", "global", "L2::cache_hint")


_VECTORS = {"v2": 2, "v4": 4}
_ST_BULK = ("sm_100", *TENSOR_MEMORY, "sm_120", *CONSUMER)
_STORED = ("b32", "b64", "u32", "u64", "s32", "s64", "f32", "f64")


@instruction("st.async", operands=3, writes=0, family="memory")
def _st_async(i: Instruction, w: Translator) -> Effect:
    only(i, "weak", "shared::cluster", _COMPLETE, _VECTORS)
    kind, values = kind_of(i), elements(i.operands[1])
    if kind not in _STORED or not i.has("shared::cluster") or not i.has(_COMPLETE):
        raise Unsupported
    if len(values) != next((n for v, n in _VECTORS.items() if i.has(v)), 1) or len(values) * TYPE_BYTES[kind] > 16:
        raise Unsupported
    return _to_cluster(i, w, kind, "None")


@instruction("red.async", operands=3, writes=0, family="memory")
def _red_async(i: Instruction, w: Translator) -> Effect:
    only(i, "relaxed", "cluster", "shared::cluster", _COMPLETE, _OPERATIONS)
    kind, operation = kind_of(i), _operation(i)
    if kind not in _INTO_SHARED[operation] or not i.has("shared::cluster") or not i.has(_COMPLETE):
        raise Unsupported
    return _to_cluster(i, w, kind, repr((operation, kind)))


def _to_cluster(i: Instruction, w: Translator, kind: str, how: str) -> Effect:
    values = tuple_of(w.read(e, kind) for e in elements(i.operands[1]))
    pointers = [w.pointer(memory(i.operands[n])) for n in (0, 2)]
    return Effect(store_async, [how, str(TYPE_BYTES[kind]), pointers[0], values, pointers[1]])


def clear(f: Fragment, site: Site, address: Value, size: Value) -> None:
    """``st.bulk``: zeros."""
    for lane in f.lanes:
        where, nbytes = lane_value(address, lane), lane_value(size, lane)
        offset = _own_offset(f, where, "the destination of st.bulk")
        if offset % 8 or nbytes % 8:
            raise Fault(f"st.bulk of {nbytes} bytes at 0x{offset:x}; both must be multiples of 8", "alignment", offset)
        if nbytes:
            f.cta.shared.write(offset, np.zeros(nbytes, np.uint8))
        if f.grid.sink is not None and nbytes:
            words = (0,) * (nbytes // 8)
            agent = f.agent._replace(lanes=1 << lane)
            f.grid.sink(events.Access(agent, site, "write", "shared", f.cta.rank, offset, 8, len(words), words))
    f.grid.wakeups.changes += 1


@instruction("st.bulk", operands=3, writes=0, family="memory", targets=_ST_BULK)
def _st_bulk(i: Instruction, w: Translator) -> Effect:
    only(i, "weak", "shared::cta")
    if not i.has("shared::cta") or immediate(i.operands[2]) != 0:
        raise Unsupported
    return Effect(clear, [w.pointer(memory(i.operands[0])), w.read(i.operands[1], "u64")])


def emit_rows(i: Instruction, w: Translator) -> Effect:
    """The tensor copies with ``tile::gather4``, ``tile::scatter4`` and ``im2col``, which `bulk` passes on."""
    if i.has("im2col") or i.has("im2col_no_offs"):
        return _emit_pixels(i, w)
    if i.has("tile::scatter4"):
        only(i, "2d", "global", "shared::cta", "tile::scatter4", "bulk_group", "L2::cache_hint")
        if not i.has("bulk_group") or not i.has("2d"):
            raise Unsupported
        target, source = i.operands[:2]
        return Effect(scatter, [map_operand(target, w), start_operand(target, w), w.pointer(memory(source))])
    only(i, "2d", "shared::cluster", "shared::cta", "global", "tile::gather4", _COMPLETE, "multicast::cluster",
         "cta_group::1", "cta_group::2", "L2::cache_hint")  # fmt: skip
    multicast = i.has("multicast::cluster")
    if not i.has(_COMPLETE) or not i.has("2d") or len(i.operands) != 3 + multicast + i.has("L2::cache_hint"):
        raise Unsupported
    destination, source, barrier, *rest = i.operands
    mask = w.read(rest[0], "b16") if multicast else "None"
    pointers = [w.pointer(memory(destination)), map_operand(source, w), start_operand(source, w)]
    group = "2" if i.has("cta_group::2") else "1"
    return Effect(gather, [*pointers, w.pointer(memory(barrier)), mask, group])


def _emit_pixels(i: Instruction, w: Translator) -> Effect:
    ranks = ("3d", "4d", "5d")
    hint = i.has("L2::cache_hint")
    if i.has("im2col_no_offs"):
        only(i, ranks, "global", "shared::cta", "im2col_no_offs", "bulk_group", "L2::cache_hint")
        if not i.has("bulk_group") or len(i.operands) != 2 + hint:
            raise Unsupported
        target, source = i.operands[:2]
        return Effect(store_pixels, [map_operand(target, w), start_operand(target, w), w.pointer(memory(source))])
    only(i, ranks, "shared::cluster", "shared::cta", "global", "im2col", _COMPLETE, "multicast::cluster",
         "cta_group::1", "cta_group::2", "L2::cache_hint")  # fmt: skip
    multicast = i.has("multicast::cluster")
    rank = next((r for r in ranks if i.has(r)), "")
    if not i.has(_COMPLETE) or not rank or len(i.operands) != 4 + multicast + hint:
        raise Unsupported
    destination, source, barrier, offsets, *rest = i.operands
    if len(elements(offsets)) != int(rank[0]) - 2:
        raise Unsupported
    mask = w.read(rest[0], "b16") if multicast else "None"
    by = tuple_of(w.read(e, "b16") for e in elements(offsets))
    pointers = [w.pointer(memory(destination)), map_operand(source, w), start_operand(source, w)]
    group = "2" if i.has("cta_group::2") else "1"
    return Effect(load_pixels, [*pointers, w.pointer(memory(barrier)), by, mask, group])
