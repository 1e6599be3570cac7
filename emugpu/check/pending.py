"""Pending accesses: weak accesses of threads to the shared memory of their own CTA, checked many at a time.

Most programs are in order, so accesses wait in a log at first. Arrays hold the last writer of each chunk and its
readers since then, and one comparison with the clocks of the accesses decides whether all of them are in order.
Histories can describe two accesses that are not in order. They get the accesses one by one, and only if some are not in
order, or if another kind of access (an atomic, a copy, an MMA, another CTA) touches the memory.

The arrays know whole chunks only. If threads share a chunk and each keeps to its own bytes, the histories decide.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from emugpu.check.clocks import ORDER, VISIBLE, Rows
from emugpu.check.threads import Moment
from emugpu.emulator.machine.events import Access, Accesses
from emugpu.emulator.memory.bytes import CHUNK
from emugpu.emulator.native.layout import WHOLE_CHUNK, Traced
from emugpu.emulator.native.trace import Batch

UNKNOWN = np.iinfo(np.int32).max
"""Stands for the time of a chunk's last write if only its history knows it."""
TRIALS, FEWEST = 16, 8
"""After ``TRIALS`` transfers to the histories, a transfer must have had ``FEWEST`` accesses on average to pay."""
MOST = 1 << 14
"""The log holds at most this many accesses; then it drops those that no finding can name any more."""
OF_TRACE = 64
"""So many accesses of the trace count as one: they take less room, and cost nothing before the histories need them."""

Chunks = NDArray[np.signedinteger[Any]]
Several = Accesses | tuple[Access, ...]
Known = Iterable[tuple[Access, Moment]]
"""Accesses of threads, each with the thread's moment."""


class Pending(NamedTuple):
    """Accesses of one thread at one moment, all of them reads or all of them writes. They cover all bytes of the chunks
    in ``whole``, and touch those in ``chunks``.
    """

    accesses: Several
    mode: str
    moment: Moment
    whole: Chunks
    chunks: Chunks

    def left(self, since: NDArray[np.int32]) -> Pending | None:
        """Returns the accesses if some of their chunks have not been written twice since, and counts them then.

        ``since`` counts the later writes of all of each chunk.
        """
        found = self if (since[self.chunks] < 2).any() else None
        if self.mode != "read":
            since[self.whole] += 1
        return found


