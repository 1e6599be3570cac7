"""Bulk tensor copies (TMA) and bulk groups (PTX ISA 9.7.9.25, 9.7.9.27)."""

from __future__ import annotations

from functools import partial

import numpy as np

from ..errors import Fault
from ..machine.barriers import MBarrier
from ..machine.fragment import Fragment, Value, lane_value
from ..machine.grid import OFFSET_MASK, RANK_SHIFT, BulkGroup, BulkQueue, Cta
from ..machine.observer import Access, Operation
from ..machine.schedule import AsyncOperation
from ..tensor_map import TensorMap
from ..tma import load_box, read_box, store_box, write_box


def _tensor_map(f: Fragment, address: int) -> tuple[str, TensorMap]:
    found = f.cta.machine.launch.tensor_maps.get(address)
    if found is None:
        raise Fault(f"the tensor map address 0x{address:x} is not that of a tensor map argument")
    return found


def _coordinates(f: Fragment, tmap: TensorMap, coordinates: tuple[Value, ...], lane: int) -> tuple[int, ...]:
    if len(coordinates) != tmap.rank:
        raise Fault(f"gives {len(coordinates)} coordinates for a tensor map of rank {tmap.rank}")
    values = (lane_value(c, lane) for c in coordinates)
    return tuple(v - (1 << 32) if v >> 31 else v for v in values)


class _Load:
    """One box on its way from global memory to the same offset of one or several CTAs."""

    def __init__(self, name: str, tmap: TensorMap, coordinates: tuple[int, ...], offset: int):
        self.name = name
        self.tmap = tmap
        self.coordinates = coordinates
        self.offset = offset
        self.box: np.ndarray | None = None

    def land(self, destinations: list[tuple[Cta, Cta, int]], operation: Operation | None) -> None:
        """Write the box into each (CTA, signalled CTA, barrier offset) and signal its bytes."""
        machine = destinations[0][0].machine
        counters = machine.counters
        if self.box is None:
            machine.observe_started(operation)
            self.box, read = load_box(machine.memory, self.tmap, self.coordinates)
            counters.tma_global_bytes_read += read
            by_tensor = counters.tma_global_bytes_read_by_tensor
            by_tensor[self.name] = by_tensor.get(self.name, 0) + read
        for cta, signalled, barrier_offset in destinations:
            cta.check_alive("a TMA load writes into")
            signalled.check_alive("a TMA load signals")
            write_box(cta.shared, self.tmap, self.offset, self.box)
            counters.tma_shared_bytes_written += self.tmap.box_bytes
            barrier: MBarrier = signalled.mbarrier(barrier_offset)
            barrier.complete_bytes(self.tmap.box_bytes)
        machine.observe_completed(operation)


def tma_load(
    f: Fragment,
    i: int,
    destination: Value,
    map_address: Value,
    coordinates: tuple[Value, ...],
    barrier: Value,
    mask: Value,
    cta_group: int,
) -> None:
    """``cp.async.bulk.tensor`` from global to shared::cluster; ``mask`` None means no multicast.

    Without ``cta_group::2`` the bytes are signalled on the barrier at the operand's offset in each destination CTA.
    With it they go to the CTA of the destination's pair that has the parity of the barrier operand's CTA, and without
    multicast exactly to the CTA the operand names.
    """
    machine, cluster = f.cta.machine, f.cta.cluster
    for lane in f.lanes:
        name, tmap = _tensor_map(f, lane_value(map_address, lane))
        where, signal = lane_value(destination, lane), lane_value(barrier, lane)
        signal_rank, signal_offset = signal >> RANK_SHIFT, signal & OFFSET_MASK
        offset = where & OFFSET_MASK
        if offset % 128:
            raise Fault(f"TMA destination offset 0x{offset:x} is not a multiple of 128")
        if mask is None:
            targets = [cluster.cta_at(where, "a TMA load")[0]]
        else:
            targets = cluster.masked(lane_value(mask, lane), "a TMA multicast")
        destinations = []
        for cta in targets:
            signalled = cta
            if cta_group == 2:
                if mask is None and signal_rank >> 1 != cta.rank >> 1:
                    raise Fault(
                        f"signals CTA rank {signal_rank}, which is not in the pair of the destination, rank {cta.rank}"
                    )
                signalled = cta.pair[signal_rank & 1]
            destinations.append((cta, signalled, signal_offset))
        load = _Load(name, tmap, _coordinates(f, tmap, coordinates, lane), offset)
        machine.counters.tma_loads += 1
        operation = None
        if machine.observers:
            accesses = [Access("global", -1, tmap.address, tmap.box_bytes, "read")]
            for cta, signalled, signal_at in destinations:
                accesses.append(Access("shared", cta.rank, offset, tmap.shared_bytes, "write"))
                accesses.append(Access("shared", signalled.rank, signal_at, 8, "signal"))
            operation = machine.observe("tma.load", f, i, accesses)
        if machine.schedule.splits_multicast:
            for one in destinations:
                machine.submit(AsyncOperation("tma.load", partial(load.land, [one], operation), (f, i)))
        else:
            machine.submit(AsyncOperation("tma.load", partial(load.land, destinations, operation), (f, i)))


