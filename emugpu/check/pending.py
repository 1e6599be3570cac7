"""Pending accesses: weak accesses of threads to the shared memory of their own CTA, checked many at a time.

Most programs are in order, so accesses wait in a log at first. Arrays hold the last writer of each chunk and its
readers since then, and one comparison with the clocks of the accesses decides whether all of them are in order.
Histories can describe two accesses that are not in order. They get the accesses one by one, and only if some are not in
order, or if another kind of access (an atomic, a copy, an MMA, another CTA) touches the memory.

The arrays know whole chunks only. If threads share a chunk and each keeps to its own bytes, the histories decide.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from emugpu.check.clocks import ORDER, VISIBLE, Rows
from emugpu.check.threads import Moment
from emugpu.emulator.machine.events import Access, Accesses
from emugpu.emulator.memory.bytes import CHUNK

UNKNOWN = np.iinfo(np.int32).max
"""Stands for the time of a chunk's last write if only its history knows it."""
TRIALS, FEWEST = 16, 8
"""After ``TRIALS`` transfers to the histories, a transfer must have had ``FEWEST`` accesses on average to pay."""
MOST = 1 << 14
"""The log holds at most this many accesses; then it drops those that no finding can name any more."""

Chunks = NDArray[np.signedinteger[Any]]
Several = Accesses | tuple[Access, ...]
Known = Iterable[tuple[Access, Moment]]
"""Accesses of threads, each with the thread's moment."""


class _Pending(NamedTuple):
    """Accesses of one thread at one moment, all of them reads or all of them writes."""

    accesses: Several
    mode: str
    moment: Moment
    whole: Chunks
    chunks: Chunks


