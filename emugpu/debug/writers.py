"""The writes of a recording, by memory; a search backwards finds the last write to a byte."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emugpu.debug.boxes import box_rows
from emugpu.debug.recording import Recording
from emugpu.emulator.machine import events
from emugpu.emulator.machine.events import Access, Operation

Memory = tuple[Any, ...]
"""("global",), or ("shared" or "tensor", launch, cluster, CTA), or ("registers", launch, cluster, CTA, warp)."""
CHUNK = 16


@dataclass(frozen=True)
class Write:
    """One write.

    ``event`` made it visible, ``started`` read its operands. ``region`` is its place; None: see ``access``.
    """

    event: int
    started: int
    memory: Memory
    access: Access | None = None
    operation: Operation | None = None
    region: Any = None

    def covers(self, first: int, end: int) -> bool:
        """Returns whether it writes a byte of the range; not for tensor memory and registers."""
        if self.access is not None:
            starts = np.atleast_1d(np.asarray(self.access.where)).astype(np.int64)
            return bool(((starts < end) & (first < starts + self.access.nbytes * self.access.items)).any())
        match self.region:
            case events.SharedChunks(_, chunks):
                return bool(((chunks * CHUNK < end) & (first < (chunks + 1) * CHUNK)).any())
            case events.SharedBytes(_, offset, nbytes):
                return bool(offset < end and first < offset + nbytes)
            case events.SharedItems(_, offsets, nbytes):
                return bool(((offsets < end) & (first < offsets + nbytes)).any())
            case events.GlobalItems(addresses, nbytes):
                return bool(((addresses < end) & (first < addresses + nbytes)).any())
            case events.GlobalBox(tensor_map, coordinates):
                starts, size = box_rows(tensor_map, tuple(coordinates))
                return bool(((starts < end) & (first < starts + size)).any())
        return False

    def ranges(self) -> tuple[NDArray[np.int64], int]:
        """Returns the addresses in global memory that it writes, and the bytes at each (the most, if they differ)."""
        if self.access is not None:
            return np.atleast_1d(np.asarray(self.access.where)).astype(np.int64), self.access.nbytes * self.access.items
        match self.region:
            case events.GlobalBox(tensor_map, coordinates):
                return box_rows(tensor_map, tuple(coordinates))
            case events.GlobalItems(addresses, nbytes) if len(addresses):
                return addresses.astype(np.int64), int(nbytes.max())
        return np.zeros(0, np.int64), 0

    def holds(self, lane: int, column: int) -> bool:
        """Returns whether it writes a word of tensor memory."""
        return lane in self.region.lanes and column in self.region.columns


class Writers:
    """The writes of a recording, in order."""

    def __init__(self, recording: Recording) -> None:
        self._by_memory: dict[Memory, list[Write]] = {}
        self._issued: dict[Operation, int] = {}
        self._started: dict[Operation, int] = {}
        launch = -1
        for number, event in enumerate(recording.events, 1):
            kind = type(event)
            if kind is events.GridStarted:
                launch += 1
            elif kind is events.Issued:
                self._issued.setdefault(event.operation, number)
            elif kind is events.Started:
                self._started[event.operation] = number
            elif kind is Access and event.mode != "read" and event.space in ("shared", "global"):
                memory = ("global",) if event.space == "global" else ("shared", launch, event.agent.cluster, event.cta)
                self._add(Write(number, number, memory, access=event))
            elif kind is events.Finished:
                self._finished(number, launch, event)

    def _finished(self, number: int, launch: int, event: events.Finished) -> None:
        operation = event.operation
        started = self._started.get(operation, number)
        for region in event.regions:
            match region:
                case events.GlobalBox() | events.GlobalItems():
                    memory: Memory = ("global",)
                case events.TensorBlock(cta):
                    memory = ("tensor", launch, operation.agent.cluster, cta)
                case events.RegisterBlock(warp):
                    memory = ("registers", launch, operation.agent.cluster, operation.agent.cta, warp)
                case _:
                    memory = ("shared", launch, operation.agent.cluster, region.cta)
            self._add(Write(number, started, memory, operation=operation, region=region))

    def _add(self, write: Write) -> None:
        self._by_memory.setdefault(write.memory, []).append(write)

    def memories(self, space: str, cta: int | None) -> list[Memory]:
        """Returns the written memories of a space, of all CTAs or of those with a rank."""
        return [m for m in self._by_memory if m[0] == space and (cta is None or m[3] == cta)]

    def issued(self, operation: Operation) -> int:
        """Returns the event that issued an operation."""
        return self._issued[operation]

    def started(self, operation: Operation) -> int | None:
        """Returns the event at which an operation read its operands, or None."""
        return self._started.get(operation)

    def backwards(self, memory: Memory, before: int) -> Iterator[Write]:
        """Yields the writes to a memory up to and including an event, the last one first."""
        writes = self._by_memory.get(memory, [])
        for n in range(bisect_left(writes, before + 1, key=lambda w: w.event) - 1, -1, -1):
            yield writes[n]

    def last(self, memory: Memory, first: int, end: int, before: int) -> Write | None:
        """Returns the last write to a byte of a range, up to and including an event."""
        return next((write for write in self.backwards(memory, before) if write.covers(first, end)), None)

    def all_to(self, memory: Memory, first: int, end: int) -> list[Write]:
        """Returns all writes to a range, in order."""
        return [write for write in self._by_memory.get(memory, []) if write.covers(first, end)]
