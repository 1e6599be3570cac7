"""Tensor copies (TMA): boxes, rows that are gathered and scattered, columns of pixels (PTX ISA 5.5.4, 9.7.9.27)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from harness.emulator.errors import Fault
from harness.emulator.instructions.bulk_copies import (
    COMPLETE,
    Bytes,
    Departure,
    Reduction,
    operation_of,
    own_offset,
    reduced,
    storing_lanes,
)
from harness.emulator.instructions.table import (
    Effect,
    Translator,
    Unsupported,
    elements,
    instruction,
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
from harness.emulator.machine.copies import BulkGroup, BulkQueue
from harness.emulator.machine.events import Operation, Site
from harness.emulator.machine.lanes import Value, lane_value
from harness.emulator.machine.state import AsyncOperation, Cluster, Cta, Fragment
from harness.emulator.memory.address_space import OFFSET_MASK, RANK_SHIFT
from harness.emulator.memory.tensor_map import Im2colMap, TensorMap
from harness.emulator.ptx.ast import Instruction
from harness.emulator.units.tma import (
    SHARED_ALIGNMENT,
    chunk_positions,
    load_box,
    load_column,
    pixel_addresses,
    read_box,
    store_box,
    store_column,
    write_boxes,
)

# ---- boxes that are reduced ----

_BOX_KINDS = {"u8": "", "u16": "", "tf32": "f32"}


def _box_kind(tmap: TensorMap) -> str:
    kind = _BOX_KINDS.get(tmap.element.name, tmap.element.name)
    if not kind:
        raise Fault(f"a tensor map of type {tmap.element.name} cannot be reduced into", "tensor-map")
    return kind


def box_offset(f: Fragment, address: int) -> int:
    offset = own_offset(f, address, "the source of a TMA store")
    if offset % SHARED_ALIGNMENT:
        raise Fault(f"TMA source offset 0x{offset:x} is not a multiple of {SHARED_ALIGNMENT}", "alignment", offset)
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
        offset = box_offset(f, lane_value(source, lane))
        read = partial(read_box, f.cta.shared, tmap, offset, at)
        box = events.SharedChunks(f.cta.rank, chunk_positions(tmap, offset))
        write = partial(_put_box, f, tmap, at, how)
        Departure(f, site, lane, read, write, (box, (events.GlobalBox(tmap, at),)), how)


def _put_box(f: Fragment, tmap: TensorMap, at: tuple[int, ...], how: Reduction, data: Bytes) -> int:
    old, _ = load_box(f.grid.memory, tmap, at)
    return store_box(f.grid.memory, tmap, at, reduced(how, old, data))


# ---- rows: tile::gather4 and tile::scatter4 ----


ROWS = 4


def _rows(tmap: TensorMap) -> tuple[TensorMap, TensorMap]:
    """Two maps from one of gather4 or scatter4: for a single row, and for how four of them lie in shared memory."""
    if tmap.rank != 2 or any(step != 1 for step in tmap.element_strides):
        raise Fault("gather4 and scatter4 need a tensor map of rank 2 without element strides", "tensor-map")
    one, four = (replace(tmap, box=(tmap.box[0], rows), element_strides=()) for rows in (1, ROWS))
    return one, four


def _row_starts(tmap: TensorMap, start: tuple[Value, ...], lane: int) -> list[tuple[int, int]]:
    if len(start) != 1 + ROWS:
        raise Fault(f"gives {len(start)} coordinates; gather4 and scatter4 take a column and {ROWS} rows", "tensor-map")
    column, *rows = signed_coordinates(tmap, start, lane)
    return [(column, row) for row in rows]


class RowsArrival:
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
        copy = RowsArrival(f, name, four, partial(_fetch_rows, f, one, starts))
        reads = tuple(events.GlobalBox(one, at) for at in starts)
        bring(f, site, lane, copy, reads, (destination, barrier, mask), group)


def _fetch_rows(f: Fragment, one: TensorMap, starts: list[tuple[int, int]]) -> tuple[Bytes, int]:
    rows = [load_box(f.grid.memory, one, start) for start in starts]
    return np.concatenate([row for row, _ in rows]), sum(nbytes for _, nbytes in rows)


def bring(
    f: Fragment,
    site: Site,
    lane: int,
    copy: RowsArrival,
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


def scatter(f: Fragment, site: Site, address: Value, start: tuple[Value, ...], source: Value) -> None:
    """``...tile::scatter4``: four rows go to rows of their own."""
    for lane in storing_lanes(f, address, *start, source):
        _, tmap = tensor_map_at(f, site, lane_value(address, lane))
        one, four = _rows(tmap)
        starts = _row_starts(tmap, start, lane)
        offset = box_offset(f, lane_value(source, lane))
        box = events.SharedChunks(f.cta.rank, chunk_positions(four, offset))
        written = tuple(events.GlobalBox(one, at) for at in starts)
        read = partial(read_box, f.cta.shared, four, offset)
        Departure(f, site, lane, read, partial(_put_rows, f, one, starts), (box, written), None)


def _put_rows(f: Fragment, one: TensorMap, starts: list[tuple[int, int]], data: Bytes) -> int:
    rows = data.reshape(ROWS, -1)
    return sum(store_box(f.grid.memory, one, at, row) for at, row in zip(starts, rows, strict=True))


def emit_rows(i: Instruction, w: Translator) -> Effect:
    """The tensor copies with ``tile::gather4`` and ``tile::scatter4``, which the table passes on."""
    if i.has("tile::scatter4"):
        only(i, "2d", "global", "shared::cta", "tile::scatter4", "bulk_group", "L2::cache_hint")
        if not i.has("bulk_group") or not i.has("2d"):
            raise Unsupported
        target, source = i.operands[:2]
        return Effect(scatter, [map_operand(target, w), start_operand(target, w), w.pointer(memory(source))])
    only(i, "2d", "shared::cluster", "shared::cta", "global", "tile::gather4", COMPLETE, "multicast::cluster",
         "cta_group::1", "cta_group::2", "L2::cache_hint")  # fmt: skip
    multicast = i.has("multicast::cluster")
    if not i.has(COMPLETE) or not i.has("2d") or len(i.operands) != 3 + multicast + i.has("L2::cache_hint"):
        raise Unsupported
    destination, source, barrier, *rest = i.operands
    mask = w.read(rest[0], "b16") if multicast else "None"
    pointers = [w.pointer(memory(destination)), map_operand(source, w), start_operand(source, w)]
    group = "2" if i.has("cta_group::2") else "1"
    return Effect(gather, [*pointers, w.pointer(memory(barrier)), mask, group])


# ---- columns of pixels: im2col mode ----


Places = list[tuple[int, int]]
"""Device address and bytes of each pixel of a column."""


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
        copy = RowsArrival(f, name, tmap.placed, partial(load_column, f.grid.memory, tmap, places))
        bring(f, site, lane, copy, (_items(places),), (destination, barrier, mask), group)


def store_pixels(f: Fragment, site: Site, address: Value, start: tuple[Value, ...], source: Value) -> None:
    """``...im2col_no_offs`` to global memory."""
    for lane in storing_lanes(f, address, *start, source):
        _, tmap = im2col_map_at(f, site, lane_value(address, lane))
        places = _pixels(f, tmap, start, (), lane)
        offset = box_offset(f, lane_value(source, lane))
        column = events.SharedChunks(f.cta.rank, chunk_positions(tmap.placed, offset))
        read = partial(read_box, f.cta.shared, tmap.placed, offset)
        write = partial(store_column, f.grid.memory, places)
        Departure(f, site, lane, read, write, (column, (_items(places),)), None)


def emit_pixels(i: Instruction, w: Translator) -> Effect:
    """The tensor copies with ``im2col``, which the table passes on."""
    ranks = ("3d", "4d", "5d")
    hint = i.has("L2::cache_hint")
    if i.has("im2col_no_offs"):
        only(i, ranks, "global", "shared::cta", "im2col_no_offs", "bulk_group", "L2::cache_hint")
        if not i.has("bulk_group") or len(i.operands) != 2 + hint:
            raise Unsupported
        target, source = i.operands[:2]
        return Effect(store_pixels, [map_operand(target, w), start_operand(target, w), w.pointer(memory(source))])
    only(i, ranks, "shared::cluster", "shared::cta", "global", "im2col", COMPLETE, "multicast::cluster",
         "cta_group::1", "cta_group::2", "L2::cache_hint")  # fmt: skip
    multicast = i.has("multicast::cluster")
    rank = next((r for r in ranks if i.has(r)), "")
    if not i.has(COMPLETE) or not rank or len(i.operands) != 4 + multicast + hint:
        raise Unsupported
    destination, source, barrier, offsets, *rest = i.operands
    if len(elements(offsets)) != int(rank[0]) - 2:
        raise Unsupported
    mask = w.read(rest[0], "b16") if multicast else "None"
    by = tuple_of(w.read(e, "b16") for e in elements(offsets))
    pointers = [w.pointer(memory(destination)), map_operand(source, w), start_operand(source, w)]
    group = "2" if i.has("cta_group::2") else "1"
    return Effect(load_pixels, [*pointers, w.pointer(memory(barrier)), by, mask, group])


# ---- boxes ----


Route = tuple[Cta, Cta]
"""A CTA that gets a box, and the CTA whose barrier is signalled."""


class _Load:
    """One box on its way from global memory to the same offset of one or several CTAs. barrier: its offset."""

    __slots__ = ("barrier", "box", "coordinates", "name", "offset", "operation", "routes", "tmap")

    def __init__(
        self,
        name: str,
        tmap: TensorMap,
        coordinates: tuple[int, ...],
        offset: int,
        routes: Sequence[Route],
        barrier: int,
        operation: Operation | None,
    ):
        self.name = name
        self.tmap = tmap
        self.coordinates = coordinates
        self.offset = offset
        self.routes = routes
        self.barrier = barrier
        self.operation = operation
        self.box: np.ndarray | None = None

    def land(self) -> None:
        """Write the box to all its destinations and signal its bytes."""
        self.land_in(slice(None))

    def land_in(self, some: slice) -> None:
        """Write the box to some of its destinations and signal its bytes there."""
        routes = self.routes[some]
        grid, tmap = routes[0][0].grid, self.tmap
        counters, sink, nbytes = grid.counters, grid.sink, tmap.box_bytes
        if self.box is None and grid.computes:
            if sink is not None and self.operation is not None:
                sink(events.Started(self.operation))
            self.box, read = load_box(grid.memory, tmap, self.coordinates)
            counters.tma_global_bytes_read += read
            counters.tma_box_bytes += nbytes
            by_tensor = counters.tma_global_bytes_read_by_tensor
            by_tensor[self.name] = by_tensor.get(self.name, 0) + read
        for cta, signalled in routes:
            cta.check_alive("a TMA load writes into")
            signalled.check_alive("a TMA load signals")
        if self.box is not None:
            write_boxes([cta.shared for cta, _ in routes], tmap, self.offset, self.box)
        landed = self.operation.writes[some] if self.operation is not None else ()
        for n, (_, signalled) in enumerate(routes):
            barrier = signalled.mbarrier(self.barrier)
            if sink is not None and self.operation is not None:
                o = self.operation
                sink(events.Finished(o, (landed[n],)))
                sink(events.BytesLanded(o, o.agent, o.site, signalled.rank, self.barrier, barrier.phase, nbytes))
            barrier.complete_bytes(nbytes)
        counters.tma_shared_bytes_written += nbytes * len(routes)


def _routes(cluster: Cluster, where: int, mask: int | None, signal_rank: int, cta_group: int) -> tuple[Route, ...]:
    """Where the box of a TMA load goes, and who is signalled. mask: None without multicast.

    Without ``cta_group::2`` the bytes are signalled on the barrier at the operand's offset in each destination CTA.
    With it they go to the CTA of the destination's pair that has the parity of the barrier operand's CTA, and without
    multicast exactly to the CTA the operand names.
    """
    if mask is None:
        targets: Sequence[Cta] = [cluster.cta_at(where, "a TMA load")[0]]
    else:
        targets = cluster.masked(mask, "a TMA multicast")
    if cta_group == 1:
        return tuple((cta, cta) for cta in targets)
    if mask is None and signal_rank >> 1 != targets[0].rank >> 1:
        raise Fault(
            f"signals CTA rank {signal_rank}, which is not in the pair of the destination, rank {targets[0].rank}",
            "cluster",
        )
    return tuple((cta, cta.pair_member(signal_rank & 1)) for cta in targets)


def tma_load(
    f: Fragment,
    site: Site,
    destination: Value,
    map_address: Value,
    coordinates: tuple[Value, ...],
    barrier: Value,
    mask: Value,
    cta_group: int,
) -> None:
    """``cp.async.bulk.tensor`` from global to shared::cluster; ``mask`` None means no multicast."""
    grid, cluster = f.grid, f.cta.cluster
    for lane in f.lanes:
        name, tmap = tensor_map_at(f, site, lane_value(map_address, lane))
        where, signal = lane_value(destination, lane), lane_value(barrier, lane)
        offset = where & OFFSET_MASK
        if offset % SHARED_ALIGNMENT:
            text = f"TMA destination offset 0x{offset:x} is not a multiple of {SHARED_ALIGNMENT}"
            raise Fault(text, "alignment", offset)
        way = (where >> RANK_SHIFT, None if mask is None else lane_value(mask, lane), signal >> RANK_SHIFT, cta_group)
        routes = cluster.routes.get(way)
        if routes is None:
            routes = cluster.routes[way] = _routes(cluster, where, *way[1:])
        signal_offset = signal & OFFSET_MASK
        start = coordinates_of(tmap, coordinates, lane)
        operation = None
        if grid.sink is not None:
            positions = chunk_positions(tmap, offset)
            operation = grid.operation(
                "tma.load",
                f,
                site,
                reads=(events.GlobalBox(tmap, start),),
                writes=tuple([events.SharedChunks(cta.rank, positions) for cta, _ in routes]),
                offset=offset,
                signals=tuple([(cta.rank, signal_offset) for _, cta in routes]),
            )
        load = _Load(name, tmap, start, offset, routes, signal_offset, operation)
        grid.counters.tma_loads += 1
        if grid.choices.splits_multicast:
            for n in range(len(routes)):
                run = partial(load.land_in, slice(n, n + 1))
                grid.submit(AsyncOperation("tma.load", run, f, site, subject=(load, n)))
        else:
            grid.submit(AsyncOperation("tma.load", load.land, f, site, subject=(load, 0)))


class _Store:
    """One box on its way from shared to global memory."""

    __slots__ = ("box", "coordinates", "fragment", "group", "offset", "operation", "queue", "site", "tmap")

    def __init__(
        self,
        f: Fragment,
        site: Site,
        tmap: TensorMap,
        coordinates: tuple[int, ...],
        offset: int,
        queue: BulkQueue,
        operation: Operation | None,
    ):
        self.fragment = f
        self.site = site
        self.tmap = tmap
        self.coordinates = coordinates
        self.offset = offset
        self.queue = queue
        self.group: BulkGroup = queue.open
        self.operation = operation
        self.group.reading += 1
        self.group.writing += 1
        self.box: np.ndarray | None = None

    def read(self) -> None:
        """First half: the source has been read and may be overwritten."""
        f, grid = self.fragment, self.fragment.grid
        if self.operation is not None and grid.sink is not None:
            grid.sink(events.Started(self.operation))
        if grid.computes:
            self.box = read_box(f.cta.shared, self.tmap, self.offset, self.coordinates)
        grid.counters.tma_shared_bytes_read += self.tmap.box_bytes
        self.group.reading -= 1
        self._wake()
        grid.submit(AsyncOperation("tma.store.write", self.write, f, self.site, subject=self))

    def write(self) -> None:
        """Second half: the box is in global memory."""
        grid = self.fragment.grid
        if self.box is not None:
            grid.counters.tma_global_bytes_written += store_box(grid.memory, self.tmap, self.coordinates, self.box)
        self.group.writing -= 1
        if self.operation is not None and grid.sink is not None:
            grid.sink(events.Finished(self.operation, self.operation.writes))
        self._wake()

    def _wake(self) -> None:
        waiters, self.queue.waiters = self.queue.waiters, []
        self.fragment.grid.wakeups.resume_all(waiters)


def tma_store(f: Fragment, site: Site, map_address: Value, coordinates: tuple[Value, ...], source: Value) -> None:
    """``cp.async.bulk.tensor`` from shared to global, in the thread's open bulk group."""
    grid = f.grid
    for lane in storing_lanes(f, map_address, *coordinates, source):
        _, tmap = tensor_map_at(f, site, lane_value(map_address, lane))
        where = lane_value(source, lane)
        if where >> RANK_SHIFT != f.cta.rank:
            raise Fault(
                f"TMA store source 0x{where:08x} is not in the CTA's own shared memory (rank {f.cta.rank})", "address"
            )
        offset = where & OFFSET_MASK
        if offset % SHARED_ALIGNMENT:
            text = f"TMA source offset 0x{offset:x} is not a multiple of {SHARED_ALIGNMENT}"
            raise Fault(text, "alignment", offset)
        queue = f.cta.bulk.setdefault((f.warp.index, lane), BulkQueue())
        start = coordinates_of(tmap, coordinates, lane)
        grid.counters.tma_stores += 1
        operation = None
        if grid.sink is not None:
            operation = grid.operation(
                "tma.store",
                f,
                site,
                reads=(events.SharedChunks(f.cta.rank, chunk_positions(tmap, offset)),),
                writes=(events.GlobalBox(tmap, start),),
                offset=offset,
                group=(lane, queue.number),
            )
        store = _Store(f, site, tmap, start, offset, queue, operation)
        grid.submit(AsyncOperation("tma.store.read", store.read, f, site, subject=store))


