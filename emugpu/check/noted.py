"""Weak accesses of threads to the shared memory of their own CTA, looked at many at a time.

Most programs are in order. So these accesses are only noted at first, and arrays say whether all of them are: of each
chunk who has written it last and who has read it since, against what the later ones know. Histories, which
know how to tell about two accesses that are not in order, get them one by one only when they have to: where
something is not in order, or where something else (an atomic, a copy, an MMA, another CTA) touches the memory.

Chunks are judged as a whole. Where threads share one and each keeps to its own bytes, it is the histories that know.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from emugpu.check.clocks import ORDER, VISIBLE, Rows
from emugpu.check.threads import Moment
from emugpu.emulator.machine.events import Access, Accesses
from emugpu.emulator.memory.bytes import CHUNK

UNKNOWN = np.iinfo(np.int32).max
"""In place of the time of a chunk's last write: its history has to be asked."""
TRIALS, FEWEST = 16, 8
"""After how often histories have been handed what was noted, how many accesses that must have been on average."""
MOST = 1 << 14
"""Accesses that are noted at most, after which those are forgotten that no finding can name any more."""

Chunks = NDArray[np.signedinteger[Any]]
Several = Accesses | tuple[Access, ...]


class _Noted(NamedTuple):
    """Accesses of one thread at one moment, all of them reads or all of them writes."""

    accesses: Several
    mode: str
    moment: Moment
    whole: Chunks
    chunks: Chunks


