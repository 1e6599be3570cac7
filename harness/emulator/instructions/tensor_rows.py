"""Tensor copies beside plain boxes: boxes that are reduced, rows that are gathered and scattered (PTX ISA 9.7.9.27)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from harness.emulator.errors import Fault
from harness.emulator.instructions.bulk_bytes import COMPLETE, Bytes, Reduction, own_offset, reduced
from harness.emulator.instructions.copies_to_global import Departure
from harness.emulator.instructions.table import Effect, Translator, Unsupported, memory, only
from harness.emulator.instructions.tensor_maps import (
    coordinates_of,
    map_operand,
    signed_coordinates,
    start_operand,
    tensor_map_at,
)
from harness.emulator.machine import events
from harness.emulator.machine.events import Operation, Site
from harness.emulator.machine.lanes import Value, lane_value
from harness.emulator.machine.state import AsyncOperation, Cta, Fragment
from harness.emulator.memory.address_space import OFFSET_MASK, RANK_SHIFT
from harness.emulator.memory.tensor_map import TensorMap
from harness.emulator.ptx.ast import Instruction
from harness.emulator.units.tma import chunk_positions, load_box, read_box, store_box, write_boxes

BOX_ALIGNMENT = 128

# ---- boxes that are reduced ----

_BOX_KINDS = {"u8": "", "u16": "", "tf32": "f32"}


def _box_kind(tmap: TensorMap) -> str:
    kind = _BOX_KINDS.get(tmap.element.name, tmap.element.name)
    if not kind:
        raise Fault(f"a tensor map of type {tmap.element.name} cannot be reduced into", "tensor-map")
    return kind


def box_offset(f: Fragment, address: int) -> int:
    offset = own_offset(f, address, "the source of a TMA store")
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
        offset = box_offset(f, lane_value(source, lane))
        read = partial(read_box, f.cta.shared, tmap, offset, at)
        box = events.SharedChunks(f.cta.rank, chunk_positions(tmap, offset))
        write = partial(_put_box, f, tmap, at, how)
        Departure(f, site, lane, read, write, (box, (events.GlobalBox(tmap, at),)), how)


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
    for lane in f.lanes:
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
    """The tensor copies with ``tile::gather4`` and ``tile::scatter4``, which `bulk` passes on."""
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
