"""Plain instructions without micro-operations: the interpreter calls Python for one of them, in the middle of a block.

Python computes the instruction's expressions on the rows of the fragment and writes the results to rows. So a rare
instruction costs its own time, and the code around it stays native.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from emugpu.emulator.errors import OF_INSTRUCTIONS
from emugpu.emulator.instructions.table import Assign
from emugpu.emulator.instructions.values import select
from emugpu.emulator.native.layout import FRAGMENT_FIELDS, Mark
from emugpu.emulator.native.layout import FragmentField as Field
from emugpu.emulator.native.rows import PREDICATE, WIDE, NotNative, Rows
from emugpu.emulator.ptx.ast import Instruction, Register

TYPE = ctypes.CFUNCTYPE(ctypes.c_ssize_t, ctypes.c_ssize_t, ctypes.c_ssize_t)
_UNIFORM, _VARIED = int(Mark.UNIFORM), int(Mark.VARIED)


@dataclass(frozen=True)
class Call:
    """An instruction: a function of the values of some rows, which returns the values of others. Rows have a kind."""

    function: Callable[..., tuple[Any, ...]]
    sources: list[tuple[int, int]]
    destinations: list[tuple[int, int]]


def call_of(i: Instruction, assign: Assign, rows: Rows, names: Mapping[str, Any]) -> Call:
    """Returns an instruction as a call. Raises NotNative if it needs more than the values of registers."""
    results = [(to, text) for to, text in assign.pairs if isinstance(to, Register)]
    texts = [text for _, text in results]
    if i.guard is not None:
        guard = f"v{i.guard.slot}" + (" ^ True" if i.guard_negated else "")
        texts = [
            f"select({guard}, {text}, v{to.slot}, {64 if rows.kind_of_slot(to.slot) == WIDE else 32})"
            for to, text in results
        ]
    code = compile(f"({''.join(f'{text}, ' for text in texts)})", "<call>", "eval")
    variables = [name for name in code.co_names if name[0] == "v" and name[1:].isdigit()]
    if "f" in code.co_names:
        raise NotNative
    sources = [rows.accessible(int(name[1:])) for name in variables]
    destinations = [rows.accessible(to.slot) for to, _ in results]
    function = eval(f"lambda {', '.join(variables)}: ({', '.join(texts)},)", {**names, "select": select})
    return Call(function, sources, destinations)


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
        """Executes an instruction. Returns 0, with nothing else done, if Python must run the block."""
        try:
            return self._execute((fragment - self._table) // (8 * FRAGMENT_FIELDS), self._calls[number])
        except OF_INSTRUCTIONS:
            return 0  # Python raises it again, with its place.
        except BaseException as error:
            self.interrupt = error
            return 0

    def _execute(self, number: int, call: Call) -> int:
        rows = self._files.views(number)
        values: list[Any] = []
        for row, kind in call.sources:
            mark = rows.marks[row]
            held = (rows.wide if kind == WIDE else rows.narrow)[row]
            if mark == _UNIFORM:
                values.append(bool(held[0]) if kind == PREDICATE else int(held[0]))
            elif mark == _VARIED:
                values.append(held != 0 if kind == PREDICATE else held)
            else:
                return 0
        results = call.function(*values)
        stamp = self._files.table[FRAGMENT_FIELDS * number + Field.STAMP]
        for (row, kind), value in zip(call.destinations, results, strict=True):
            rows.stamps[row] = stamp
            if not rows.put(row, kind, value):
                return 0
        return 1
