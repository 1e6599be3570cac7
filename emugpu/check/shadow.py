"""Shadow memory records the accesses to each byte of shared, global and tensor memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from emugpu.check.clocks import Components
from emugpu.check.history import GENERIC, TENSOR, Conflict, Histories, Observer, different
from emugpu.check.pending import Chunks, Earlier, Known, Pending, PendingAccesses, Several, span
from emugpu.check.record import Record, scope_of
from emugpu.check.threads import Moment
from emugpu.emulator.machine.events import Access, GlobalBox
from emugpu.emulator.memory.bytes import CHUNK
from emugpu.emulator.memory.tensor_map import TensorMap
from emugpu.emulator.memory.tmem import COLUMNS, LANES

WHOLE = (1 << CHUNK) - 1
DIVIDED = -1
HISTORY_LIMIT = 1 << 14
"""With more histories than this, shadow memory deletes those that no place has any more."""

OnStep = Callable[[list[Conflict], list[tuple[Record, Record]], int, int, Observer], None]
"""Receives the conflicts and the ordered pairs of a step, the first byte, the number of bytes, and the observer."""


class ShadowMemory:
    """Records accesses by chunks of 16 bytes, or by single bytes where accesses divide a chunk.

    ``cells`` holds the number of each chunk's history, or DIVIDED.
    """

    def __init__(self, nbytes: int, on_step: OnStep, defers: bool = False) -> None:
        """``defers``: findings may be reported later than the accesses that cause them."""
        self.histories = Histories(GENERIC)
        self.defers = defers
        self._pending: PendingAccesses | None = None
        self.cells: NDArray[np.int32] = np.zeros(-(-nbytes // CHUNK), np.int32)
        self.divided: dict[int, list[int]] = {}
        self._on_step = on_step
        self._history_limit = HISTORY_LIMIT

    def pass_barrier(self, earlier: Earlier) -> None:
        """Handles a barrier of all threads of the CTA, which are the only ones that access the memory.

        ``earlier`` are the accesses between those that the memory knows and the barrier.
        """
        if self.defers:
            if self._pending is None:
                self._pending = PendingAccesses(self.cells, self._apply, self._forget)
            self._pending.pass_barrier(earlier)
        else:
            for event, moment in earlier:
                self._apply(event, moment)

    def add_pending(self, accesses: Several, mode: str, moment: Moment, whole: Chunks, chunks: Chunks) -> bool:
        """Adds weak accesses by a thread of the CTA that owns the memory, all reads or all writes.

        ``whole`` and ``chunks`` are those of `Pending`. Returns False if the accesses lie outside of the
        memory, which ends the run.
        """
        if chunks[-1] >= len(self.cells):
            return False
        if self._pending is not None and not self._pending.pays:
            self._pending.settle(chunks)
            self._pending, self.defers = None, False
        if not self.defers:
            for event in accesses:
                self._apply(event, moment)
            return True
        if self._pending is None:
            self._pending = PendingAccesses(self.cells, self._apply, self._forget)
        self._pending.add(Pending(accesses, mode, moment, whole, chunks))
        return True

    def settle(self) -> None:
        """Checks the pending accesses; no access follows."""
        if self._pending is not None:
            self._pending.close()

    def leave_to_histories(self, moments: list[Moment]) -> None:
        """Lets the histories decide on later accesses to what was accessed at these moments."""
        if self._pending is not None:
            self._pending.leave_to_histories(moments)

    def _apply(self, event: Access, moment: Moment) -> bool:
        """Returns whether the access is a write and is now the only access in the histories of its chunks."""
        record = record_of(event, moment)
        self._access(event.where, event.nbytes * event.items, record, moment.observer)
        if not record.writes:
            return False
        numbers = set(self.cells[span(event)[1]].tolist())
        return all(n != DIVIDED and self.histories.all[n][:2] == ((record,), ()) for n in numbers)

    def _forget(self, chunks: Chunks) -> None:
        self.cells[chunks] = 0
        for chunk in self.divided.keys() & chunks.tolist():
            del self.divided[chunk]

    def access(self, where: int | NDArray[np.integer], nbytes: int, record: Record, observer: Observer) -> None:
        """Records an access to ``nbytes`` at one place or at several."""
        if self._pending is not None:
            whole, parts = chunks_of(where, nbytes)
            self._pending.settle(np.concatenate([whole, np.array([chunk for chunk, _ in parts], np.int64)]))
        self._access(where, nbytes, record, observer)

    def _access(self, where: int | NDArray[np.integer], nbytes: int, record: Record, observer: Observer) -> None:
        whole, parts = chunks_of(where, nbytes)
        if len(whole):
            self._access_chunks(whole, record, observer)
        for chunk, mask in parts:
            self._access_bytes(chunk, mask, record, observer)
        if len(self.histories.all) > self._history_limit:
            self._tidy()

    def access_chunks(self, chunks: Chunks, record: Record, observer: Observer) -> int:
        """Records an access to chunks. Returns how many of them had never been accessed."""
        if self._pending is not None:
            self._pending.settle(chunks.ravel())
        return self._access_chunks(chunks, record, observer)

    def _access_chunks(self, chunks: Chunks, record: Record, observer: Observer) -> int:
        cells, chunks = self.cells, chunks.ravel()
        now = cells[chunks]
        first = int(now[0])
        if first != DIVIDED and (now == first).all():
            new = self._step(first, record, observer, int(chunks[0]) * CHUNK, len(chunks) * CHUNK)
            if new != first:
                cells[chunks] = new
            fresh = 0 if first else len(chunks)
        else:
            fresh = self._access_unlike(chunks, now, record, observer)
        if len(self.histories.all) > self._history_limit:
            self._tidy()
        return fresh

    def _access_unlike(self, chunks: Chunks, now: NDArray[np.int32], record: Record, observer: Observer) -> int:
        numbers = different(now)
        table = np.empty(numbers[-1] + 2, np.int32)
        table[DIVIDED] = DIVIDED
        for number in numbers:
            if number == DIVIDED:
                continue
            table[number] = self.histories.step(number, record, observer)
            if self.histories.has_found:
                own = chunks[now == number]
                self._report(int(own[0]) * CHUNK, len(own) * CHUNK, observer)
        self.cells[chunks] = table[now]
        if numbers[0] == DIVIDED:
            for chunk in chunks[now == DIVIDED].tolist():
                self._access_bytes(chunk, WHOLE, record, observer)
        return int(np.count_nonzero(now == 0))

    def _access_bytes(self, chunk: int, mask: int, record: Record, observer: Observer) -> None:
        held = self.divided.get(chunk)
        if held is None:
            held = self.divided[chunk] = [int(self.cells[chunk])] * CHUNK
            self.cells[chunk] = DIVIDED
        before = after = -1
        for byte in _bytes_of(mask):
            if held[byte] != before:
                before = held[byte]
                after = self.histories.step(before, record, observer)
                if self.histories.has_found:
                    alike = [n for n in _bytes_of(mask) if n >= byte and held[n] == before]
                    self._report(chunk * CHUNK + byte, len(alike), observer)
            held[byte] = after
        if held.count(held[0]) == CHUNK or (mask == WHOLE and self._alike(held)):
            self.cells[chunk] = held[0]
            del self.divided[chunk]

    def _alike(self, numbers: list[int]) -> bool:
        """Returns whether the histories differ only in what came before the last write."""
        last = {self.histories.all[number][:2] for number in numbers}
        return len(last) == 1

    def _step(self, number: int, record: Record, observer: Observer, place: int, nbytes: int) -> int:
        new = self.histories.known(number, record)
        if new is None:
            new = self.histories.step(number, record, observer)
            if self.histories.has_found:
                self._report(place, nbytes, observer)
        return new

    def _report(self, place: int, nbytes: int, observer: Observer) -> None:
        found = self.histories
        self._on_step(found.conflicts, found.ordered, place, nbytes, observer)
        found.clear()

    def _tidy(self) -> None:
        new = self.histories.keep_only(chain(np.unique(self.cells).tolist(), *self.divided.values()))
        self.cells = new[self.cells]
        for chunk, numbers in self.divided.items():
            self.divided[chunk] = new[numbers].tolist()
        self._history_limit = max(HISTORY_LIMIT, 2 * len(self.histories.all))


def _stored(event: Access) -> tuple[object, ...] | None:
    """Returns a write's addresses and values, or None for other accesses."""
    if event.mode != "write":
        return None
    items = event.values if isinstance(event.values, tuple) else (event.values,)
    return tuple(part.tobytes() if isinstance(part, np.ndarray) else part for part in (event.where, *items))


