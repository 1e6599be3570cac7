"""Tensor copies (TMA): boxes, gathered and scattered rows, and columns of pixels (PTX ISA 5.5.4, 9.7.9.27)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from emugpu.emulator.errors import Fault
from emugpu.emulator.instructions.accesses import own_offset
from emugpu.emulator.instructions.bulk_copies import (
    COMPLETE,
    Departure,
    Reduction,
    operation_of,
    reduced,
    storing_lanes,
)
from emugpu.emulator.instructions.copied import Bytes, Content, copied
from emugpu.emulator.instructions.table import Effect, Translator, Unsupported, elements, instruction, only, tuple_of
from emugpu.emulator.instructions.tensor_maps import (
    coordinates_of,
    im2col_map_at,
    map_operand,
    signed_coordinates,
    start_operand,
    tensor_map_at,
)
from emugpu.emulator.machine import events
from emugpu.emulator.machine.events import Operation, Site
from emugpu.emulator.machine.lanes import Value, lane_value
from emugpu.emulator.machine.state import AsyncOperation, Cluster, Cta, Fragment
from emugpu.emulator.memory.address_space import OFFSET_MASK, RANK_SHIFT
from emugpu.emulator.memory.tensor_map import Im2colMap, TensorMap
from emugpu.emulator.ptx.ast import Instruction
from emugpu.emulator.units.tma import (
    SHARED_ALIGNMENT,
    box_addresses,
    box_places,
    chunk_positions,
    column_addresses,
    load_box,
    load_column,
    pixel_addresses,
    read_box,
    store_box,
    store_column,
    write_boxes,
)

# ---- from global to shared memory ----


Route = tuple[Cta, Cta]
"""A CTA that receives a box, and the CTA whose barrier is signalled."""
Start = tuple[Value, ...]
"""The coordinates that an instruction gives."""
Where = tuple[Value, Value, Value]
"""The destination of a load, the mbarrier, and the mask of a multicast or None."""


@dataclass(slots=True, eq=False)
class Load:
    """A box, or data with the same layout, in flight from global memory to the same offset of one or several CTAs.

    kind: "tma.load" or "tma.gather". tmap: its layout in shared memory. coordinates: the start of a box. fetch: returns
    the data, and the number of bytes read. barrier: the mbarrier's offset.
    """

    kind: str
    name: str
    tmap: TensorMap
    coordinates: tuple[int, ...]
    fetch: Callable[[], tuple[Bytes, int]]
    offset: int = field(init=False)
    barrier: int = field(init=False)
    routes: tuple[Route, ...] = field(init=False)
    operation: Operation | None = None
    content: Content | None = None
    nbytes: int = 0
    """The bytes that have been read."""

    def issue(
        self,
        f: Fragment,
        site: Site,
        lane: int,
        reads: Callable[[], tuple[events.Region, ...]],
        where: Where,
        cta_group: int,
    ) -> None:
        """Issues the load. reads: returns the regions that are read."""
        grid, cluster = f.grid, f.cta.cluster
        to, signal = lane_value(where[0], lane), lane_value(where[1], lane)
        mask = None if where[2] is None else lane_value(where[2], lane)
        self.offset, self.barrier = to & OFFSET_MASK, signal & OFFSET_MASK
        if self.offset % SHARED_ALIGNMENT:
            text = f"TMA destination offset 0x{self.offset:x} is not a multiple of {SHARED_ALIGNMENT}"
            raise Fault(text, "alignment", self.offset)
        way = (to >> RANK_SHIFT, mask, signal >> RANK_SHIFT, cta_group)
        routes = cluster.routes.get(way)
        if routes is None:
            routes = cluster.routes[way] = _routes(cluster, to, *way[1:])
        self.routes = routes
        grid.counters.tma_loads += 1
        if grid.sink is not None:
            positions = chunk_positions(self.tmap, self.offset)
            self.operation = grid.operation(
                self.kind,
                f,
                site,
                reads=reads(),
                writes=tuple([events.SharedChunks(cta.rank, positions) for cta, _ in routes]),
                offset=self.offset,
                signals=tuple([(cta.rank, self.barrier) for _, cta in routes]),
            )
        every = range(len(routes)) if grid.choices.splits_multicast else (None,)
        for n in every:
            some = slice(None) if n is None else slice(n, n + 1)
            run = partial(self._land, f, site, some)
            grid.submit(AsyncOperation(self.kind, run, f, site, subject=(self, n or 0)))

    def _land(self, f: Fragment, site: Site, some: slice) -> None:
        """Writes the box to some of its destinations, and signals its bytes there."""
        routes = self.routes[some]
        grid, tmap = f.grid, self.tmap
        counters, sink, nbytes = grid.counters, grid.sink, tmap.box_bytes
        if self.content is None and grid.computes:
            events.report_started(sink, self.operation)
            self.content = copied(f, site, self._read)
            if self.kind == "tma.load":
                counters.tma_box_bytes += nbytes
            counters.tma_global_bytes_read += self.nbytes
            by_tensor = counters.tma_global_bytes_read_by_tensor
            by_tensor[self.name] = by_tensor.get(self.name, 0) + self.nbytes
        for cta, signalled in routes:
            cta.check_alive("a TMA load writes into")
            signalled.check_alive("a TMA load signals")
        if self.content is not None:
            write_boxes([cta.shared for cta, _ in routes], tmap, self.offset, self.content.data)
            for cta, _ in routes:
                self.content.undefine(cta.shared, partial(box_places, tmap, self.offset))
        landed = self.operation.writes[some] if self.operation is not None else ()
        for n, (_, signalled) in enumerate(routes):
            barrier = signalled.mbarrier(self.barrier)
            if sink is not None and self.operation is not None:
                o = self.operation
                sink(events.Finished(o, (landed[n],)))
                sink(events.BytesLanded(o, o.agent, o.site, signalled.rank, self.barrier, barrier.phase, nbytes))
            barrier.complete_bytes(nbytes)
        counters.tma_shared_bytes_written += nbytes * len(routes)

    def _read(self) -> Bytes:
        data, self.nbytes = self.fetch()
        return data


def _routes(cluster: Cluster, where: int, mask: int | None, signal_rank: int, cta_group: int) -> tuple[Route, ...]:
    """Returns the destinations of a TMA load, each with the CTA that is signalled. mask: None without multicast.

    Without ``cta_group::2``, each destination CTA is signalled, on the barrier at the operand's offset. With it, the
    signalled CTA is the one in the destination's pair that has the parity of the barrier operand's CTA; without
    multicast that is exactly the CTA that the operand names.
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


