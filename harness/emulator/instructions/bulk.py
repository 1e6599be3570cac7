"""Bulk tensor copies (TMA) and bulk groups (PTX ISA 9.7.9.25, 9.7.9.27)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from harness.emulator.errors import Fault
from harness.emulator.instructions.im2col_copies import emit_pixels
from harness.emulator.instructions.table import (
    Effect,
    Translator,
    Unsupported,
    immediate,
    instruction,
    only,
)
from harness.emulator.instructions.tensor_maps import coordinates_of, map_operand, start_operand, tensor_map_at
from harness.emulator.instructions.tensor_rows import emit_rows
from harness.emulator.machine import events
from harness.emulator.machine.bulk import BulkGroup, BulkQueue
from harness.emulator.machine.events import Operation, Site
from harness.emulator.machine.lanes import Value, lane_value
from harness.emulator.machine.state import AsyncOperation, Cluster, Cta, Fragment
from harness.emulator.memory.address_space import OFFSET_MASK, RANK_SHIFT
from harness.emulator.memory.tensor_map import TensorMap
from harness.emulator.ptx.ast import Instruction
from harness.emulator.units.tma import chunk_positions, load_box, read_box, store_box, write_boxes

SHARED_ALIGNMENT = 128


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
        """The same for some of its destinations."""
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
    for lane in f.lanes:
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


def commit_group(f: Fragment, site: Site) -> None:
    """Close the open group of each lane (threads without any bulk copy have nothing to track)."""
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
    """Suspend until at most ``allowed`` of each thread's youngest groups are pending."""
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


# ---- the table ----


@instruction("cp.async.bulk.commit_group", operands=0, writes=0, family="tma")
def _commit_group(i: Instruction, w: Translator) -> Effect:
    only(i)
    return Effect(commit_group)


@instruction("cp.async.bulk.wait_group", operands=1, writes=0, blocks=True, family="tma")
def _wait_group(i: Instruction, w: Translator) -> Effect:
    only(i, "read")
    return Effect(wait_group, [str(immediate(i.operands[0])), str(i.has("read"))])


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