def record_of(event: Access, moment: Moment) -> Record:
    """Returns the record of an access; an access that the same instruction repeats at one moment has one record."""
    agent, site, writes = event.agent, event.site, event.mode != "read"
    key = (site.index, agent.lanes, writes, _stored(event))
    record = moment.records.get(key)
    if record is None:
        about = (moment.space, moment.who, moment.time, "generic", writes, agent, site, moment.order)
        touched, values = [(event.where, event.nbytes * event.items)], event.values if event.mode == "write" else None
        record = Record(*about, scope_of(site), key[3], touched=touched, values=values)
        moment.records[key] = record
        if "sync" not in site.modifiers:
            record.released = moment.released
    elif key[3] is None:
        record.add_touched(event.where, event.nbytes * event.items)
    return record


def places_of(event: Access) -> tuple[NDArray[np.int64], int]:
    """Returns the addresses in global memory, and the number of bytes at each of them."""
    return np.atleast_1d(np.asarray(event.where)).astype(np.int64), event.nbytes * event.items


def chunks_of(where: int | NDArray[np.integer], nbytes: int) -> tuple[Chunks, tuple[tuple[int, int], ...]]:
    """Returns the chunks that are covered completely, and the other ones with their masks of bytes."""
    return _chunks_of(np.asarray(where, np.int64).tobytes(), nbytes)


