"""Global memory: who has accessed which bytes of an allocation."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from harness.check.accesses import Observer, Record
from harness.check.boxes import rows_of
from harness.check.memory import Memory
from harness.emulator.machine.events import GlobalBox

NOTED = 1 << 16
"""Reads that are only noted."""

Where = GlobalBox | tuple[NDArray[np.int64], int]
"""The box of a tensor map, or device addresses and the bytes at each of them."""


class Allocation:
    """As long as nobody writes, reads are only noted: what is never written takes no room for histories."""

    def __init__(self, name: str, base: int, nbytes: int, memory: Memory) -> None:
        self.name = name
        self.base = base
        self.nbytes = nbytes
        self._memory = memory
        self._noted: list[tuple[Where, Record]] | None = []

    def access(self, where: Where, record: Record, observer: Observer) -> None:
        if self._noted is not None:
            if not record.writes and len(self._noted) < NOTED:
                self._noted.append((where, record))
                return
            noted, self._noted = self._noted, None
            for place, read in noted:
                self._access(place, read, observer)
        self._access(where, record, observer)

    def _access(self, where: Where, record: Record, observer: Observer) -> None:
        if isinstance(where, GlobalBox):
            where = rows_of(where.tensor_map, where.coordinates)
        places, nbytes = where
        if nbytes and len(places):
            self._memory.access(places - self.base, nbytes, record, observer)
