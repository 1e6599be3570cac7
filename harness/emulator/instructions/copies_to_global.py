"""Bytes that leave shared memory for global memory, in a bulk group of their thread (PTX ISA 9.7.9.25.3)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from harness.emulator.instructions.bulk_bytes import Bytes, Reduction, check, own_offset, reduced
from harness.emulator.machine import events
from harness.emulator.machine.bulk import BulkQueue
from harness.emulator.machine.events import Site
from harness.emulator.machine.lanes import Value, lane_value
from harness.emulator.machine.state import AsyncOperation, Fragment


class Departure:
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
        offset = own_offset(f, at, "the source of a bulk copy")
        check(nbytes, to, offset)
        chosen = None if mask is None else lane_value(mask, lane)
        regions = (
            events.SharedBytes(f.cta.rank, offset, nbytes),
            (events.GlobalItems(np.array([to]), np.array([nbytes])),),
        )
        read = partial(f.cta.shared.read, offset, nbytes)
        Departure(f, site, lane, read, partial(_put, f, to, how, chosen), regions, how)


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