@lru_cache(maxsize=1024)
def _bytes_of(mask: int) -> tuple[int, ...]:
    return tuple(byte for byte in range(CHUNK) if mask >> byte & 1)


@lru_cache(maxsize=4096)
def _chunks_of(places: bytes, nbytes: int) -> tuple[Chunks, tuple[tuple[int, int], ...]]:
    where = np.frombuffer(places, np.int64)
    if nbytes % CHUNK == 0 and not (where % CHUNK).any():
        chunks = (where[:, None] // CHUNK + np.arange(nbytes // CHUNK)).ravel()
        return np.unique(chunks), ()
    touched = np.unique((where[:, None] + np.arange(nbytes)).ravel())
    chunks, which = np.unique(touched // CHUNK, return_inverse=True)
    masks = np.zeros(len(chunks), np.int64)
    np.bitwise_or.at(masks, which, 1 << (touched % CHUNK))
    whole = masks == WHOLE
    parts = zip(chunks[~whole].tolist(), masks[~whole].tolist(), strict=True)
    return chunks[whole], tuple(parts)


def rows_of(tmap: TensorMap, coordinates: tuple[int, ...]) -> tuple[NDArray[np.int64], int]:
    """Returns the device address of each inner row of a box, clipped to the tensor, and the bytes of a row."""
    starts = np.array([tmap.address], np.int64)
    for start, extent, step, size, pitch in zip(
        coordinates[1:], tmap.box_shape[1:], tmap.steps[1:], tmap.dims[1:], tmap.strides, strict=True
    ):
        at = start + step * np.arange(extent)
        at = at[(at >= 0) & (at < size)]
        starts = (at[:, None] * pitch + starts).ravel()
    first = max(0, coordinates[0])
    last = min(tmap.dims[0], coordinates[0] + tmap.box_shape[0])
    if last <= first or not len(starts):
        return starts[:0], 0
    return starts + first * tmap.global_bytes, (last - first) * tmap.global_bytes


def is_inside(tmap: TensorMap, coordinates: tuple[int, ...]) -> bool:
    """Returns whether a whole box lies inside the tensor."""
    return all(
        start >= 0 and start + (extent - 1) * step < size
        for start, extent, step, size in zip(coordinates, tmap.box_shape, tmap.steps, tmap.dims, strict=True)
    )


def inside(tmap: TensorMap, coordinates: tuple[int, ...]) -> NDArray[np.bool_]:
    """Returns for each chunk of a box in shared memory, innermost first, whether any of it lies inside the tensor."""
    chunk, outer = _chunks(tmap)
    first = coordinates[0] + chunk * CHUNK // tmap.element.bytes
    found = (first + (CHUNK // tmap.element.bytes) > 0) & (first < tmap.dims[0])
    for start, index, size in zip(coordinates[1:], outer, tmap.dims[1:], strict=True):
        found &= (start + index >= 0) & (start + index < size)
    return found


@lru_cache(maxsize=64)
def _chunks(tmap: TensorMap) -> tuple[NDArray[np.int64], tuple[NDArray[np.int64], ...]]:
    """Returns for each chunk of a box its number in its row, and its index along each outer dimension."""
    per_row = tmap.box_shape[0] * tmap.element.bytes // CHUNK
    indices = np.indices((*reversed(tmap.box_shape[1:]), per_row))
    *outer, chunk = (index.ravel() for index in indices)
    return chunk, tuple(index * step for index, step in zip(reversed(outer), tmap.steps[1:], strict=True))


PENDING = 1 << 17
"""An allocation keeps at most this many pending accesses."""

Where = GlobalBox | tuple[NDArray[np.int64], int]
"""The box of a tensor map, or device addresses and the bytes at each of them."""
SEVERAL = -1
"""Stands for the owners of a chunk if there are several."""
READ_ONLY = -2
"""The owner of what loads by ld.global.nc read, which no thread may write."""


def owner(space: Components, who: int) -> int:
    """Returns a number for a component that is unique among all clusters; 0 stands for no component."""
    return (space.number << 32) + who + 1


class ShadowAllocation:
    """Records accesses to an allocation in global memory.

    As long as the allocation is only read, or only one thread accesses each of its chunks and writes none that is read
    by ld.global.nc, or all accesses to a chunk are strong, no accesses are out of order. Until then the accesses stay
    pending and take no room in histories.
    """

    def __init__(self, name: str, base: int, nbytes: int, memory: ShadowMemory) -> None:
        self.name = name
        self.base = base
        self.nbytes = nbytes
        self._memory = memory
        self._pending: list[Iterable[tuple[Where, Record, Observer]]] = []
        self._room = PENDING
        self._owners: NDArray[np.int64] | None = None
        """The owner of each chunk, or SEVERAL, once something has been written."""
        self._weak: NDArray[np.bool_] = np.zeros(0, np.bool_)
        """Whether any access to a chunk was weak, or in a scope that does not hold all agents."""

    def add_pending(
        self, writes: bool, chunks: Chunks, owners: int | NDArray[np.int64], weak: bool | NDArray[np.bool_], count: int,
        accesses: Known,
    ) -> bool:  # fmt: skip
        """Adds ``count`` accesses to the pending ones; ``writes`` says whether some of them are stores.

        ``owners`` gives the owner of each access to ``chunks``, and ``weak`` those that are not strong in the scope of
        the GPU. Returns False if the accesses may be out of order, or if there is no room.
        """
        if count > self._room or (writes and self._pending and self._owners is None):
            return False
        if writes or self._owners is not None:
            if self._owners is None:
                self._owners = np.zeros(-(-self.nbytes // CHUNK), np.int64)
                self._weak = np.zeros(len(self._owners), np.bool_)
            held = self._owners[chunks]
            self._owners[chunks] = owners
            several = ((held != owners) & (held != 0)) | (self._owners[chunks] != owners)
            self._weak[chunks[np.broadcast_to(weak, len(chunks))]] = True
            self._owners[chunks[several]] = SEVERAL
            if ((self._owners[chunks] == SEVERAL) & self._weak[chunks]).any():
                return False
        self._pending.append((places_of(event), record_of(event, at), at.observer) for event, at in accesses)
        self._room -= count
        return True

    def access(self, where: Where, record: Record, observer: Observer) -> None:
        if not record.writes and self._room > 0 and self._owners is None:
            self._pending.append([(where, record, observer)])
            self._room -= 1
            return
        pending, self._pending, self._room, self._owners = self._pending, [], 0, None
        for one in chain.from_iterable(pending):
            self._access(*one)
        self._access(where, record, observer)

    def _access(self, where: Where, record: Record, observer: Observer) -> None:
        if isinstance(where, GlobalBox):
            where = rows_of(where.tensor_map, where.coordinates)
        places, nbytes = where
        if nbytes and len(places):
            self._memory.access(places - self.base, nbytes, record, observer)


BLOCK = 16
TENSOR_HISTORY_LIMIT = 1 << 13

OnTensorStep = Callable[[list[Conflict], list[tuple[Record, Record]], range, Observer], None]


class ShadowTensorMemory:
    """Records accesses to a CTA's tensor memory, in blocks of 16 lanes by one column.

    All instructions access whole blocks (PTX ISA 9.7.16.2.3, 9.7.16.10.5). ``cells`` holds the number of each block's
    history.
    """

    def __init__(self, on_step: OnTensorStep) -> None:
        self.histories = Histories(TENSOR)
        self.cells: NDArray[np.int32] = np.zeros((LANES // BLOCK, COLUMNS), np.int32)
        self._on_step = on_step
        self._history_limit = TENSOR_HISTORY_LIMIT

    def access(self, lanes: range, columns: range, record: Record, observer: Observer) -> bool:
        """Records an access. Returns whether the whole block had been written, not only allocated."""
        first, last = lanes.start // BLOCK, -(-lanes.stop // BLOCK)
        part = self.cells[first:last, columns.start : columns.stop]
        if not part.size:  # outside of tensor memory: the access itself will end the run with a fault
            return True
        number = int(part[0, 0])
        if (part == number).all():
            written = self._is_written(number)
            part[...] = self._step(number, record, observer, columns)
        else:
            numbers = different(part.ravel())
            written = all(self._is_written(n) for n in numbers)
            table = np.empty(numbers[-1] + 1, np.int32)
            for n in numbers:
                table[n] = self._step(n, record, observer, columns)
            part[...] = table[part]
        if len(self.histories.all) > self._history_limit:
            self._tidy()
        return written

    def _is_written(self, number: int) -> bool:
        writes = self.histories.all[number].writes
        return bool(writes) and writes[0].kind not in ("alloc", "free")

    def _step(self, number: int, record: Record, observer: Observer, columns: range) -> int:
        histories = self.histories
        new = histories.step(number, record, observer)
        if histories.has_found:
            self._on_step(histories.conflicts, histories.ordered, columns, observer)
            histories.clear()
        return new

    def _tidy(self) -> None:
        self.cells = self.histories.keep_only(np.unique(self.cells).tolist())[self.cells]
        self._history_limit = max(TENSOR_HISTORY_LIMIT, 2 * len(self.histories.all))
