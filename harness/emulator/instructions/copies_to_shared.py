"""Bytes that come to shared memory and end on an mbarrier: cp.async.bulk, cp.reduce.async.bulk, st.async, red.async."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from harness.emulator.errors import Fault
from harness.emulator.instructions.bulk_bytes import Bytes, Reduction, check, own_offset, reduced
from harness.emulator.machine import events
from harness.emulator.machine.events import Operation, Site
from harness.emulator.machine.lanes import Value, lane_value
from harness.emulator.machine.state import AsyncOperation, Cta, Fragment
from harness.emulator.memory.address_space import OFFSET_MASK, RANK_SHIFT


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
            check(nbytes, offset, at)
            read: Callable[[], Bytes] = partial(f.grid.memory.read, at, nbytes)
            region: events.Region = events.GlobalItems(np.array([at]), np.array([nbytes]))
            f.grid.counters.tma_loads += 1
        else:
            own = own_offset(f, at, "the source of a bulk copy")
            check(nbytes, offset, own)
            read, region = partial(f.cta.shared.read, own, nbytes), events.SharedBytes(f.cta.rank, own, nbytes)
        _send(f, site, "bulk.load", read, region, targets, how, (offset, signal & OFFSET_MASK, nbytes))


def _as_array(data: bytes) -> Bytes:
    return np.frombuffer(data, np.uint8)


def store_async(
    f: Fragment, site: Site, how: Reduction, nbytes: int, destination: Value, values: Sequence[Value], barrier: Value
) -> None:
    """``st.async`` (no ``how``) and ``red.async``: registers to shared memory of the cluster, each lane its own."""
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