class Earlier:
    """Accesses to the memory that are in order, and that a barrier of all threads separates from later ones.

    ``parts`` of the trace hold them. ``moment`` returns the moment of a warp, by its number in the trace, at a time.
    """

    def __init__(self, parts: list[Batch], moment: Callable[[int, int], Moment]) -> None:
        self._parts, self._moment = parts, moment

    def __len__(self) -> int:
        """Returns how many accesses they count as in the log."""
        return -(-sum(len(part.entries) for part in self._parts) // OF_TRACE)

    def __iter__(self) -> Iterator[tuple[Access, Moment]]:
        for part in self._parts:
            for k, (warp, time) in enumerate(zip(*(part.entries[c].tolist() for c in ("warp", "number")), strict=True)):
                moment = self._moment(warp, time)
                for event in part.accesses(k):
                    yield event, moment

    def left(self, since: NDArray[np.int32]) -> Earlier | None:
        """Returns those of which some chunks have not been written twice since, as `Pending.left`."""
        parts = []
        for part in reversed(self._parts):
            entries = np.arange(len(part.entries))
            chunks, counts = part.chunks_of(entries)
            is_whole = (chunks >= WHOLE_CHUNK) & np.repeat(part.entries["flags"] & Traced.STORE != 0, counts)
            which, chunks = np.repeat(entries, counts), chunks & (WHOLE_CHUNK - 1)
            last, before = np.full((2, len(since)), -1)
            last[chunks[is_whole]] = which[is_whole]
            is_before = is_whole & (which < last[chunks])
            before[chunks[is_before]] = which[is_before]
            first = np.select([since >= 2, since == 1], [len(entries), last], before)
            found = np.unique(which[which >= first[chunks]])
            since += (last >= 0).astype(np.int32) + (before >= 0)
            if len(found):
                parts.append(part.select(found))
        return Earlier(parts[::-1], self._moment) if parts else None


class PendingAccesses:
    """The pending accesses to one CTA's memory."""

    def __init__(
        self,
        histories: NDArray[np.int32],
        apply: Callable[[Access, Moment], bool],
        forget: Callable[[Chunks], None],
    ) -> None:
        """``histories`` holds the number of each chunk's history, or 0 if nothing has accessed the chunk.

        ``apply`` adds an access to the histories; for a write it returns whether the write is the only access that the
        histories of its chunks need. ``forget`` clears the histories of chunks whose pending accesses begin with
        writes.
        """
        count = len(histories)
        self._apply, self._forget = apply, forget
        self._log: list[Pending | Earlier] = []
        self._length = 0
        """The number of accesses in the log."""
        self.pays = True
        """Whether deferring the check saves time. It does not if other accesses touch the memory every few accesses."""
        self._times = self._handed = 0
        self._checked = 0
        """The number of log entries that are known to be in order. Writes follow them, and then reads."""
        self._writer: NDArray[np.int32] = np.zeros(count, np.int32)
        self._time: NDArray[np.int32] = np.where(histories, np.int32(UNKNOWN), np.int32(0))
        """The component that wrote a chunk last, and the time."""
        self._read: NDArray[np.int32] = np.zeros((count, 1), np.int32)
        """The time at which each component has read a chunk since."""
        self._is_read: NDArray[np.bool_] = np.zeros(count, np.bool_)
        """Whether any component has; if not, the row of ``_read`` is stale."""

    def add(self, new: Pending) -> None:
        """Adds accesses of a thread."""
        if self._length >= MOST:
            self._trim()
        last = self._log[-1] if self._log else None
        if new.mode != "read" and isinstance(last, Pending) and last.mode == "read":
            self._check()
        self._log.append(new)
        self._length += len(new.accesses)

    def pass_barrier(self, earlier: Earlier) -> None:
        """Handles a barrier of all threads, which are the only ones that access the memory.

        ``earlier`` are the accesses between those in the log and the barrier.
        """
        self._check()
        self._log.append(earlier)
        self._length += len(earlier)
        self._checked = len(self._log)
        self._time[:] = 0
        self._is_read[:] = False
        if self._length >= MOST:
            self._trim()

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
        entries = [entry for entry in self._log[self._checked :] if isinstance(entry, Pending)]
        self._checked = len(self._log)
        count = next((n for n, entry in enumerate(entries) if entry.mode == "read"), len(entries))
        if not (self._writes_are_in_order(entries[:count]) and self._reads_are_in_order(entries[count:])):
            self._hand_over()

    def _hand_over(self) -> None:
        if not self._log:
            return
        for entry in self._log:
            if isinstance(entry, Earlier):
                for event, moment in entry:
                    self._apply(event, moment)
                continue
            mode, moment = entry.mode, entry.moment
            for event in entry.accesses:
                is_alone = self._apply(event, moment)
                _, chunks = span(event)
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

    def _writes_are_in_order(self, writes: list[Pending]) -> bool:
        """Returns whether each write comes after all earlier accesses to its chunks, and records the writes."""
        if not writes:
            return True
        touched, moments, which = self._together(writes)
        if len(writes) > 1 and len(np.unique(touched)) < len(touched):
            # Two of the writes touch the same chunk.
            half = len(writes) // 2
            return self._writes_are_in_order(writes[:half]) and self._writes_are_in_order(writes[half:])
        order, visible = (np.stack([self._row(moment, row) for moment in moments]) for row in (ORDER, VISIBLE))
        if (visible[which, self._writer[touched]] < self._time[touched]).any():
            return False
        is_read = self._is_read[touched]
        if (self._read[touched[is_read]] > order[which[is_read]]).any():
            return False
        self._record_writes(touched, *_of(moments, which))
        return True

    def _reads_are_in_order(self, reads: list[Pending]) -> bool:
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

    def _together(self, entries: list[Pending]) -> tuple[Chunks, list[Moment], NDArray[np.int64]]:
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
        """Drops accesses to chunks that have all been written twice since. If most are left, the histories get them."""
        self._check()
        since: NDArray[np.int32] = np.zeros(len(self._time), np.int32)
        left = [entry.left(since) for entry in reversed(self._log)]
        self._log = [entry for entry in reversed(left) if entry is not None]
        self._checked = len(self._log)
        self._length = sum(len(one.accesses if isinstance(one, Pending) else one) for one in self._log)
        self._forget(np.flatnonzero(since >= 2))
        if self._length > MOST // 2:
            self._hand_over()


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