# ---- boxes with a reduction ----

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


def reduce_box(f: Fragment, site: Site, address: Value, start: Start, source: Value, operation: str) -> None:
    """Executes ``cp.reduce.async.bulk.tensor``: combines the box with global memory, in the map's type."""
    for lane in f.lanes:
        _, tmap = tensor_map_at(f, site, lane_value(address, lane))
        at = coordinates_of(tmap, start, lane)
        how = (operation, _box_kind(tmap))
        if operation in ("inc", "dec", "and", "or", "xor"):
            how = (operation, f"b{8 * tmap.element.bytes}")
        offset = box_offset(f, lane_value(source, lane))
        read, write = partial(read_box, f.cta.shared, tmap, offset, at), partial(_put_box, f, tmap, at, how)
        regions = (partial(_chunks, f, tmap, offset), partial(_boxes, tmap, [at]))
        places = partial(box_addresses, tmap, at)
        Departure(f, site, lane, "bulk.store", tmap.box_bytes, read, write, places, *regions, how)


def _chunks(f: Fragment, tmap: TensorMap, offset: int) -> events.Region:
    return events.SharedChunks(f.cta.rank, chunk_positions(tmap, offset))


def _boxes(tmap: TensorMap, starts: Sequence[tuple[int, ...]]) -> tuple[events.Region, ...]:
    return tuple(events.GlobalBox(tmap, at) for at in starts)


def _put_box(f: Fragment, tmap: TensorMap, at: tuple[int, ...], how: Reduction, data: Bytes) -> int:
    old, _ = load_box(f.grid.memory, tmap, at)
    return store_box(f.grid.memory, tmap, at, reduced(how, old, data))


# ---- rows: tile::gather4 and tile::scatter4 ----


ROWS = 4


def _rows(tmap: TensorMap) -> tuple[TensorMap, TensorMap]:
    """Returns two maps from one of gather4 or scatter4: of a single row, and of four rows in shared memory."""
    if tmap.rank != 2 or any(step != 1 for step in tmap.element_strides):
        raise Fault("gather4 and scatter4 need a tensor map of rank 2 without element strides", "tensor-map")
    one, four = (replace(tmap, box=(tmap.box[0], rows), element_strides=()) for rows in (1, ROWS))
    return one, four


def _row_starts(tmap: TensorMap, start: Start, lane: int) -> list[tuple[int, int]]:
    if len(start) != 1 + ROWS:
        raise Fault(f"gives {len(start)} coordinates; gather4 and scatter4 take a column and {ROWS} rows", "tensor-map")
    column, *rows = signed_coordinates(tmap, start, lane)
    return [(column, row) for row in rows]