class PendingAccesses:
    """The pending accesses to one CTA's memory."""

    def __init__(
        self,
        histories: NDArray[np.int32],
        apply: Callable[[Access, Moment], bool],
        forget: Callable[[Chunks], None],
        earlier: Callable[[], Known] | None = None,
    ) -> None:
        """``histories`` holds the number of each chunk's history, or 0 if nothing has accessed the chunk.

        ``apply`` adds an access to the histories; for a write it returns whether the write is the only access that the
        histories of its chunks need. ``forget`` clears the histories of chunks whose pending accesses begin with
        writes. ``earlier`` makes accesses that come before all others; only the histories need them.
        """
        count = len(histories)
        self._earlier = earlier
        self._apply, self._forget = apply, forget
        self._log: list[_Pending] = []
        self._length = 0
        """The number of accesses in the log."""
        self.pays = True
        """Whether deferring the check saves time. It does not if other accesses touch the memory every few accesses."""
        self._times = self._handed = 0
        self._checked = 0
        """The number of log entries that are known to be in order. Writes follow them, and then reads."""
        self._first = 1
        """The number of the log's first entry."""
        self._writer: NDArray[np.int32] = np.zeros(count, np.int32)
        self._time: NDArray[np.int32] = np.where(histories, np.int32(UNKNOWN), np.int32(0))
        """The component that wrote a chunk last, and the time."""
        self._read: NDArray[np.int32] = np.zeros((count, 1), np.int32)
        """The time at which each component has read a chunk since."""
        self._is_read: NDArray[np.bool_] = np.zeros(count, np.bool_)
        """Whether any component has; if not, the row of ``_read`` is stale."""
        self._begins: NDArray[np.int64] = np.zeros((2, count), np.int64)
        """The number of the last write to all of a chunk, and of the one before it; 0 if the log has none."""

    def add(self, accesses: Several, mode: str, moment: Moment, whole: Chunks, chunks: Chunks) -> None:
        """Adds accesses of a thread. They cover all bytes of the chunks in ``whole``, and touch those in ``chunks``."""
        if self._length >= MOST:
            self._trim()
        if mode != "read" and self._log and self._log[-1].mode == "read":
            self._check()
        self._log.append(_Pending(accesses, mode, moment, whole, chunks))
        self._length += len(accesses)

    def close(self) -> None:
        """Checks the remaining accesses; no access follows."""
        self._check()

    def settle(self, chunks: Chunks) -> None:
        """Moves all pending accesses to the histories, because another kind of access will touch these chunks."""
        self._check()
        self._hand_over()
        self._time[chunks] = UNKNOWN

    def leave_to_histories(self, moments: list[Moment]) -> None:
        """Moves all pending accesses to the histories, which decide on later accesses to the chunks that were accessed
        at these moments.
        """
        self._check()
        self._hand_over()
        for moment in moments:
            written = (self._writer == moment.who) & (self._time >= moment.time)
            read = np.zeros_like(written)
            if moment.who < self._read.shape[1]:
                read = self._is_read & (self._read[:, moment.who] >= moment.time)
            self._time[written | read] = UNKNOWN

    def _check(self) -> None:
        """Checks the entries since the last check, writes and then reads. The histories get them if they are not in
        order.
        """
        entries = self._log[self._checked :]
        self._checked = len(self._log)
        count = next((n for n, entry in enumerate(entries) if entry.mode == "read"), len(entries))
        first = self._first + self._checked - len(entries)
        if not (self._writes_are_in_order(entries[:count], first) and self._reads_are_in_order(entries[count:])):
            self._hand_over()

    def _hand_over(self) -> None:
        earlier, self._earlier = self._earlier, None
        for event, moment in earlier() if earlier is not None else ():
            self._apply(event, moment)
        if not self._log:
            return
        for accesses, mode, moment, _, _ in self._log:
            for event in accesses:
                is_alone = self._apply(event, moment)
                _, chunks = span(event)
                self._begins[:, chunks] = 0
                if mode == "read":
                    self._record_reads(chunks, moment.who, moment.time)
                elif is_alone:
                    self._record_writes(chunks, moment.who, moment.time)
                else:
                    self._time[chunks] = UNKNOWN
        self._times += 1
        self._handed += self._length
        self.pays = self._times < TRIALS or self._handed >= FEWEST * self._times
        self._log.clear()
        self._checked = self._length = 0

    def _record_writes(self, chunks: Chunks, who: Any, time: Any) -> None:
        self._writer[chunks], self._time[chunks] = who, time
        self._is_read[chunks] = False

    def _record_reads(self, chunks: Chunks, who: Any, time: Any) -> None:
        new = chunks[~self._is_read[chunks]]
        if len(new):
            self._read[new] = 0
            self._is_read[new] = True
        self._read[chunks, who] = time

    def _writes_are_in_order(self, writes: list[_Pending], first: int) -> bool:
        """Returns whether each write comes after all earlier accesses to its chunks, and records the writes.

        ``first`` is the number of the first write.
        """
        if not writes:
            return True
        touched, moments, which = self._together(writes)
        if len(writes) > 1 and len(np.unique(touched)) < len(touched):
            # Two of the writes touch the same chunk.
            half = len(writes) // 2
            parts = ((writes[:half], first), (writes[half:], first + half))
            return all(self._writes_are_in_order(*part) for part in parts)
        order, visible = (np.stack([self._row(moment, row) for moment in moments]) for row in (ORDER, VISIBLE))
        if (visible[which, self._writer[touched]] < self._time[touched]).any():
            return False
        is_read = self._is_read[touched]
        if (self._read[touched[is_read]] > order[which[is_read]]).any():
            return False
        self._record_writes(touched, *_of(moments, which))
        whole = np.concatenate([entry.whole for entry in writes])
        self._begins[1, whole] = self._begins[0, whole]
        self._begins[0, whole] = np.repeat(np.arange(first, first + len(writes)), [len(w.whole) for w in writes])
        return True

    def _reads_are_in_order(self, reads: list[_Pending]) -> bool:
        """Returns whether each read sees the last write, and records the reads.

        Chunks whose read does not see it become unknown.
        """
        if not reads:
            return True
        touched, moments, which = self._together(reads)
        visible = np.stack([self._row(moment, VISIBLE) for moment in moments])
        sees = visible[which, self._writer[touched]] >= self._time[touched]
        self._record_reads(touched, *_of(moments, which))
        if sees.all():
            return True
        self._time[touched[~sees]] = UNKNOWN
        return False

    def _together(self, entries: list[_Pending]) -> tuple[Chunks, list[Moment], NDArray[np.int64]]:
        """Returns all chunks of the entries, the distinct moments, and the index of each chunk's moment."""
        moments: dict[Moment, int] = {}
        which = [moments.setdefault(entry.moment, len(moments)) for entry in entries]
        for moment in moments:
            self._make_room(moment)
        touched = np.concatenate([entry.chunks for entry in entries])
        return touched, list(moments), np.repeat(which, [len(entry.chunks) for entry in entries])

    def _make_room(self, moment: Moment) -> None:
        """Widens ``_read`` to all components of the cluster."""
        width = moment.space.capacity
        if width > self._read.shape[1]:
            wide: NDArray[np.int32] = np.zeros((len(self._time), width), np.int32)
            read = np.flatnonzero(self._is_read)
            wide[read, : self._read.shape[1]] = self._read[read]
            self._read = wide

    def _row(self, moment: Moment, row: int) -> Rows:
        """Returns what all lanes of a moment know in the sense of a row, with a column for every component."""
        known = moment.row(row)
        if len(known) == self._read.shape[1]:
            return known
        wide = np.zeros(self._read.shape[1], np.int32)
        wide[: len(known)] = known
        return wide

    def _trim(self) -> None:
        """Drops the older half of the log if its chunks have all been written twice since; else empties the log.

        The histories get an emptied log.
        """
        self._check()
        if not self._log:
            return
        half = (len(self._log) + 1) // 2
        touched = np.unique(np.concatenate([entry.chunks for entry in self._log[:half]]))
        if (self._begins[1, touched] < self._first + half).any():
            self._hand_over()
            return
        self._forget(touched)
        self._length -= sum(len(entry.accesses) for entry in self._log[:half])
        del self._log[:half]
        self._first += half
        self._checked = len(self._log)


def _of(moments: list[Moment], which: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns the component and the time of each chunk's access."""
    return np.array([m.who for m in moments])[which], np.array([m.time for m in moments])[which]


def span(event: Access) -> tuple[Chunks, Chunks]:
    """Returns the chunks that an access covers completely, and all chunks that it touches."""
    nbytes = event.nbytes * event.items
    if isinstance(event.where, int):
        return _span_of_one(event.where, nbytes)
    return _span(np.asarray(event.where, np.int64).tobytes(), nbytes)


@lru_cache(maxsize=4096)
def _span_of_one(place: int, nbytes: int) -> tuple[Chunks, Chunks]:
    return _span(np.array([place], np.int64).tobytes(), nbytes)


@lru_cache(maxsize=4096)
def _span(places: bytes, nbytes: int) -> tuple[Chunks, Chunks]:
    touched = np.unique((np.frombuffer(places, np.int64)[:, None] + np.arange(nbytes)).ravel())
    chunks, counts = np.unique(touched // CHUNK, return_counts=True)
    return chunks[counts == CHUNK], chunks
