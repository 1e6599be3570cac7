"""Who has accessed which part of a CTA's tensor memory: in blocks of 16 lanes by one column, which all instructions
keep to (PTX ISA 9.7.16.2.3, 9.7.16.10.5)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from harness.check.accesses import TENSOR, Conflict, Histories, Observer, Record, different

LANES, COLUMNS, BLOCK = 128, 512, 16
CROWDED = 1 << 13

Told = Callable[[list[Conflict], list[tuple[Record, Record]], range, Observer], None]


class TensorMemory:
    """``cells``: the number of the history of each block."""

    def __init__(self, tell: Told) -> None:
        self.histories = Histories(TENSOR)
        self.cells: NDArray[np.int32] = np.zeros((LANES // BLOCK, COLUMNS), np.int32)
        self._tell = tell
        self._crowded = CROWDED

    def access(self, lanes: range, columns: range, record: Record, observer: Observer) -> bool:
        """Returns whether all of it had been written, by more than an allocation."""
        first, last = lanes.start // BLOCK, -(-lanes.stop // BLOCK)
        part = self.cells[first:last, columns.start : columns.stop]
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
        new = self.histories.keep_only(np.unique(self.cells).tolist())
        table = np.zeros(max(new) + 1, np.int32)
        for old, number in new.items():
            table[old] = number
        self.cells = table[self.cells]
        self._crowded = max(CROWDED, 2 * len(self.histories.all))