def gather(f: Fragment, site: Site, address: Value, start: Start, where: Where, group: int) -> None:
    """Executes ``cp.async.bulk.tensor.2d...tile::gather4``: loads four rows, all from one column on."""
    for lane in f.lanes:
        name, tmap = tensor_map_at(f, site, lane_value(address, lane))
        one, four = _rows(tmap)
        starts = _row_starts(tmap, start, lane)
        load = Load("tma.gather", name, four, (), partial(_fetch_rows, f, one, starts))
        load.issue(f, site, lane, partial(_boxes, one, starts), where, group)


def _fetch_rows(f: Fragment, one: TensorMap, starts: list[tuple[int, int]]) -> tuple[Bytes, int]:
    rows = [load_box(f.grid.memory, one, start) for start in starts]
    return np.concatenate([row for row, _ in rows]), sum(nbytes for _, nbytes in rows)


def scatter(f: Fragment, site: Site, address: Value, start: Start, source: Value) -> None:
    """Executes ``...tile::scatter4``: stores four rows to four given rows."""
    for lane in storing_lanes(f, address, *start, source):
        _, tmap = tensor_map_at(f, site, lane_value(address, lane))
        one, four = _rows(tmap)
        starts = _row_starts(tmap, start, lane)
        offset = box_offset(f, lane_value(source, lane))
        read, write = partial(read_box, f.cta.shared, four, offset), partial(_put_rows, f, one, starts)
        regions = (partial(_chunks, f, four, offset), partial(_boxes, one, starts))
        Departure(f, site, lane, "bulk.store", four.box_bytes, read, write, partial(_row_places, one, starts), *regions)


def _row_places(one: TensorMap, starts: list[tuple[int, int]]) -> NDArray[np.int64]:
    return np.concatenate([box_addresses(one, at) for at in starts])


def _put_rows(f: Fragment, one: TensorMap, starts: list[tuple[int, int]], data: Bytes) -> int:
    rows = data.reshape(ROWS, -1)
    return sum(store_box(f.grid.memory, one, at, row) for at, row in zip(starts, rows, strict=True))


# ---- columns of pixels: im2col mode ----


Places = list[tuple[int, int]]
"""The device address and the size in bytes of each pixel of a column."""


def _pixels(f: Fragment, tmap: Im2colMap, start: Start, offsets: tuple[Value, ...], lane: int) -> Places:
    at = coordinates_of(tmap, start, lane)
    by = [lane_value(o, lane) & 0xFFFF for o in offsets] or [0] * (tmap.rank - 2)
    if len(by) != tmap.rank - 2:
        raise Fault(f"gives {len(by)} offsets for an im2col map of rank {tmap.rank}", "tensor-map")
    return pixel_addresses(tmap, at, by)


def _items(places: Places) -> tuple[events.Region, ...]:
    inside = [place for place in places if place[1]]
    return (events.GlobalItems(np.array([a for a, _ in inside]), np.array([n for _, n in inside])),)


def load_pixels(
    f: Fragment, site: Site, address: Value, start: Start, where: Where, group: int, offsets: tuple[Value, ...]
) -> None:
    """Executes ``cp.async.bulk.tensor...im2col`` to shared memory: a column of pixels, each shifted by the offsets."""
    for lane in f.lanes:
        name, tmap = im2col_map_at(f, site, lane_value(address, lane))
        places = _pixels(f, tmap, start, offsets, lane)
        load = Load("tma.gather", name, tmap.placed, (), partial(load_column, f.grid.memory, tmap, places))
        load.issue(f, site, lane, partial(_items, places), where, group)


def store_pixels(f: Fragment, site: Site, address: Value, start: Start, source: Value) -> None:
    """Executes ``...im2col_no_offs`` to global memory."""
    for lane in storing_lanes(f, address, *start, source):
        _, tmap = im2col_map_at(f, site, lane_value(address, lane))
        places = _pixels(f, tmap, start, (), lane)
        offset = box_offset(f, lane_value(source, lane))
        read, write = partial(read_box, f.cta.shared, tmap.placed, offset), partial(store_column, f.grid.memory, places)
        addresses = partial(column_addresses, tmap, places)
        regions = (partial(_chunks, f, tmap.placed, offset), partial(_items, places))
        Departure(f, site, lane, "bulk.store", tmap.placed.box_bytes, read, write, addresses, *regions)


# ---- boxes ----