@instruction("cp.async.bulk.tensor", operands=range(2, 7), writes=0, family="tma")
def _tensor_copy(i: Instruction, w: Translator) -> Effect:
    if i.has("im2col") or i.has("im2col_no_offs"):
        return emit_pixels(i, w)
    if i.has("tile::gather4") or i.has("tile::scatter4"):
        return emit_rows(i, w)
    rank = i.modifiers[3] if len(i.modifiers) > 3 else ""
    if rank not in ("1d", "2d", "3d", "4d", "5d"):
        raise Unsupported
    common = (rank, "global", "tile", "L2::cache_hint")
    if i.has("bulk_group"):
        only(i, common, "shared::cta", "bulk_group")
        target, source = i.operands[:2]
        return Effect(tma_store, [map_operand(target, w), start_operand(target, w), w.pointer(source)])
    only(
        i, common, "shared::cluster", "shared::cta", "mbarrier::complete_tx::bytes", "multicast::cluster",
        "cta_group::1", "cta_group::2",
    )  # fmt: skip
    if not i.has("mbarrier::complete_tx::bytes") or len(i.operands) < 3 + i.has("multicast::cluster"):
        raise Unsupported
    destination, source, barrier, *rest = i.operands
    mask = w.read(rest[0], "b16") if i.has("multicast::cluster") else "None"
    group = "2" if i.has("cta_group::2") else "1"
    arguments = [
        w.pointer(destination),
        map_operand(source, w),
        start_operand(source, w),
        w.pointer(barrier),
        mask,
        group,
    ]
    return Effect(tma_load, arguments)


@instruction("cp.reduce.async.bulk.tensor", operands=range(2, 6), writes=0, family="tma")
def _reduce(i: Instruction, w: Translator) -> Effect:
    operation = operation_of(i)
    only(i, "1d", "2d", "3d", "4d", "5d", "global", "shared::cta", operation, "tile", "bulk_group", "L2::cache_hint")
    if not i.has("bulk_group") or len(i.operands) != 2 + i.has("L2::cache_hint"):
        raise Unsupported
    target, source = i.operands[:2]
    return Effect(
        reduce_box, [repr(operation), map_operand(target, w), start_operand(target, w), w.pointer(memory(source))]
    )
