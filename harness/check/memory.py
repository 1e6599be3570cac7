"""Who has accessed which bytes of a memory: by chunks of 16 bytes, by single bytes where accesses divide a chunk."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from harness.check.accesses import GENERIC, Conflict, Histories, Observer, Record, different

CHUNK = 16
WHOLE = (1 << CHUNK) - 1
DIVIDED = -1
CROWDED = 1 << 14
"""Histories after which those that no place has any more are forgotten."""

Chunks = NDArray[np.int64]
Told = Callable[[list[Conflict], list[tuple[Record, Record]], int, int, Observer], None]
"""Takes what a step has found: unordered and ordered pairs, the byte it concerns, how many bytes, and who."""


class Memory:
    """``cells``: the number of the history of each chunk, or DIVIDED."""

    def __init__(self, nbytes: int, tell: Told) -> None:
        self.histories = Histories(GENERIC)
        self.cells: NDArray[np.int32] = np.zeros(-(-nbytes // CHUNK), np.int32)
        self.divided: dict[int, list[int]] = {}
        self._tell = tell
        self._crowded = CROWDED

    def access(self, where: int | NDArray, nbytes: int, record: Record, observer: Observer) -> None:
        """``nbytes`` at one place or at several."""
        whole, parts = chunks_of(where, nbytes)
        if len(whole):
            self.access_chunks(whole, record, observer)
        for chunk, mask in parts:
            self._access_bytes(chunk, mask, record, observer)
        if len(self.histories.all) > self._crowded:
            self._tidy()

    def access_chunks(self, chunks: Chunks, record: Record, observer: Observer) -> bool:
        """Returns whether somebody had accessed each of them before."""
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

    def _access_unlike(self, chunks: Chunks, now: NDArray, record: Record, observer: Observer) -> bool:
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
        for byte in range(CHUNK):
            if mask >> byte & 1:
                held[byte] = self._step(held[byte], record, observer, chunk * CHUNK + byte, 1)
        if held.count(held[0]) == CHUNK or (mask == WHOLE and self._alike(held)):
            self.cells[chunk] = held[0]
            del self.divided[chunk]

    def _alike(self, numbers: list[int]) -> bool:
        """Whether histories differ in what came before the last write only."""
        last = {self.histories.all[number][:2] for number in numbers}
        return len(last) == 1

    def _step(self, number: int, record: Record, observer: Observer, place: int, nbytes: int) -> int:
        new = self.histories.step(number, record, observer)
        if self.histories.has_found:
            self._tell_all(place, nbytes, observer)
        return new

    def _tell_all(self, place: int, nbytes: int, observer: Observer) -> None:
        found = self.histories
        self._tell(found.conflicts, found.ordered, place, nbytes, observer)
        found.clear()

    def _tidy(self) -> None:
        held = {number for numbers in self.divided.values() for number in numbers}
        new = self.histories.keep_only({*np.unique(self.cells).tolist(), *held} - {DIVIDED})
        table = np.full(max(new) + 2, DIVIDED, np.int32)
        for old, number in new.items():
            table[old] = number
        self.cells = table[self.cells]
        for chunk, numbers in self.divided.items():
            self.divided[chunk] = [new[number] for number in numbers]
        self._crowded = max(CROWDED, 2 * len(self.histories.all))


def chunks_of(where: int | NDArray, nbytes: int) -> tuple[Chunks, tuple[tuple[int, int], ...]]:
    """The chunks that are covered, and of those in part the mask of bytes."""
    if isinstance(where, int):
        return _chunks_of(np.array([where], np.int64).tobytes(), nbytes)
    return _chunks_of(np.asarray(where, np.int64).tobytes(), nbytes)


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
