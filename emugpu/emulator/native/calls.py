"""Micro-operations without a Mojo expression: the interpreter calls Python for one of them, in the middle of a block.

Python computes the function on the rows of the fragment and writes the result to a row. So a rare instruction costs its
own time, and the code around it stays native.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from emugpu.emulator.errors import OF_INSTRUCTIONS
from emugpu.emulator.instructions.table import Function
from emugpu.emulator.instructions.values import select
from emugpu.emulator.native.layout import FRAGMENT_FIELDS, Mark
from emugpu.emulator.native.rows import PREDICATE, WIDE

TYPE = ctypes.CFUNCTYPE(ctypes.c_ssize_t, ctypes.c_ssize_t, ctypes.c_ssize_t)
_POISON = int(Mark.POISON)


@dataclass(frozen=True)
class Call:
    """A function of the values of some rows, whose result is the value of another. Each row has a kind."""

    function: Function
    sources: list[tuple[int, int]]
    destination: tuple[int, int]
    guard: int | None
    negated: bool
    merges: bool
    """Whether the destination keeps its value in the lanes for which the guard does not hold."""


class Caller:
    """Answers the interpreter's calls. ``interrupt`` holds an exception that comes from outside."""

    def __init__(self, calls: Sequence[Call], files: Any, table: int) -> None:
        """``table`` is the address of the table of fragments."""
        self._calls = calls
        self._files = files
        self._table = table
        self._function = TYPE(self._answer)
        self.address: int = ctypes.cast(self._function, ctypes.c_void_p).value or 0
        self.interrupt: BaseException | None = None
        self._others = sys.unraisablehook

    def __enter__(self) -> None:
        """Native code that may call begins to run."""
        if sys.unraisablehook != self._note_lost:
            self._others, sys.unraisablehook = sys.unraisablehook, self._note_lost

    def __exit__(self, *error: object) -> None:
        """Native code has ended. Raises the exception that came from outside meanwhile."""
        sys.unraisablehook = self._others
        if self.interrupt is not None:
            interrupt, self.interrupt = self.interrupt, None
            raise interrupt

    def _note_lost(self, lost: Any) -> None:
        """Keeps an exception that was raised as `_answer` began, outside its ``try``. Python handles there the signals
        that came during native code, and ctypes cannot pass the exception on.
        """
        if "ctypes callback" in (lost.err_msg or ""):
            self.interrupt = lost.exc_value
        else:
            self._others(lost)

    def _answer(self, fragment: int, number: int) -> int:
        """Executes an operation. Returns 0, with nothing else done, if Python must run the block."""
        try:
            return self._execute((fragment - self._table) // (8 * FRAGMENT_FIELDS), self._calls[number])
        except OF_INSTRUCTIONS:
            return 0  # Python raises it again, with its place.
        except BaseException as error:
            self.interrupt = error
            return 0

    def _execute(self, number: int, call: Call) -> int:
        rows = self._files.views(number)
        holds = True if call.guard is None else _value(rows, call.guard, PREDICATE)
        if holds is None:
            return 0
        if call.negated:
            holds = holds ^ True
        if holds is False:
            return 1
        values = [_value(rows, row, kind) for row, kind in call.sources]
        (row, kind), f = call.destination, call.function
        old = _value(rows, row, kind) if call.merges and holds is not True else 0
        if old is None or any(value is None for value in values):
            return 0
        result = f.function(*f.before, *values, *f.after)
        if call.merges:
            result = select(holds, result, old, 64 if kind == WIDE else 32)
        rows.changed[row // 8] |= 1 << row % 8
        return int(rows.put(row, kind, result))


def _value(rows: Any, row: int, kind: int) -> Any:
    """Returns the value of a row as Python has it, or None if it has undefined lanes."""
    return rows.value(row, kind) if rows.marks[row] != _POISON else None