def _queue(f: Fragment, lane: int) -> BulkQueue:
    return f.cta.bulk.setdefault((f.warp.index, lane), BulkQueue())


def tma_store(f: Fragment, i: int, map_address: Value, coordinates: tuple[Value, ...], source: Value) -> None:
    """``cp.async.bulk.tensor`` from shared to global, in the thread's open bulk group."""
    machine = f.cta.machine
    for lane in f.lanes:
        _, tmap = _tensor_map(f, lane_value(map_address, lane))
        where = lane_value(source, lane)
        if where >> RANK_SHIFT != f.cta.rank:
            raise Fault(f"TMA store source 0x{where:08x} is not in the CTA's own shared memory (rank {f.cta.rank})")
        offset = where & OFFSET_MASK
        if offset % 128:
            raise Fault(f"TMA source offset 0x{offset:x} is not a multiple of 128")
        queue = _queue(f, lane)
        group = queue.open
        group.reading += 1
        group.writing += 1
        machine.counters.tma_stores += 1
        operation = None
        if machine.observers:
            accesses = [
                Access("shared", f.cta.rank, offset, tmap.shared_bytes, "read"),
                Access("global", -1, tmap.address, tmap.box_bytes, "write"),
            ]
            operation = machine.observe("tma.store", f, i, accesses)
        start = _coordinates(f, tmap, coordinates, lane)
        run = partial(_read_source, f, i, tmap, start, offset, queue, group, operation)
        machine.submit(AsyncOperation("tma.store.read", run, (f, i)))


def _read_source(
    f: Fragment,
    i: int,
    tmap: TensorMap,
    coordinates: tuple[int, ...],
    offset: int,
    queue: BulkQueue,
    group: BulkGroup,
    operation: Operation | None,
) -> None:
    """First half of a store: the source has been read and may be overwritten."""
    machine = f.cta.machine
    f.cta.check_alive("a TMA store reads")
    machine.observe_started(operation)
    box = read_box(f.cta.shared, tmap, offset)
    machine.counters.tma_shared_bytes_read += tmap.box_bytes
    group.reading -= 1
    _wake(queue)
    run = partial(_write_result, f, tmap, coordinates, box, queue, group, operation)
    machine.submit(AsyncOperation("tma.store.write", run, (f, i)))


def _write_result(
    f: Fragment,
    tmap: TensorMap,
    coordinates: tuple[int, ...],
    box: np.ndarray,
    queue: BulkQueue,
    group: BulkGroup,
    operation: Operation | None,
) -> None:
    machine = f.cta.machine
    machine.counters.tma_global_bytes_written += store_box(machine.memory, tmap, coordinates, box)
    group.writing -= 1
    machine.observe_completed(operation)
    _wake(queue)


def _wake(queue: BulkQueue) -> None:
    waiters, queue.waiters = queue.waiters, []
    for fragment in waiters:
        fragment.cta.machine.progress += 1
        fragment.cta.machine.resume(fragment)


def commit_group(f: Fragment, i: int) -> None:
    """Close the open group of each lane (threads without any bulk copy have nothing to track)."""
    for lane in f.lanes:
        queue = f.cta.bulk.get((f.warp.index, lane))
        if queue is not None:
            queue.commit()
            counters = f.cta.machine.counters
            in_flight = sum(1 for group in queue.committed if group.reading)
            counters.max_stores_in_flight = max(counters.max_stores_in_flight, in_flight)
    if f.cta.machine.observers:
        f.cta.machine.observe("bulk.commit_group", f, i, done=True)


def wait_group(f: Fragment, i: int, allowed: int, reads_only: bool) -> object:
    """Suspend until at most ``allowed`` of each thread's youngest groups are pending."""
    machine = f.cta.machine
    for lane in f.lanes:
        queue = f.cta.bulk.get((f.warp.index, lane))
        if queue is not None and not queue.satisfied(allowed, reads_only):
            queue.waiters.append(f)
            kind = "read by" if reads_only else "finished by"
            on = f"bulk groups of CTA rank {f.cta.rank} warp {f.warp.index} lane {lane}"
            return machine.suspend(f, on, f"waits until at most {allowed} groups are not {kind} TMA", i)
    if machine.observers:
        machine.observe("bulk.wait_group.read" if reads_only else "bulk.wait_group", f, i, done=True)
    return None
