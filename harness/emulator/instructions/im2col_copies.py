"""Tensor copies in im2col mode: columns of pixels, to shared memory and to global memory (PTX ISA 5.5.4)."""

from __future__ import annotations

from functools import partial

import numpy as np

from harness.emulator.errors import Fault
from harness.emulator.instructions.bulk_bytes import COMPLETE
from harness.emulator.instructions.copies_to_global import Departure
from harness.emulator.instructions.table import Effect, Translator, Unsupported, elements, memory, only, tuple_of
from harness.emulator.instructions.tensor_maps import coordinates_of, im2col_map_at, map_operand, start_operand
from harness.emulator.instructions.tensor_rows import RowsArrival, box_offset, bring
from harness.emulator.machine import events
from harness.emulator.machine.events import Site
from harness.emulator.machine.lanes import Value, lane_value
from harness.emulator.machine.state import Fragment
from harness.emulator.memory.im2col_map import Im2colMap
from harness.emulator.ptx.ast import Instruction
from harness.emulator.units.im2col import load_column, pixel_addresses, store_column
from harness.emulator.units.tma import chunk_positions, read_box

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
    for lane in f.lanes:
        _, tmap = im2col_map_at(f, site, lane_value(address, lane))
        places = _pixels(f, tmap, start, (), lane)
        offset = box_offset(f, lane_value(source, lane))
        column = events.SharedChunks(f.cta.rank, chunk_positions(tmap.placed, offset))
        read = partial(read_box, f.cta.shared, tmap.placed, offset)
        write = partial(store_column, f.grid.memory, places)
        Departure(f, site, lane, read, write, (column, (_items(places),)), None)


def emit_pixels(i: Instruction, w: Translator) -> Effect:
    """The tensor copies with ``im2col``, which `bulk` passes on."""
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
