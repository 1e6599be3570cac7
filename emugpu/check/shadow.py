"""Shadow memory remembers who has accessed which bytes of shared, global and tensor memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from emugpu.check.clocks import Components
from emugpu.check.history import GENERIC, TENSOR, WEAK, Conflict, Histories, Observer, Record, different
from emugpu.check.noted import Chunks, Notes, Several, span
from emugpu.check.threads import Moment
from emugpu.emulator.machine.events import Access, GlobalBox
from emugpu.emulator.memory.bytes import CHUNK
from emugpu.emulator.memory.tensor_map import TensorMap
from emugpu.emulator.memory.tmem import COLUMNS, LANES

WHOLE = (1 << CHUNK) - 1
DIVIDED = -1
CROWDED = 1 << 14
"""Histories after which those that no place has any more are forgotten."""

Tell = Callable[[list[Conflict], list[tuple[Record, Record]], int, int, Observer], None]
"""Takes what a step has found: unordered and ordered pairs, the byte it concerns, how many bytes, and who."""


class ShadowMemory:
    """Remembers who has accessed which bytes: by chunks of 16 bytes, by single bytes where accesses divide a chunk.

    ``cells``: the number of the history of each chunk, or DIVIDED.
    """

    def __init__(self, nbytes: int, tell: Tell, defers: bool = False) -> None:
        """defers: whether what is found may be told of later."""
        self.histories = Histories(GENERIC)
        self.defers = defers
        self._notes: Notes | None = None
        self.cells: NDArray[np.int32] = np.zeros(-(-nbytes // CHUNK), np.int32)
        self.divided: dict[int, list[int]] = {}
        self._tell = tell
        self._crowded = CROWDED

    def note(self, accesses: Several, mode: str, moment: Moment, whole: Chunks, chunks: Chunks) -> bool:
        """Weak accesses by a thread of the CTA whose memory it is: reads, or writes. whole, chunks: as of `Notes.add`.
        False: they lie beyond, with which the run ends.
        """
        if chunks[-1] >= len(self.cells):
            return False
        if self._notes is not None and not self._notes.pays:
            self._notes.settle(chunks)
            self._notes, self.defers = None, False
        if not self.defers:
            for event in accesses:
                self._apply(event, moment)
            return True
        if self._notes is None:
            self._notes = Notes(self.cells, self._apply, self._forget)
        self._notes.add(accesses, mode, moment, whole, chunks)
        return True

    def settle(self) -> None:
        """Nothing follows."""
        if self._notes is not None:
            self._notes.close()

    def _apply(self, event: Access, moment: Moment) -> bool:
        """Whether it is a write, and the histories of the chunks that it touches hold it alone."""
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
        """Accesses ``nbytes`` at one place or at several."""
        if self._notes is not None:
            whole, parts = chunks_of(where, nbytes)
            self._notes.settle(np.concatenate([whole, np.array([chunk for chunk, _ in parts], np.int64)]))
        self._access(where, nbytes, record, observer)

    def _access(self, where: int | NDArray[np.integer], nbytes: int, record: Record, observer: Observer) -> None:
        whole, parts = chunks_of(where, nbytes)
        if len(whole):
            self._access_chunks(whole, record, observer)
        for chunk, mask in parts:
            self._access_bytes(chunk, mask, record, observer)
        if len(self.histories.all) > self._crowded:
            self._tidy()

    def access_chunks(self, chunks: Chunks, record: Record, observer: Observer) -> bool:
        """Returns whether somebody had accessed each of them before."""
        if self._notes is not None:
            self._notes.settle(chunks.ravel())
        return self._access_chunks(chunks, record, observer)

    def _access_chunks(self, chunks: Chunks, record: Record, observer: Observer) -> bool:
        cells, chunks = self.cells, chunks.ravel()
        now = cells[chunks]
        first = int(now[0])
        if first != DIVIDED and (now == first).all():
            new = self._step(first, record, observer, int(chunks[0]) * CHUNK, len(chunks) * CHUNK)
            if new != first:
                cells[chunks] = new
            touched = first != 0
        else:
            touched = self._access_unlike(chunks, now, record, observer)
        if len(self.histories.all) > self._crowded:
            self._tidy()
        return touched

    def _access_unlike(self, chunks: Chunks, now: NDArray[np.int32], record: Record, observer: Observer) -> bool:
        numbers = different(now)
        table = np.empty(numbers[-1] + 2, np.int32)
        table[DIVIDED] = DIVIDED
        for number in numbers:
            if number == DIVIDED:
                continue
            table[number] = self.histories.step(number, record, observer)
            if self.histories.has_found:
                own = chunks[now == number]
                self._tell_all(int(own[0]) * CHUNK, len(own) * CHUNK, observer)
        self.cells[chunks] = table[now]
        if numbers[0] == DIVIDED:
            for chunk in chunks[now == DIVIDED].tolist():
                self._access_bytes(chunk, WHOLE, record, observer)
        return 0 not in numbers

    def _access_bytes(self, chunk: int, mask: int, record: Record, observer: Observer) -> None:
        held = self.divided.get(chunk)
        if held is None:
            held = self.divided[chunk] = [int(self.cells[chunk])] * CHUNK
            self.cells[chunk] = DIVIDED
        before = after = -1
        for byte in _bytes_of(mask):
            if held[byte] != before:
                before = held[byte]
                after = self._step(before, record, observer, chunk * CHUNK + byte, 1)
            held[byte] = after
        if held.count(held[0]) == CHUNK or (mask == WHOLE and self._alike(held)):
            self.cells[chunk] = held[0]
            del self.divided[chunk]

    def _alike(self, numbers: list[int]) -> bool:
        """Whether histories differ in what came before the last write only."""
        last = {self.histories.all[number][:2] for number in numbers}
        return len(last) == 1

    def _step(self, number: int, record: Record, observer: Observer, place: int, nbytes: int) -> int:
        new = self.histories.known(number, record)
        if new is None:
            new = self.histories.step(number, record, observer)
            if self.histories.has_found:
                self._tell_all(place, nbytes, observer)
        return new

    def _tell_all(self, place: int, nbytes: int, observer: Observer) -> None:
        found = self.histories
        self._tell(found.conflicts, found.ordered, place, nbytes, observer)
        found.clear()

    def _tidy(self) -> None:
        new = self.histories.keep_only(chain(np.unique(self.cells).tolist(), *self.divided.values()))
        self.cells = new[self.cells]
        for chunk, numbers in self.divided.items():
            self.divided[chunk] = new[numbers].tolist()
        self._crowded = max(CROWDED, 2 * len(self.histories.all))


def _stored(event: Access) -> int | None:
    """Of a write, a number for its addresses and values: equal ones have the same."""
    if event.mode != "write":
        return None
    items = event.values if isinstance(event.values, tuple) else (event.values,)
    return hash(tuple(part.tobytes() if isinstance(part, np.ndarray) else part for part in (event.where, *items)))


def record_of(event: Access, moment: Moment, scope: int = WEAK) -> Record:
    """Gives the same record for the same access by the same instruction at one moment. scope: of a strong one."""
    agent, site, writes = event.agent, event.site, event.mode != "read"
    key = (site.index, agent.lanes, writes, _stored(event))
    record = moment.records.get(key)
    if record is None:
        about = (moment.space, moment.who, moment.time, "generic", writes, agent, site, moment.order, scope, key[3])
        record = moment.records[key] = Record(*about)
    return record


def places_of(event: Access) -> tuple[NDArray[np.int64], int]:
    """Gives the addresses in global memory, and the bytes at each of them."""
    return np.atleast_1d(np.asarray(event.where)).astype(np.int64), event.nbytes * event.items


def chunks_of(where: int | NDArray[np.integer], nbytes: int) -> tuple[Chunks, tuple[tuple[int, int], ...]]:
    """Returns the chunks that are covered, and of those in part the mask of bytes."""
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
    """Gives the device address of each inner row of the part that lies inside the tensor, and the bytes of one."""
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
    """Whether all of a box lies inside the tensor."""
    return all(
        start >= 0 and start + (extent - 1) * step < size
        for start, extent, step, size in zip(coordinates, tmap.box_shape, tmap.steps, tmap.dims, strict=True)
    )


def inside(tmap: TensorMap, coordinates: tuple[int, ...]) -> NDArray[np.bool_]:
    """Tells of each chunk of a box in shared memory, innermost first, whether any of it lies inside the tensor."""
    chunk, outer = _chunks(tmap)
    first = coordinates[0] + chunk * CHUNK // tmap.element.bytes
    found = (first + (CHUNK // tmap.element.bytes) > 0) & (first < tmap.dims[0])
    for start, index, size in zip(coordinates[1:], outer, tmap.dims[1:], strict=True):
        found &= (start + index >= 0) & (start + index < size)
    return found


@lru_cache(maxsize=64)
def _chunks(tmap: TensorMap) -> tuple[NDArray[np.int64], tuple[NDArray[np.int64], ...]]:
    """Gives of each chunk of a box its number in its row, and the index along each outer dimension."""
    per_row = tmap.box_shape[0] * tmap.element.bytes // CHUNK
    indices = np.indices((*reversed(tmap.box_shape[1:]), per_row))
    *outer, chunk = (index.ravel() for index in indices)
    return chunk, tuple(index * step for index, step in zip(reversed(outer), tmap.steps[1:], strict=True))


NOTED = 1 << 17
"""Accesses that are only noted."""

Where = GlobalBox | tuple[NDArray[np.int64], int]
"""The box of a tensor map, or device addresses and the bytes at each of them."""
Known = Iterable[tuple[Access, Moment]]
"""Accesses of threads, and the moments."""


def owner(space: Components, who: int) -> int:
    """The number of a component among those of all clusters; none has 0."""
    return (space.number << 32) + who + 1


class ShadowAllocation:
    """Remembers who has accessed which bytes of an allocation in global memory.

    As long as it is only read, or each of its chunks is accessed by one thread alone, nothing can be out of order.
    Accesses are only noted then, and take no room for histories.
    """

    def __init__(self, name: str, base: int, nbytes: int, memory: ShadowMemory) -> None:
        self.name = name
        self.base = base
        self.nbytes = nbytes
        self._memory = memory
        self._noted: list[Iterable[tuple[Where, Record, Observer]]] = []
        self._room = NOTED
        self._owners: NDArray[np.int64] | None = None
        """Whose each chunk is, once something is written."""

    def note(self, writes: bool, chunks: Chunks, owners: int | NDArray[np.int64], count: int, accesses: Known) -> bool:
        """Notes weak accesses, so many, some of them stores if it ``writes``. owners: of the chunks' accesses. False:
        they may be out of order, or there is no room.
        """
        if count > self._room or (writes and self._noted and self._owners is None):
            return False
        if writes or self._owners is not None:
            if self._owners is None:
                self._owners = np.zeros(-(-self.nbytes // CHUNK), np.int64)
            held = self._owners[chunks]
            self._owners[chunks] = owners
            if ((held != owners) & (held != 0)).any() or (self._owners[chunks] != owners).any():
                return False
        self._noted.append((places_of(event), record_of(event, at), at.observer) for event, at in accesses)
        self._room -= count
        return True

    def access(self, where: Where, record: Record, observer: Observer) -> None:
        if not record.writes and self._room > 0 and self._owners is None:
            self._noted.append([(where, record, observer)])
            self._room -= 1
            return
        noted, self._noted, self._room, self._owners = self._noted, [], 0, None
        for one in chain.from_iterable(noted):
            self._access(*one)
        self._access(where, record, observer)

    def _access(self, where: Where, record: Record, observer: Observer) -> None:
        if isinstance(where, GlobalBox):
            where = rows_of(where.tensor_map, where.coordinates)
        places, nbytes = where
        if nbytes and len(places):
            self._memory.access(places - self.base, nbytes, record, observer)


BLOCK = 16
CROWDED_TENSOR = 1 << 13

TellTensor = Callable[[list[Conflict], list[tuple[Record, Record]], range, Observer], None]


class ShadowTensorMemory:
    """Remembers who has accessed which part of a CTA's tensor memory: in blocks of 16 lanes by one column, which all
    instructions keep to (PTX ISA 9.7.16.2.3, 9.7.16.10.5). ``cells``: the number of the history of each block.
    """

    def __init__(self, tell: TellTensor) -> None:
        self.histories = Histories(TENSOR)
        self.cells: NDArray[np.int32] = np.zeros((LANES // BLOCK, COLUMNS), np.int32)
        self._tell = tell
        self._crowded = CROWDED_TENSOR

    def access(self, lanes: range, columns: range, record: Record, observer: Observer) -> bool:
        """Returns whether all of it had been written, by more than an allocation."""
        first, last = lanes.start // BLOCK, -(-lanes.stop // BLOCK)
        part = self.cells[first:last, columns.start : columns.stop]
        if not part.size:  # beyond tensor memory: the run ends with a fault when it is touched
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
        if len(self.histories.all) > self._crowded:
            self._tidy()
        return written

    def _is_written(self, number: int) -> bool:
        writes = self.histories.all[number].writes
        return bool(writes) and writes[0].kind not in ("alloc", "free")

    def _step(self, number: int, record: Record, observer: Observer, columns: range) -> int:
        histories = self.histories
        new = histories.step(number, record, observer)
        if histories.has_found:
            self._tell(histories.conflicts, histories.ordered, columns, observer)
            histories.clear()
        return new

    def _tidy(self) -> None:
        self.cells = self.histories.keep_only(np.unique(self.cells).tolist())[self.cells]
        self._crowded = max(CROWDED_TENSOR, 2 * len(self.histories.all))
