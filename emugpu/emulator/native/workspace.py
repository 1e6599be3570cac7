"""The memory in which the interpreter runs a kernel: the rows of fragments' registers, and its tables and lists.

Allocating it costs more than many launches, so the launches of a kernel use it one after the other.
"""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emugpu.emulator.machine.poison import Poison
from emugpu.emulator.machine.schedule import BUDGETS, OPERATIONS_SHARES, STEPS_TO_CHANGE
from emugpu.emulator.memory.bytes import aligned_bytes
from emugpu.emulator.native.calls import Caller
from emugpu.emulator.native.layout import CTA_FIELDS, JOIN_FIELDS, Context, Mark, Result
from emugpu.emulator.native.layout import FRAGMENT_FIELDS as FIELDS
from emugpu.emulator.native.layout import FragmentField as Field
from emugpu.emulator.native.plan import NativePlan
from emugpu.emulator.native.rows import NARROW, PREDICATE, ROW_BYTES, WIDE

LOG_ROOM = 1 << 18
"""Most stores of one lane that a window may make and still be rolled back: 32 of a warp in each of its 256 blocks."""
LONGEST_WINDOW = 1024
"""Most blocks of a window."""
QUEUE_ROOM, JOIN_ROOM, CTA_ROOM = 1 << 16, 1 << 12, 1 << 13
"""Most fragments that may become ready while native code gives turns, most open joins, and most participating CTAs."""
CHUNK_FILES, MOST_FRAGMENTS, MOST_BYTES, ALIGNMENT = 4, 1 << 14, 1 << 30, 64
"""Files of rows that are allocated together, most files, most bytes of rows, and their alignment."""
MOST_KEPT = 1 << 26
"""Most bytes of rows that are kept for the next launch."""
_DRAWN_FROM = {"budgets": BUDGETS, "changes_after": STEPS_TO_CHANGE, "operations_shares": OPERATIONS_SHARES}
_PLACE_BYTES = 32
_LANES = np.arange(32)
_UNIFORM, _VARIED = int(Mark.UNIFORM), int(Mark.VARIED)
_ALL: dict[int, Any] = {NARROW: np.uint32(0xFFFFFFFF), WIDE: np.uint64(0xFFFFFFFFFFFFFFFF), PREDICATE: np.True_}
"""The bits of a lane of which none is defined."""


def _numbers(table: NDArray[Any]) -> memoryview:
    """Returns a table's 8-byte fields as Python's integers."""
    return table.data.cast("B").cast("q")


