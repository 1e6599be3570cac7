"""Runs blocks natively for the machine: hands registers and memory to the interpreter, and takes back what it changed.

A stretch of native code is a transaction: if anything in it is out of the ordinary (a fault of any kind, a window that
it does not know) the interpreter takes it back, and the ordinary block function does it, faults included. So what a
kernel does, and what is said about it, does not depend on the engine.
"""

from __future__ import annotations

import ctypes
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np

from harness.emulator.errors import Fault
from harness.emulator.machine.code import BLOCKED, Code
from harness.emulator.machine.divergence import diverge
from harness.emulator.machine.state import Cta, Fragment, Grid
from harness.emulator.memory.bytes import aligned_bytes
from harness.emulator.native.plan import PREDICATE, ROW_BYTES, WIDE, Piece, Plan

FAILED, DIVERGES, LEFT, REFUSED = 1, 2, 3, 4
"""Why native code has stopped, other than before a block."""
TRIALS = 16
"""How often a place is entered before it is looked at whether that pays."""
PRICE, ROWS_A_UNIT, FILE_PRICE = 20, 2, 30
"""What an entry costs, in the units in which the interpreter estimates what Python would take, less than a microsecond
each; how many registers can be handed in for one; and what the first entry of a fragment costs."""
LOG_ROOM = 16384
"""Stores of one lane that a stretch may make and still be taken back."""
NO_BLOCK = -3
WINDOW = 1024
"""Blocks of the longest window that can be watched."""
_PLACE_BYTES = 32


class _Field(IntEnum):
    """The places of what the interpreter is told, as it numbers them."""

    SHARED = 0
    SHARED_SHADOW = 1
    SHARED_SIZE = 2
    WINDOW = 3
    BARRIERS_FIRST = 4
    BARRIERS_END = 5
    PARAMETERS = 6
    PARAMETER_BYTES = 7
    ALLOCATIONS = 8
    ALLOCATION_COUNT = 9
    LAST_ALLOCATION = 10
    OPERATIONS = 11
    ENTRIES = 12
    LOCATIONS = 13
    LOCATION_SLOTS = 14
    SAVED_SLOTS = 15
    COUNTS = 16
    OUT = 17
    OUT32 = 18
    OUT64 = 19
    OUT_PREDICATES = 20
    SAVED_ROWS = 21
    LOG = 22
    LOG_ROOM = 23
    PLACES = 24
    SCRATCH = 25
    RUNS = 26
    LOGGED = 27
    WATCHES = 28
    WATCHED_ROWS = 29
    WATCHED_BLOCKS = 30


class Library:
    """The compiled interpreter."""

    def __init__(self, path: Path) -> None:
        self.run = ctypes.CDLL(str(path)).run
        pointer, number = ctypes.c_void_p, ctypes.c_ssize_t
        self.run.argtypes = [pointer, pointer, number, number, ctypes.c_uint32, number, number, number]
        self.run.restype = number


class _File:
    """The rows of one fragment. known: for each row the register value that it was last equal to."""

    __slots__ = ("address", "agree", "buffer", "known", "narrow", "stamps", "wide")

    def __init__(self, plan: Plan, f: Fragment) -> None:
        rows = plan.rows
        self.buffer = aligned_bytes(rows * (ROW_BYTES + 5))
        body = self.buffer[: rows * ROW_BYTES]
        body[:] = plan.template
        self.narrow = body.view(np.uint32).reshape(rows, -1)[:, :32]
        self.wide = body.view(np.uint64).reshape(rows, 32)
        view = memoryview(self.buffer.data)
        self.agree = view[rows * ROW_BYTES : rows * (ROW_BYTES + 1)]
        self.agree[:] = b"\1" * rows
        self.stamps = view[rows * (ROW_BYTES + 1) :].cast("I")
        self.known: list[Any] = [self] * rows
        self.address = self.buffer.ctypes.data
        for (row, kind), value in zip(plan.filled_rows, plan.filled(f), strict=True):
            (self.wide if kind == WIDE else self.narrow)[row] = value
            self.agree[row] = not isinstance(value, np.ndarray)