class Notes:
    """What is noted of one CTA's memory."""

    def __init__(
        self,
        histories: NDArray[np.int32],
        apply: Callable[[Access, Moment], bool],
        forget: Callable[[Chunks], None],
    ) -> None:
        """histories: the number of each chunk's, 0 if nothing has accessed it. apply: has them know of an access; says
        of a write whether no other access to its chunks need be known. forget: what they know of chunks, as what is
        noted since begins with writes.
        """
        count = len(histories)
        self._apply, self._forget = apply, forget
        self._log: list[_Noted] = []
        self._length = 0
        """How many accesses that are."""
        self.pays = True
        """Whether noting still does: it does not where other things touch the memory every few accesses."""
        self._times = self._handed = 0
        self._checked = 0
        """Of the log, the entries that are known to be in order. After them come writes, and then reads."""
        self._first = 1
        """The number of the log's first entry."""
        self._writer: NDArray[np.int32] = np.zeros(count, np.int32)
        self._time: NDArray[np.int32] = np.where(histories, np.int32(UNKNOWN), np.int32(0))
        """The component that has written a chunk last, and when."""
        self._read: NDArray[np.int32] = np.zeros((count, 1), np.int32)
        """When each component has read a chunk since."""
        self._is_read: NDArray[np.bool_] = np.zeros(count, np.bool_)
        """Whether any has; the row of ``_read`` is not looked at else."""
        self._begins: NDArray[np.int64] = np.zeros((2, count), np.int64)
        """The number of the last write of all of a chunk, and of the one before that; 0: the log has none."""

    def add(self, accesses: Several, mode: str, moment: Moment, whole: Chunks, chunks: Chunks) -> None:
        """Accesses of a thread, with chunks of which one covers all bytes, and all that they touch."""
        if self._length >= MOST:
            self._trim()
        if mode != "read" and self._log and self._log[-1].mode == "read":
            self._check()
        self._log.append(_Noted(accesses, mode, moment, whole, chunks))
        self._length += len(accesses)

    def close(self) -> None:
        """Look at what is left; nothing follows."""
        self._check()

    def settle(self, chunks: Chunks) -> None:
        """Have histories know everything: something else is about to access these chunks."""
        self._check()
        if self._log:
            self._hand_over()
        self._time[chunks] = UNKNOWN

    def _check(self) -> None:
        """Look at what has come since that was last done: writes, and then reads. Histories are asked if need be."""
        entries = self._log[self._checked :]
        self._checked = len(self._log)
        count = next((n for n, noted in enumerate(entries) if noted.mode == "read"), len(entries))
        first = self._first + self._checked - len(entries)
        if not (self._writes_are_in_order(entries[:count], first) and self._reads_are_in_order(entries[count:])):
            self._hand_over()

    def _hand_over(self) -> None:
        for accesses, mode, moment, _, _ in self._log:
            for event in accesses:
                is_alone = self._apply(event, moment)
                _, chunks = span(event)
                self._begins[:, chunks] = 0
                if mode == "read":
                    self._note_reads(chunks, moment.who, moment.time)
                elif is_alone:
                    self._note_writes(chunks, moment.who, moment.time)
                else:
                    self._time[chunks] = UNKNOWN
        self._times += 1
        self._handed += self._length
        self.pays = self._times < TRIALS or self._handed >= FEWEST * self._times
        self._log.clear()
        self._checked = self._length = 0

    def _note_writes(self, chunks: Chunks, who: Any, time: Any) -> None:
        self._writer[chunks], self._time[chunks] = who, time
        self._is_read[chunks] = False

    def _note_reads(self, chunks: Chunks, who: Any, time: Any) -> None:
        new = chunks[~self._is_read[chunks]]
        if len(new):
            self._read[new] = 0
            self._is_read[new] = True
        self._read[chunks, who] = time

    def _writes_are_in_order(self, writes: list[_Noted], first: int) -> bool:
        """Whether each write comes after all that has accessed its chunks. Notes them. first: its number."""
        if not writes:
            return True
        touched, moments, which = self._together(writes)
        if len(writes) > 1 and len(np.unique(touched)) < len(touched):
            # One of them writes what another one has written.
            half = len(writes) // 2
            parts = ((writes[:half], first), (writes[half:], first + half))
            return all(self._writes_are_in_order(*part) for part in parts)
        order, visible = (np.stack([self._row(moment, row) for moment in moments]) for row in (ORDER, VISIBLE))
        if (visible[which, self._writer[touched]] < self._time[touched]).any():
            return False
        is_read = self._is_read[touched]
        if (self._read[touched[is_read]] > order[which[is_read]]).any():
            return False
        self._note_writes(touched, *_of(moments, which))
        whole = np.concatenate([noted.whole for noted in writes])
        self._begins[1, whole] = self._begins[0, whole]
        self._begins[0, whole] = np.repeat(np.arange(first, first + len(writes)), [len(w.whole) for w in writes])
        return True

    def _reads_are_in_order(self, reads: list[_Noted]) -> bool:
        """Whether each read sees what was written. Notes them; chunks of those that do not become unknown."""
        if not reads:
            return True
        touched, moments, which = self._together(reads)
        visible = np.stack([self._row(moment, VISIBLE) for moment in moments])
        sees = visible[which, self._writer[touched]] >= self._time[touched]
        self._note_reads(touched, *_of(moments, which))
        if sees.all():
            return True
        self._time[touched[~sees]] = UNKNOWN
        return False

    def _together(self, entries: list[_Noted]) -> tuple[Chunks, list[Moment], NDArray[np.int64]]:
        """All chunks, the moments there are, and which one is each chunk's. There is room for all components."""
        moments: dict[Moment, int] = {}
        which = [moments.setdefault(noted.moment, len(moments)) for noted in entries]
        for moment in moments:
            self._make_room(moment)
        touched = np.concatenate([noted.chunks for noted in entries])
        return touched, list(moments), np.repeat(which, [len(noted.chunks) for noted in entries])

    def _make_room(self, moment: Moment) -> None:
        """For all components there are."""
        width = moment.space.capacity
        if width > self._read.shape[1]:
            wide: NDArray[np.int32] = np.zeros((len(self._time), width), np.int32)
            read = np.flatnonzero(self._is_read)
            wide[read, : self._read.shape[1]] = self._read[read]
            self._read = wide

    def _row(self, moment: Moment, row: int) -> Rows:
        """A row of what is known at a moment, with a column for every component."""
        known: Rows = moment.clock.rows[row]
        if len(known) == self._read.shape[1]:
            return known
        wide = np.zeros(self._read.shape[1], np.int32)
        wide[: len(known)] = known
        return wide

    def _trim(self) -> None:
        """Forget the older half, if every chunk of it was written twice since; else histories get everything."""
        self._check()
        if not self._log:
            return
        half = (len(self._log) + 1) // 2
        touched = np.unique(np.concatenate([noted.chunks for noted in self._log[:half]]))
        if (self._begins[1, touched] < self._first + half).any():
            self._hand_over()
            return
        self._forget(touched)
        self._length -= sum(len(noted.accesses) for noted in self._log[:half])
        del self._log[:half]
        self._first += half
        self._checked = len(self._log)


def _of(moments: list[Moment], which: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Whose they are, and the times there, by chunk."""
    return np.array([m.who for m in moments])[which], np.array([m.time for m in moments])[which]


def span(event: Access) -> tuple[Chunks, Chunks]:
    """The chunks of an access of which it covers all bytes, and all that it touches."""
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
