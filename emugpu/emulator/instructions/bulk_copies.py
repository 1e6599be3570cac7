"""Asynchronous copies of bytes without a tensor map, and bulk groups (PTX ISA 9.7.9.25).

A copy from shared to global memory is in a bulk group of its thread (9.7.9.25.3). A copy to shared memory signals an
mbarrier when it completes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emugpu.emulator.errors import Fault
from emugpu.emulator.instructions.accesses import own_offset
from emugpu.emulator.instructions.atomics import combine
from emugpu.emulator.instructions.copied import Bytes, Content, copied
from emugpu.emulator.instructions.table import (
    Effect,
    Translator,
    Unsupported,
    elements,
    immediate,
    instruction,
    kind_of,
    only,
    tuple_of,
)
from emugpu.emulator.machine import events
from emugpu.emulator.machine.copies import BulkQueue
from emugpu.emulator.machine.events import Operation, Site
from emugpu.emulator.machine.lanes import Value, lane_value
from emugpu.emulator.machine.state import AsyncOperation, Cta, Fragment
from emugpu.emulator.memory.address_space import OFFSET_MASK, RANK_SHIFT
from emugpu.emulator.memory.tensor_map import TensorMap
from emugpu.emulator.ptx.ast import TYPE_BYTES, Instruction
from emugpu.emulator.units.tma import NOWHERE

ALIGNMENT = 16
COMPLETE = "mbarrier::complete_tx::bytes"
"""The modifier of copies that signal an mbarrier."""
Reduction = tuple[str, str] | None
"""An operation and a type, or None for a plain copy."""


def reduced(how: Reduction, old: Bytes, new: Bytes) -> Bytes:
    """Returns the content of memory after new bytes are copied onto, or reduced with, old ones.

    Sums of f32, which exist only in global memory, flush subnormal numbers (PTX ISA 9.7.9.25.4.3).
    """
    if how is None:
        return new
    operation, kind = how
    dtype = f"u{TYPE_BYTES[kind]}"
    with np.errstate(all="ignore"):
        result = combine(
            operation, kind, np.ascontiguousarray(old).view(dtype), np.ascontiguousarray(new).view(dtype), kind == "f32"
        )
    return np.ascontiguousarray(result).view(np.uint8)


def check(nbytes: int, *addresses: int) -> None:
    if nbytes % ALIGNMENT or nbytes == 0:
        raise Fault(f"a bulk copy of {nbytes} bytes; the size must be a multiple of {ALIGNMENT}", "operand")
    for address in addresses:
        if address % ALIGNMENT:
            raise Fault(f"a bulk copy at 0x{address:x}; addresses must be multiples of {ALIGNMENT}", "alignment")


# ---- to global memory ----


def storing_lanes(f: Fragment, *operands: Value) -> Iterable[int]:
    """Returns the lanes that make a copy to global memory: the first lane with each distinct set of operands.

    ptxas 13.0 compiles them that way (UTMASTG, UBLKCP.G.S): the machine instruction has its operands in uniform
    registers and is repeated for each distinct set. All other bulk copies are repeated for each lane.
    """
    if len(f.lanes) == 1:
        return f.lanes
    first: dict[tuple[int, ...], int] = {}
    for lane in f.lanes:
        first.setdefault(tuple([lane_value(value, lane) for value in operands]), lane)
    return first.values()


class Departure:
    """A copy in flight from shared to global memory, in the thread's open bulk group.

    kind: "bulk.store" or "tma.store". read: returns the `nbytes` bytes when the copy starts. write: stores them and
    returns how many were stored. places: returns the address to which each byte goes, or NOWHERE. source, written:
    return the regions that are read and written. tmap, coordinates: those of a box, for a schedule that models how long
    it takes.
    """

    def __init__(
        self,
        f: Fragment,
        site: Site,
        lane: int,
        kind: str,
        nbytes: int,
        read: Callable[[], Bytes],
        write: Callable[[Bytes], int],
        places: Callable[[], NDArray[np.int64]],
        source: Callable[[], events.Region],
        written: Callable[[], tuple[events.Region, ...]],
        how: Reduction = None,
        tmap: TensorMap | None = None,
        coordinates: tuple[int, ...] = (),
        **detail: Any,
    ) -> None:
        self.fragment = f
        self.site = site
        self.kind = kind
        self.nbytes = nbytes
        self.read = read
        self.write = write
        self.places = places
        self.how = how
        self.tmap = tmap
        self.coordinates = coordinates
        self.queue = f.cta.bulk.setdefault((f.warp.index, lane), BulkQueue())
        self.group = self.queue.open
        self.group.reading += 1
        self.group.writing += 1
        grid = f.grid
        grid.counters.tma_stores += 1
        self.operation = None
        if grid.sink is not None:
            writes, group = written(), (lane, self.queue.number)
            reads = (source(), *writes) if how is not None else (source(),)
            self.operation = grid.operation(kind, f, site, reads, writes, group=group, reduction=how, **detail)
        grid.submit(AsyncOperation(f"{kind}.read", self._start, f, site, subject=self))

    def _start(self) -> None:
        """Does the first half: afterwards the source has been read and may be overwritten."""
        f, grid = self.fragment, self.fragment.grid
        events.report_started(grid.sink, self.operation)
        content = copied(f, self.site, self.read, self.how is not None) if grid.computes else None
        grid.counters.tma_shared_bytes_read += self.nbytes
        self.group.reading -= 1
        grid.wakeups.release(self.queue.waiters)
        grid.submit(AsyncOperation(f"{self.kind}.write", partial(self._finish, content), f, self.site, subject=self))

    def _finish(self, content: Content | None) -> None:
        """Does the second half: afterwards all bytes are in global memory."""
        grid = self.fragment.grid
        if content is not None:
            grid.counters.tma_global_bytes_written += self.write(content.data)
            content.undefine(grid.memory, self.places)
            if self.operation is not None:
                self.operation.detail["values"] = content.data
        self.group.writing -= 1
        events.report_finished(grid.sink, self.operation)
        grid.wakeups.release(self.queue.waiters)


def to_global(
    f: Fragment, site: Site, how: Reduction, destination: Value, source: Value, size: Value, mask: Value
) -> None:
    """Copies to global memory. mask: says which bytes of every 16 are written (``.cp_mask``), or None."""
    operands = (destination, source, size, 0 if mask is None else mask)
    for lane in storing_lanes(f, *operands) if how is None else f.lanes:
        to, at, nbytes = (lane_value(v, lane) for v in (destination, source, size))
        offset = own_offset(f, at, "the source of a bulk copy")
        check(nbytes, to, offset)
        chosen = None if mask is None else lane_value(mask, lane)
        source_bytes = partial(events.SharedBytes, f.cta.rank, offset, nbytes)
        read, write = partial(_bytes_at, f, offset, nbytes), partial(_put, f, to, how, chosen)
        regions = (source_bytes, partial(_items, to, nbytes))
        Departure(f, site, lane, "bulk.store", nbytes, read, write, partial(_places, to, nbytes, chosen), *regions, how)


def _items(address: int, nbytes: int) -> tuple[events.Region, ...]:
    return (events.GlobalItems(np.array([address]), np.array([nbytes])),)


def _bytes_at(f: Fragment, offset: int, nbytes: int) -> Bytes:
    return f.cta.shared.read(offset, nbytes).copy()


def _places(first: int, nbytes: int, chosen: int | None = None) -> NDArray[np.int64]:
    places = np.arange(first, first + nbytes)
    return places if chosen is None else np.where(chosen >> np.arange(nbytes) % 16 & 1, places, NOWHERE)


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


# ---- to shared memory ----


@dataclass(slots=True, eq=False)
class _Arrival:
    """Bytes in flight to one offset of one or several CTAs. read: returns what is copied when the copy starts.

    edges: how many of the first and of the last bytes become undefined (``.ignore_oob``).
    """

    read: Callable[[], Content]
    how: Reduction
    offset: int
    barrier: int
    operation: Operation | None
    edges: tuple[int, int]
    content: Content | None = None

    def land(self, targets: Sequence[Cta]) -> None:
        grid = targets[0].grid
        sink = grid.sink
        o = self.operation
        if self.content is None:
            events.report_started(sink, o)
            self.content = self.read()
        nbytes = self.content.data.size
        for cta in targets:
            cta.check_alive("a bulk copy writes into")
            data = self.content.data
            if self.how is not None:
                data = reduced(self.how, cta.shared.read(self.offset, nbytes), data)
            cta.shared.write(self.offset, data)
            self.content.undefine(cta.shared, partial(_places, self.offset, nbytes))
            first, last = self.edges
            cta.shared.poison(self.offset, first)
            cta.shared.poison(self.offset + nbytes - last, last)
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
    read: Callable[[], Content],
    source: events.Region | None,
    targets: Sequence[Cta],
    how: Reduction,
    places: tuple[int, int, int],
    edges: tuple[int, int] = (0, 0),
) -> None:
    """Issues a copy to shared memory. places: offset of the destination, offset of the mbarrier, number of bytes."""
    grid = f.grid
    offset, barrier, nbytes = places
    operation = None
    if grid.sink is not None:
        written = tuple(events.SharedBytes(cta.rank, offset, nbytes) for cta in targets)
        reads = (*(() if source is None else (source,)), *(written if how is not None else ()))
        signals = tuple((cta.rank, barrier) for cta in targets)
        operation = grid.operation(kind, f, site, reads=reads, writes=written, signals=signals, reduction=how)
    arrival = _Arrival(read, how, offset, barrier, operation, edges)
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
    edges: Sequence[Value] = (0, 0),
) -> None:
    """Executes ``cp.async.bulk`` or ``cp.reduce.async.bulk`` to shared memory. mask: None without multicast.

    edges: with ``.ignore_oob``, how many bytes at the start and at the end may lie outside of the source's allocation.
    They count for the mbarrier, and what is written for them is undefined.
    """
    for lane in f.lanes:
        to, at, nbytes = (lane_value(v, lane) for v in (destination, source, size))
        signal = lane_value(barrier, lane)
        offset = to & OFFSET_MASK
        if mask is None:
            targets: Sequence[Cta] = [_same_cta(f, to, signal)]
        else:
            targets = f.cta.cluster.masked(lane_value(mask, lane), "a bulk multicast")
        if from_global:
            check(nbytes, offset, at)
            first, last = (lane_value(edge, lane) for edge in edges)
            if max(first, last) >= ALIGNMENT:
                raise Fault(f"a bulk copy ignores {first} and {last} bytes; each must be 0..15", "operand")
            inner = max(0, nbytes - first - last)
            read: Callable[[], Bytes] = partial(_inner_bytes, f, at, nbytes, first, inner)
            region: events.Region = events.GlobalItems(np.array([at + first]), np.array([inner]))
            f.grid.counters.tma_loads += 1
        else:
            own = own_offset(f, at, "the source of a bulk copy")
            check(nbytes, offset, own)
            read, region = partial(_bytes_at, f, own, nbytes), events.SharedBytes(f.cta.rank, own, nbytes)
            first = last = 0
        places = offset, signal & OFFSET_MASK, nbytes
        content = partial(copied, f, site, read, how is not None)
        _send(f, site, "bulk.load", content, region, targets, how, places, (first, last))


def _inner_bytes(f: Fragment, at: int, nbytes: int, first: int, inner: int) -> Bytes:
    """Returns bytes of global memory, of which only some, from the first one on, are looked at."""
    if inner == nbytes:
        return f.grid.memory.read(at, nbytes).copy()
    found = np.zeros(nbytes, np.uint8)
    if inner:
        found[first : first + inner] = f.grid.memory.read(at + first, inner)
    return found


def _as_array(data: bytes) -> Content:
    return Content(np.frombuffer(data, np.uint8))


def store_async(
    f: Fragment, site: Site, how: Reduction, nbytes: int, destination: Value, values: Sequence[Value], barrier: Value
) -> None:
    """Executes ``st.async`` (``how`` is None) or ``red.async`` for each lane: registers to shared::cluster."""
    if how is None and len(f.cta.cluster.ctas) == 1:
        raise Fault(
            "st.async in a cluster of 1 CTA is undefined (PTX ISA 9.7.9.12): it needs %cluster_nctarank > 1; "
            "store (st.shared) and arrive on the mbarrier instead",
            "cluster",
        )
    for lane in f.lanes:
        to, signal = lane_value(destination, lane), lane_value(barrier, lane)
        cta = _same_cta(f, to, signal)
        if how is not None and cta is f.cta:
            raise Fault(
                f"red.async into the CTA that executes it, rank {cta.rank}, is undefined (PTX ISA 9.7.13.7): it needs "
                "another one of the cluster; reduce (red.shared) and arrive on the mbarrier instead",
                "cluster",
            )
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


# ---- the table ----


def _size(i: Instruction, w: Translator, position: int) -> str:
    return w.read(i.operands[position], "u32")


@instruction("cp.async.bulk", operands=range(3, 8), writes=0, family="tma")
def _copy(i: Instruction, w: Translator) -> Effect:
    return _bulk(i, w, "None", ("weak", "ignore_oob"))


def _bulk(i: Instruction, w: Translator, how: str, more: Sequence[str]) -> Effect:
    hint = i.has("L2::cache_hint")
    if i.has("bulk_group"):
        only(i, "async", "bulk", "global", "shared::cta", "bulk_group", "L2::cache_hint", "cp_mask", more)
        spaces = [m for m in i.modifiers if m in ("global", "shared::cta")]
        if spaces != ["global", "shared::cta"] or len(i.operands) != 3 + hint + i.has("cp_mask"):
            raise Unsupported
        mask = w.read(i.operands[-1], "b16") if i.has("cp_mask") else "None"
        pointers = [w.pointer(o) for o in i.operands[:2]]
        return Effect(to_global, [how, *pointers, _size(i, w, 2), mask])
    only(i, "async", "bulk", "global", "shared::cta", "shared::cluster", COMPLETE, "L2::cache_hint",
         "multicast::cluster", more)  # fmt: skip
    spaces = [m for m in i.modifiers if m in ("global", "shared::cta", "shared::cluster")]
    multicast, ignores = i.has("multicast::cluster"), i.has("ignore_oob")
    ways = (["shared::cluster", "global"], ["shared::cta", "global"], ["shared::cluster", "shared::cta"])
    if spaces not in ways or not i.has(COMPLETE) or len(i.operands) != 4 + hint + multicast + 2 * ignores:
        raise Unsupported
    if ignores and (spaces != ["shared::cta", "global"] or multicast):
        raise Unsupported
    if multicast and spaces != ["shared::cluster", "global"]:
        raise Unsupported
    mask = w.read(i.operands[4], "b16") if multicast else "None"
    pointers = [w.pointer(i.operands[n]) for n in (0, 1)]
    barrier = w.pointer(i.operands[3 + 2 * ignores])
    edges = [tuple_of(_size(i, w, n) for n in (3, 4))] if ignores else []
    return Effect(to_shared, [str(spaces[1] == "global"), how, *pointers, _size(i, w, 2), barrier, mask, *edges])


_OPERATIONS = ("add", "min", "max", "inc", "dec", "and", "or", "xor")
_INTO_SHARED = {"add": ("u32", "s32", "u64"), "min": ("u32", "s32"), "max": ("u32", "s32"), "inc": ("u32",),
                "dec": ("u32",), "and": ("b32",), "or": ("b32",), "xor": ("b32",)}  # fmt: skip
_INTO_GLOBAL = {
    "add": ("u32", "s32", "u64", "f32", "f64", "f16", "bf16"), "min": ("u32", "s32", "u64", "s64", "f16", "bf16"),
    "max": ("u32", "s32", "u64", "s64", "f16", "bf16"), "inc": ("u32",), "dec": ("u32",), "and": ("b32", "b64"),
    "or": ("b32", "b64"), "xor": ("b32", "b64"),
}  # fmt: skip


def operation_of(i: Instruction) -> str:
    found = [m for m in i.modifiers if m in _OPERATIONS]
    if len(found) != 1:
        raise Unsupported
    return found[0]


@instruction("cp.reduce.async.bulk", operands=range(2, 6), writes=0, family="tma")
def _reduce(i: Instruction, w: Translator) -> Effect:
    operation = operation_of(i)
    kind = kind_of(i)
    table = _INTO_GLOBAL if i.has("bulk_group") else _INTO_SHARED
    halves = kind in ("f16", "bf16") and operation == "add"
    if kind not in table[operation] or i.has("noftz") != halves:
        raise Unsupported
    return _bulk(i, w, repr((operation, kind)), ("reduce", operation, "noftz"))


@instruction("cp.async.bulk.prefetch", operands=range(1, 4), writes=0, family="other")
def _prefetch(i: Instruction, w: Translator) -> None:
    """Emits nothing, because a prefetch is only a hint."""
    if i.has("tensor"):
        only(i, "tensor", "1d", "2d", "3d", "4d", "5d", "L2", "global", "tile", "im2col", "L2::cache_hint",
             "tile::gather4", "im2col::w", "im2col::w::128")  # fmt: skip
    else:
        only(i, "L2", "global", "L2::cache_hint")


_VECTORS = {"v2": 2, "v4": 4}
_STORED = ("b32", "b64", "b128", "u32", "u64", "s32", "s64", "f32", "f64")


@instruction("st.async", operands=3, writes=0, family="memory")
def _st_async(i: Instruction, w: Translator) -> Effect:
    only(i, "weak", "shared::cluster", COMPLETE, _VECTORS)
    kind, values = kind_of(i), elements(i.operands[1])
    if kind not in _STORED or not i.has("shared::cluster") or not i.has(COMPLETE):
        raise Unsupported
    if len(values) != next((n for v, n in _VECTORS.items() if i.has(v)), 1) or len(values) * TYPE_BYTES[kind] > 16:
        raise Unsupported
    return _to_cluster(i, w, kind, "None")


@instruction("red.async", operands=3, writes=0, family="memory")
def _red_async(i: Instruction, w: Translator) -> Effect:
    only(i, "relaxed", "cluster", "shared::cluster", COMPLETE, _OPERATIONS)
    kind, operation = kind_of(i), operation_of(i)
    if kind not in _INTO_SHARED[operation] or not i.has("shared::cluster") or not i.has(COMPLETE):
        raise Unsupported
    return _to_cluster(i, w, kind, repr((operation, kind)))


def _to_cluster(i: Instruction, w: Translator, kind: str, how: str) -> Effect:
    values = tuple_of(w.read(e, kind) for e in elements(i.operands[1]))
    pointers = [w.pointer(i.operands[n]) for n in (0, 2)]
    return Effect(store_async, [how, str(TYPE_BYTES[kind]), pointers[0], values, pointers[1]])


# ---- zeros in shared memory (PTX ISA 9.7.9.14) ----


def clear(f: Fragment, site: Site, address: Value, size: Value) -> None:
    """Executes ``st.bulk``, which writes zeros."""
    for lane in f.lanes:
        where, nbytes = lane_value(address, lane), lane_value(size, lane)
        offset = own_offset(f, where, "the destination of st.bulk")
        if offset % 8 or nbytes % 8:
            raise Fault(f"st.bulk of {nbytes} bytes at 0x{offset:x}; both must be multiples of 8", "alignment", offset)
        if nbytes:
            f.cta.shared.write(offset, np.zeros(nbytes, np.uint8))
        if f.grid.sink is not None and nbytes:
            words = (0,) * (nbytes // 8)
            agent = f.agent._replace(lanes=1 << lane)
            f.grid.sink(events.Access(agent, site, "write", "shared", f.cta.rank, offset, 8, len(words), words))
    f.grid.wakeups.changes += 1


@instruction("st.bulk", operands=3, writes=0, family="memory")
def _st_bulk(i: Instruction, w: Translator) -> Effect:
    only(i, "weak", "shared::cta")
    if not i.has("shared::cta") or immediate(i.operands[2]) != 0:
        raise Unsupported
    return Effect(clear, [w.pointer(i.operands[0]), w.read(i.operands[1], "u64")])


# ---- bulk groups ----


def commit_group(f: Fragment, site: Site) -> None:
    """Closes the open group of each lane. A thread without bulk copies has no groups."""
    groups = []
    for lane in f.lanes:
        queue = f.cta.bulk.get((f.warp.index, lane))
        if queue is not None:
            groups.append((lane, queue.number))
            queue.commit()
            counters = f.grid.counters
            counters.max_stores_in_flight = max(counters.max_stores_in_flight, queue.reads_in_flight)
    if f.grid.sink is not None:
        f.grid.sink(events.Committed(f.agent, site, "bulk", tuple(groups)))


def wait_group(f: Fragment, site: Site, allowed: int, reads_only: bool) -> object:
    """Suspends until at most ``allowed`` of each thread's youngest groups are pending."""
    groups = []
    for lane in f.lanes:
        queue = f.cta.bulk.get((f.warp.index, lane))
        if queue is None:
            continue
        if not queue.satisfied(allowed, reads_only):
            queue.waiters.append(f)
            kind = "read by" if reads_only else "finished by"
            on = f"bulk groups of lane {lane} of the warp"
            return f.grid.wakeups.suspend(f, on, f"waits until at most {allowed} groups are not {kind} TMA", site)
        groups.append((lane, queue.number - allowed - 1))
    if f.grid.sink is not None:
        f.grid.sink(events.Awaited(f.agent, site, "bulk", tuple(groups), reads_only))
    return None


@instruction("cp.async.bulk.commit_group", operands=0, writes=0, family="tma")
def _commit_group(i: Instruction, w: Translator) -> Effect:
    only(i)
    return Effect(commit_group)


@instruction("cp.async.bulk.wait_group", operands=1, writes=0, blocks=True, family="tma")
def _wait_group(i: Instruction, w: Translator) -> Effect:
    only(i, "read")
    return Effect(wait_group, [str(immediate(i.operands[0])), str(i.has("read"))])