def tma_load(f: Fragment, site: Site, address: Value, start: Start, where: Where, group: int) -> None:
    """Executes ``cp.async.bulk.tensor`` from global to shared::cluster."""
    for lane in f.lanes:
        name, tmap = tensor_map_at(f, site, lane_value(address, lane))
        at = coordinates_of(tmap, start, lane)
        load = Load("tma.load", name, tmap, at, partial(load_box, f.grid.memory, tmap, at))
        load.issue(f, site, lane, partial(_boxes, tmap, [at]), where, group)


def tma_store(f: Fragment, site: Site, address: Value, start: Start, source: Value) -> None:
    """Executes ``cp.async.bulk.tensor`` from shared to global, in the thread's open bulk group."""
    for lane in storing_lanes(f, address, *start, source):
        _, tmap = tensor_map_at(f, site, lane_value(address, lane))
        offset = box_offset(f, lane_value(source, lane))
        at = coordinates_of(tmap, start, lane)
        read, write = partial(read_box, f.cta.shared, tmap, offset, at), partial(store_box, f.grid.memory, tmap, at)
        regions = (partial(_chunks, f, tmap, offset), partial(_boxes, tmap, [at]))
        nbytes, places = tmap.box_bytes, partial(box_addresses, tmap, at)
        Departure(
            f, site, lane, "tma.store", nbytes, read, write, places, *regions, tmap=tmap, coordinates=at, offset=offset
        )


# ---- the table ----

_RANKS = ("1d", "2d", "3d", "4d", "5d")


@instruction("cp.async.bulk.tensor", operands=range(2, 7), writes=0, family="tma")
def _tensor_copy(i: Instruction, w: Translator) -> Effect:
    rank = i.modifiers[3] if len(i.modifiers) > 3 else ""
    if i.has("im2col") or i.has("im2col_no_offs"):
        if rank not in _RANKS[2:]:
            raise Unsupported
        if i.has("im2col_no_offs"):
            return _store(i, w, store_pixels, rank, "im2col_no_offs")
        return _load(i, w, load_pixels, int(rank[0]) - 2, rank, "im2col")
    of_rows = i.has("tile::scatter4") or i.has("tile::gather4")
    if rank not in _RANKS or (of_rows and rank != "2d"):
        raise Unsupported
    if of_rows and i.has("bulk_group"):
        return _store(i, w, scatter, rank, "tile::scatter4")
    if of_rows:
        return _load(i, w, gather, 0, rank, "tile::gather4")
    return _store(i, w, tma_store, rank, "tile") if i.has("bulk_group") else _load(i, w, tma_load, 0, rank, "tile")


def _load(i: Instruction, w: Translator, function: Callable[..., None], offsets: int, *words: str) -> Effect:
    """Emits a copy to shared memory. offsets: the number of im2col offsets after the mbarrier."""
    only(i, *words, "shared::cluster", "shared::cta", "global", COMPLETE, "multicast::cluster", "cta_group::1",
         "cta_group::2", "L2::cache_hint")  # fmt: skip
    multicast = i.has("multicast::cluster")
    if not i.has(COMPLETE) or len(i.operands) != 3 + (offsets > 0) + multicast + i.has("L2::cache_hint"):
        raise Unsupported
    destination, source, barrier, *rest = i.operands
    moved = elements(rest.pop(0)) if offsets else ()
    if len(moved) != offsets:
        raise Unsupported
    mask = w.read(rest[0], "b16") if multicast else "None"
    where = tuple_of([w.pointer(destination), w.pointer(barrier), mask])
    arguments = [map_operand(source, w), start_operand(source, w), where, "2" if i.has("cta_group::2") else "1"]
    return Effect(function, [*arguments, tuple_of(w.read(e, "b16") for e in moved)] if offsets else arguments)


def _store(i: Instruction, w: Translator, function: Callable[..., None], *words: str) -> Effect:
    """Emits a copy or a reduction to global memory."""
    only(i, *words, "global", "shared::cta", "bulk_group", "L2::cache_hint")
    if not i.has("bulk_group") or len(i.operands) != 2 + i.has("L2::cache_hint"):
        raise Unsupported
    target, source = i.operands[:2]
    return Effect(function, [map_operand(target, w), start_operand(target, w), w.pointer(source)])


@instruction("cp.reduce.async.bulk.tensor", operands=range(2, 6), writes=0, family="tma")
def _reduce(i: Instruction, w: Translator) -> Effect:
    operation = operation_of(i)
    effect = _store(i, w, reduce_box, *_RANKS, operation, "tile")
    return replace(effect, arguments=[*effect.arguments, repr(operation)])