class _Entry:
    """A piece of a block, and how well it has paid to run it natively in this launch."""

    __slots__ = ("entered", "is_native", "piece", "weight")

    def __init__(self, piece: Piece) -> None:
        self.piece = piece
        self.is_native = piece.start >= 0
        self.entered = self.weight = 0


class Engine:
    """The native engine of one launch."""

    def __init__(self, library: Library, grid: Grid, plan: Plan) -> None:
        code: Code = grid.code
        self._library_run = library.run
        self._functions = code.functions
        self._plan = plan
        self._grid = grid
        self._rows = plan.rows
        self._pieces = [[_Entry(piece) for piece in pieces] for pieces in plan.pieces]
        self.enters = [any(entry.is_native for entry in entries) for entries in self._pieces]
        self.counts = np.zeros(len(code.functions), np.int64)
        """Blocks that ran natively and that the machine has not counted."""
        self._context = np.zeros(len(_Field), np.uint64)
        self._context_address = self._context.ctypes.data
        self._out = aligned_bytes(8 * (16 + 5 * plan.rows)).view(np.int64)
        self._out_unsigned = self._out.view(np.uint64)
        self._out32 = aligned_bytes(128 * plan.rows).view(np.uint32).reshape(-1, 32)
        self._out64 = aligned_bytes(256 * plan.rows).view(np.uint64).reshape(-1, 32)
        self._out_predicates = aligned_bytes(32 * plan.rows).view(np.bool_).reshape(-1, 32)
        self._parameters = np.frombuffer(grid.launch.parameters or b"\0", np.uint8)
        saved_rows = aligned_bytes(ROW_BYTES * plan.rows + max(plan.most_saved, 1))
        blocks = grid.memory.direct()
        self._allocations = np.array(
            [
                (b.base, b.data.size, b.data.ctypes.data, b.shadow[1].ctypes.data if b.valid is not None else 0)
                for b in blocks
            ]
            or [(0, 0, 0, 0)],
            np.uint64,
        )
        self._kept: list[Any] = [saved_rows]
        self._set(
            parameters=self._parameters, parameter_bytes=len(grid.launch.parameters), allocations=self._allocations,
            allocation_count=len(blocks), operations=plan.operations, entries=plan.entries, locations=plan.locations,
            location_slots=plan.location_slots, saved_slots=plan.saved_slots, counts=self.counts, out=self._out,
            out32=self._out32, out64=self._out64, out_predicates=self._out_predicates, saved_rows=saved_rows,
            log=aligned_bytes(40 * LOG_ROOM), log_room=LOG_ROOM, places=aligned_bytes(32 * _PLACE_BYTES),
            scratch=aligned_bytes(ROW_BYTES), watched_rows=aligned_bytes(ROW_BYTES * plan.rows),
            watched_blocks=aligned_bytes(4 * WINDOW),
        )  # fmt: skip
        self._cta: Cta | None = None
        self._bounds = (-1, -1)

    def _set(self, **fields: Any) -> None:
        for name, value in fields.items():
            if isinstance(value, np.ndarray):
                self._kept.append(value)
                value = value.ctypes.data
            self._context[_Field[name.upper()]] = value

    def _visit(self, cta: Cta) -> None:
        """Make a CTA's shared memory that of the context."""
        shared = cta.shared
        if cta is not self._cta:
            self._cta = cta
            addresses = shared.addresses()
            self._context[0:4] = (*addresses, shared.size, cta.window)
        bounds = shared.mbarrier_bounds
        if bounds != self._bounds:
            self._bounds = bounds
            self._context[4:6] = bounds

    def run(self, f: Fragment, block: int, budget: int) -> tuple[int, int, int]:
        """Run a block, and those after it for as long as they are native; at most ``budget`` in all.

        Returns the last one that was run, what its block function would have returned, and how many were run before it,
        which are counted.
        """
        ran, number = 0, 0
        while True:
            entry = self._pieces[block][number]
            if entry.is_native and (price := self._hand_in(f, entry.piece)):
                entry.weight -= price
                status, block, following, further = self._run(f, entry, budget - ran)
                ran += further
                if status == 0:
                    return block, following, ran
                if status == DIVERGES:
                    branch = self._plan.branches[block]
                    predicate, join = f.registers[branch.predicate], self._plan.joins[block]
                    return block, diverge(f, predicate, branch.yes, branch.no, join), ran
                number = following
                if status == FAILED and number == 0:
                    return block, self._functions[block](f, f.registers), ran
            function = self._pieces[block][number].piece.function
            if function is None:
                self._plan.make_functions(block)
                function = self._pieces[block][number].piece.function
                assert function is not None
            following = function(f, f.registers)
            number += 1
            if number == len(self._pieces[block]) or following == BLOCKED:
                return block, following, ran

    def _hand_in(self, f: Fragment, piece: Piece) -> int:
        """Give the interpreter the registers that it may read. Returns what that costs; 0: it has no row for one."""
        file: _File | None = f.native
        price, handed = PRICE, 0
        if file is None:
            file = f.native = _File(self._plan, f)
            price += FILE_PRICE
        registers, known, stamps = f.registers, file.known, file.stamps
        for slot, row, kind in piece.needs:
            value = registers[slot]
            if value is known[row] and not stamps[row]:
                continue
            try:
                (file.wide if kind == WIDE else file.narrow)[row] = value
            except (Fault, TypeError, OverflowError):
                return 0
            handed += 1
            file.agree[row] = not isinstance(value, np.ndarray)
            known[row] = value
            stamps[row] = 0
        self._visit(f.cta)
        return price + handed // ROWS_A_UNIT

    def _run(self, f: Fragment, entry: _Entry, budget: int) -> tuple[int, int, int, int]:
        """Enter native code: why it stopped, at which block, what follows, and how many blocks it has run before."""
        self._call(f, entry.piece, budget, 0)
        status, block, following, ran, _, weight, _ = self._take_over(f)
        entry.entered += 1
        entry.weight += weight
        if entry.entered == TRIALS:
            self._judge(entry)
        return status, block, following, ran

    def pass_window(self, f: Fragment, blocks: int) -> tuple[int, int] | None:
        """Run so many blocks, all of them native; None, and nothing is done, if that is not to be, or if the fragment
        comes round with the same registers and nothing changed.

        Returns the block that follows, and how many loads the last one has made, at most four if nothing was stored.
        """
        pieces = self._pieces[f.block]
        if not (self.enters[f.block] and pieces[0].is_native) or not self._hand_in(f, pieces[0].piece):
            return None
        if self._call(f, pieces[0].piece, blocks, blocks) == REFUSED:
            return None
        _, _, following, _, _, _, loads = self._take_over(f)
        return following, loads

    def _call(self, f: Fragment, piece: Piece, budget: int, window: int) -> int:
        join = NO_BLOCK if f.join_block is None else f.join_block
        status: int = self._library_run(
            self._context_address, f.native.address, self._rows, piece.start, f.mask, join, budget, window
        )
        return status

    def _take_over(self, f: Fragment) -> list[int]:
        """Take the registers that a call has changed and that are live; what else it has said."""
        out, file = self._out, f.native
        said: list[int]
        *said, scalars, narrow, wide, predicates = out[:11].tolist()
        if said[4]:
            self._grid.wakeups.changes += said[4]
        registers, known, slot_of_row, rows = f.registers, file.known, self._plan.slot_of_row, self._rows
        if scalars:
            flat = iter(self._out_unsigned[16 : 16 + 2 * scalars].tolist())
            for packed, value in zip(flat, flat, strict=True):
                row = packed & 0xFFFF
                registers[slot_of_row[row]] = known[row] = value != 0 if packed >> 16 == PREDICATE else value
        for count, first, values in (
            (narrow, 16 + 2 * rows, self._out32),
            (wide, 16 + 3 * rows, self._out64),
            (predicates, 16 + 4 * rows, self._out_predicates),
        ):
            if count:
                for row, value in zip(out[first : first + count].tolist(), values[:count].copy(), strict=True):
                    registers[slot_of_row[row]] = known[row] = value
        return said

    def _judge(self, entry: _Entry) -> None:
        """Leave a place to Python that native code does too little from."""
        if entry.weight < 0:
            entry.is_native = False
            self.enters[:] = [any(e.is_native for e in entries) for entries in self._pieces]
        entry.entered = entry.weight = 0