class Views:
    """The rows of one fragment for Python. ``marks`` holds a `Mark` for each; ``undefined`` the undefined lanes of
    those marked as poison; ``origins`` the numbers of their sources; ``changed`` a bit for each row that native code
    has written since Python looked.
    """

    __slots__ = ("bytes", "changed", "marks", "narrow", "origins", "undefined", "wide", "words")

    def __init__(self, rows: int, memory: NDArray[np.uint8]) -> None:
        body = memory[: rows * ROW_BYTES]
        self.narrow = body.view(np.uint32).reshape(rows, -1)[:, :32]
        self.wide = body.view(np.uint64).reshape(rows, 32)
        view = self.bytes = memoryview(memory.data)
        self.words = view[: rows * ROW_BYTES].cast("Q")
        self.marks = view[rows * ROW_BYTES : rows * (ROW_BYTES + 1)]
        planes = [view[rows * (ROW_BYTES + at) : rows * (ROW_BYTES + at + 4)].cast("I") for at in (1, 5)]
        self.undefined, self.origins = planes
        self.changed = view[rows * (ROW_BYTES + 9) :][: rows // 8]

    def put(self, row: int, kind: int, value: Any) -> bool:
        """Sets a row to the value of a register. Returns False if it has no plain value."""
        try:
            if isinstance(value, int):
                lanes = value.to_bytes(8 if kind == WIDE else 4, "little") * 32
                self.bytes[ROW_BYTES * row : ROW_BYTES * row + len(lanes)] = lanes
                self.marks[row] = _UNIFORM
            else:
                (self.wide if kind == WIDE else self.narrow)[row] = value
                self.marks[row] = _VARIED if isinstance(value, np.ndarray) else _UNIFORM
        except (TypeError, OverflowError):
            return False
        return True

    def value(self, row: int, kind: int) -> Any:
        """Returns the value of a row without undefined lanes as Python has it."""
        if self.marks[row] == _UNIFORM:
            word = self.words[ROW_BYTES // 8 * row]
            return word if kind == WIDE else word & 0xFFFFFFFF if kind == NARROW else word & 0xFFFFFFFF != 0
        if kind == WIDE:
            return self.wide[row].copy()
        return self.narrow[row].copy() if kind == NARROW else self.narrow[row] != 0


class Files:
    """The memory of all fragments' rows, and the interpreter's table of fragments. Both grow and never move.

    A fragment's number is its place in the table.
    """

    def __init__(self, plan: NativePlan, context: memoryview) -> None:
        self._plan = plan
        self._bytes = -(-plan.rows * (8 * ROW_BYTES + 73) // (8 * ALIGNMENT)) * ALIGNMENT
        self._most = max(CHUNK_FILES, min(MOST_FRAGMENTS, MOST_BYTES // self._bytes))
        self._context = context
        table = aligned_bytes(8 * FIELDS * self._most).view(np.int64)
        free = np.zeros(self._most, np.int32)
        self._kept = (table, free)
        context[Context.FRAGMENTS], context[Context.FREE] = table.ctypes.data, free.ctypes.data
        self.table = _numbers(table)
        self._free = memoryview(free.data)
        self._memory: list[NDArray[np.uint8]] = []
        self._views: dict[int, Views] = {}
        self._lent: dict[int, _Lent] = {}
        self._returned: list[Any] = []

    @property
    def nbytes(self) -> int:
        return CHUNK_FILES * self._bytes * len(self._memory)

    def forget(self) -> None:
        """Removes all fragments and their data."""
        self._lent.clear()
        self._returned.clear()
        self._context[Context.FREE_COUNT] = 0
        for number in reversed(range(CHUNK_FILES * len(self._memory))):
            self.table[FIELDS * number + Field.IS_TOUCHED] = 0
            self.give_back(number)

    def grow(self) -> bool:
        """Makes room for more fragments. Returns False if there is none."""
        if self._returned:
            while self._returned:
                number = self._returned.pop().number
                del self._lent[number]
                self.give_back(number)
            return True
        first = CHUNK_FILES * len(self._memory)
        if first + CHUNK_FILES > self._most:
            return False
        memory = aligned_bytes(CHUNK_FILES * self._bytes).reshape(CHUNK_FILES, -1)
        # Unwritten memory is zero, and costs nothing until it is touched.
        rows = memory[:, : self._plan.rows * ROW_BYTES].reshape(CHUNK_FILES, -1, ROW_BYTES)
        rows[:, self._plan.literal_rows] = self._plan.literals
        memory[:, self._plan.rows * ROW_BYTES : self._plan.rows * (ROW_BYTES + 1)] = Mark.UNIFORM
        self._memory.append(memory)
        for n in range(CHUNK_FILES):
            self.table[FIELDS * (first + n) + Field.FILE] = memory.ctypes.data + n * self._bytes
            self.give_back(first + CHUNK_FILES - 1 - n)
        return True

    def take(self) -> int:
        """Returns the number of a new fragment, or -1."""
        if self._context[Context.FREE_COUNT] == 0 and not self.grow():
            return -1
        left = self._context[Context.FREE_COUNT] - 1
        self._context[Context.FREE_COUNT] = left
        return self._free[left]

    def give_back(self, number: int) -> None:
        left = self._context[Context.FREE_COUNT]
        self._free[left] = number
        self._context[Context.FREE_COUNT] = left + 1

    def lend(self, number: int, file: File) -> None:
        """Has a fragment's number given back some time after its file has died.

        No Python code runs as it dies: Python might handle a signal there, whose exception would be lost.
        """
        lent = self._lent[number] = _Lent(file, self._returned.append)
        lent.number = number

    def views(self, number: int) -> Views:
        found = self._views.get(number)
        if found is None:
            memory = self._memory[number // CHUNK_FILES][number % CHUNK_FILES]
            found = self._views[number] = Views(self._plan.rows, memory)
        return found


class File:
    """The rows of a fragment that has a Python object."""

    __slots__ = ("__weakref__", "number", "rows")

    def __init__(self, files: Files, number: int) -> None:
        self.number = number
        files.lend(number, self)
        self.rows = files.views(number)

    def put(self, row: int, kind: int, value: Any) -> bool:
        return self.rows.put(row, kind, value)

    def put_poison(self, row: int, kind: int, value: Poison, origin: int) -> bool:
        """Sets a row to a value with undefined lanes. Returns False if only some bits of a lane are undefined."""
        if (value.undefined[value.undefined != 0] != _ALL[kind]).any() or not self.put(row, kind, value.value):
            return False
        rows = self.rows
        rows.undefined[row], rows.origins[row], rows.marks[row] = value.undefined_lanes(), origin, Mark.POISON
        return True

    def poison(self, row: int, kind: int, origin: tuple[str, str]) -> Poison:
        """Returns the value of a row that is marked as poison."""
        lanes = (self.rows.undefined[row] >> _LANES & 1).astype(np.bool_)
        values = self.rows.wide[row].copy() if kind == WIDE else self.rows.narrow[row].copy()
        if kind == PREDICATE:
            return Poison(values != 0, lanes, *origin)
        return Poison(values, np.where(lanes, _ALL[kind], 0).astype(values.dtype), *origin)


class _Lent(weakref.ref[File]):
    """A file that is in use."""

    number: int


class Workspace:
    """The memory for one launch of a kernel at a time."""

    def __init__(self, plan: NativePlan) -> None:
        rows = plan.rows
        context = np.zeros(len(Context), np.uint64)
        self.context, self.context_address = _numbers(context), context.ctypes.data
        self._context = context
        self._kept: list[Any] = []
        """Objects whose addresses the interpreter holds."""
        self.files = Files(plan, self.context)
        self.caller = Caller(plan.calls, self.files, self.context[Context.FRAGMENTS])
        self.context[Context.CALL] = self.caller.address
        out = np.zeros(len(Result), np.int64)
        self.out = _numbers(out)
        queue, touched = np.zeros(QUEUE_ROOM, np.int32), np.zeros(MOST_FRAGMENTS, np.int32)
        joins = np.zeros(JOIN_ROOM * JOIN_FIELDS, np.int64)
        ctas = aligned_bytes(8 * CTA_ROOM * CTA_FIELDS).view(np.int64)
        strangers = np.zeros(QUEUE_ROOM, np.int64)
        self.strangers = _numbers(strangers)
        tables = {name: np.array([len(values), *values], np.int64) for name, values in _DRAWN_FROM.items()}
        self.queue, self.touched = memoryview(queue.data), memoryview(touched.data)
        self.joins, self.ctas = _numbers(joins), _numbers(ctas)
        fixed = np.array([row | kind << 16 for row, kind in plan.filled_rows] or [0], np.int32)
        self.set(
            operations=plan.operations, entries=plan.entries, locations=plan.locations,
            location_slots=plan.location_slots, saved_slots=plan.saved_slots, out=out,
            saved_rows=aligned_bytes((ROW_BYTES + 9) * rows), log=aligned_bytes(40 * LOG_ROOM), log_room=LOG_ROOM,
            places=aligned_bytes(32 * _PLACE_BYTES), scratch=aligned_bytes(ROW_BYTES),
            watched_rows=aligned_bytes(ROW_BYTES * rows), watched_blocks=aligned_bytes(4 * LONGEST_WINDOW),
            kept_rows=aligned_bytes((ROW_BYTES + 2) * rows), rows=rows, joins_of_blocks=np.array(plan.joins, np.int32),
            fixed_rows=fixed, fixed_count=len(plan.filled_rows), queue=queue, queue_room=QUEUE_ROOM, touched=touched,
            joins=joins, join_room=JOIN_ROOM, ctas=ctas, strangers=strangers, **tables,
        )  # fmt: skip
        self._permanent = len(self._kept)

    def set(self, **fields: Any) -> None:
        """Passes numbers and addresses of arrays to the interpreter."""
        for name, value in fields.items():
            if isinstance(value, np.ndarray):
                self._kept.append(value)
                value = value.ctypes.data
            self._context[Context[name.upper()]] = value

    def may_be_kept(self) -> bool:
        """Forgets the ended launch. Returns whether the next one may use the memory."""
        del self._kept[self._permanent :]
        self.files.forget()
        return self.files.nbytes <= MOST_KEPT
