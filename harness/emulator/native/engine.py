"""Runs code natively for the machine: hands registers and memory to the interpreter, and takes back what it changed.

A stretch of native code is a transaction: if anything in it is out of the ordinary (a fault of any kind, a window that
it does not know) the interpreter takes it back, and the ordinary block function does it, faults included. So what a
kernel does, and what is said about it, does not depend on the engine.

Where fragments have their turns in the order in which they became ready, the interpreter gives them these itself
(`Engine.take_turns`): it goes from one fragment to the next as they wait at barriers, split and join, until one of them
needs Python. Fragments that came into being and are still there become objects then; registers are brought up to date
when Python next runs the fragment (`Engine.settle`).
"""

from __future__ import annotations

import ctypes
from array import array
from collections import deque
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.emulator.errors import Fault
from harness.emulator.machine import lifetime
from harness.emulator.machine.barriers import Waiting
from harness.emulator.machine.code import BLOCKED, Code
from harness.emulator.machine.divergence import diverge
from harness.emulator.machine.state import Cta, Fragment, Grid, JoinPoint
from harness.emulator.memory.bytes import aligned_bytes
from harness.emulator.native.layout import (
    CTA_FIELDS,
    FIRST_ROW,
    NAMED_BARRIERS,
    Answer,
    Barrier,
    Context,
    CtaState,
    JoinField,
    Said,
    State,
)
from harness.emulator.native.layout import FragmentField as Its
from harness.emulator.native.plan import PREDICATE, ROW_BYTES, WIDE, Piece, Plan

TRIALS = 16
"""How often a place is entered before it is looked at whether that pays."""
FEWEST_TURNS = 1.5
"""Native turns that there must be on average where they begin; else fragments are run one by one."""
PRICE, ROWS_A_UNIT, FILE_PRICE = 20, 2, 30
"""What an entry costs, in the units in which the interpreter estimates what Python would take, less than a microsecond
each; how many registers can be handed in for one; and what the first entry of a fragment costs."""
LOG_ROOM = 16384
"""Stores of one lane that a stretch may make and still be taken back."""
NO_BLOCK = -3
LONGEST_WINDOW = 1024
"""Blocks of the longest window that can be watched."""
QUEUE_ROOM, JOIN_ROOM, CTA_ROOM = 1 << 16, 1 << 12, 64
"""Fragments that may become ready while native code gives turns, joins that may be open, and CTAs that take part."""
NARROWEST, WIDEST = 8, 1024
"""Fragments that are handed to native code together at most."""
CHUNK_FILES, MOST_FRAGMENTS, MOST_BYTES, ALIGNMENT = 32, 1 << 14, 1 << 30, 64
"""Files of rows that are made together, the most that there may be, and the most bytes that they may take."""
_PLACE_BYTES = 32
_FIELDS = len(Its)


class Library:
    """The compiled interpreter."""

    def __init__(self, path: Path) -> None:
        library = ctypes.CDLL(str(path))
        self.run, self.run_turns = library.run, library.run_turns
        self.settle, self.touch_living = library.settle, library.touch_living
        for function, numbers in ((self.run, 4), (self.run_turns, 1), (self.settle, 2), (self.touch_living, 2)):
            function.argtypes = [ctypes.c_void_p, *[ctypes.c_ssize_t] * numbers]
            function.restype = ctypes.c_ssize_t


def _numbers(table: NDArray[Any]) -> memoryview:
    """A table's fields of 8 bytes, as Python's integers."""
    return table.data.cast("B").cast("q")


class _Views:
    """The rows of one fragment, as Python sees them."""

    __slots__ = ("agree", "narrow", "stamps", "wide")

    def __init__(self, rows: int, memory: NDArray[np.uint8]) -> None:
        body = memory[: rows * ROW_BYTES]
        self.narrow = body.view(np.uint32).reshape(rows, -1)[:, :32]
        self.wide = body.view(np.uint64).reshape(rows, 32)
        view = memoryview(memory.data)
        self.agree = view[rows * ROW_BYTES : rows * (ROW_BYTES + 1)]
        self.stamps = view[rows * (ROW_BYTES + 1) : rows * (ROW_BYTES + 5)].cast("I")


class _Files:
    """The memory of all fragments' rows, and the interpreter's table of fragments; both grow, and stay where they are.

    A fragment's number is its place in the table.
    """

    def __init__(self, plan: Plan, context: NDArray[np.uint64]) -> None:
        self._plan = plan
        self._bytes = -(-plan.rows * (ROW_BYTES + 5) // ALIGNMENT) * ALIGNMENT
        self._most = max(CHUNK_FILES, min(MOST_FRAGMENTS, MOST_BYTES // self._bytes))
        self._context = _numbers(context)
        table = np.zeros(_FIELDS * self._most, np.int64)
        free = np.zeros(self._most, np.int32)
        self._kept = (table, free)
        context[Context.FRAGMENTS], context[Context.FREE] = table.ctypes.data, free.ctypes.data
        self.table = _numbers(table)
        self._free = memoryview(free.data)
        self._memory: list[NDArray[np.uint8]] = []
        self._views: dict[int, _Views] = {}

    def grow(self) -> bool:
        """Make room for more fragments; False: there is none."""
        first = CHUNK_FILES * len(self._memory)
        if first + CHUNK_FILES > self._most:
            return False
        memory = aligned_bytes(CHUNK_FILES * self._bytes).reshape(CHUNK_FILES, -1)
        memory[:, : self._plan.template.size] = self._plan.template
        memory[:, self._plan.template.size : self._plan.template.size + self._plan.rows] = 1
        self._memory.append(memory)
        for n in range(CHUNK_FILES):
            self.table[_FIELDS * (first + n) + Its.FILE] = memory.ctypes.data + n * self._bytes
            self.give_back(first + CHUNK_FILES - 1 - n)
        return True

    def take(self) -> int:
        """The number of a new fragment, or -1."""
        if self._context[Context.FREE_COUNT] == 0 and not self.grow():
            return -1
        left = self._context[Context.FREE_COUNT] - 1
        self._context[Context.FREE_COUNT] = left
        return self._free[left]

    def give_back(self, number: int) -> None:
        left = self._context[Context.FREE_COUNT]
        self._free[left] = number
        self._context[Context.FREE_COUNT] = left + 1

    def views(self, number: int) -> _Views:
        found = self._views.get(number)
        if found is None:
            memory = self._memory[number // CHUNK_FILES][number % CHUNK_FILES]
            found = self._views[number] = _Views(self._plan.rows, memory)
        return found


class _File:
    """The rows of a fragment that Python knows. known: for each row the register value that it was last equal to.

    is_fresh: whether the rows hold all that native code may read. is_ahead: whether registers have to be taken from it
    before Python may read them.
    """

    __slots__ = ("_engine", "_files", "agree", "is_ahead", "is_fresh", "known", "narrow", "number", "stamps", "wide")

    def __init__(self, engine: Engine, files: _Files, number: int) -> None:
        self._engine = engine
        self._files = files
        self.number = number
        views = files.views(number)
        self.narrow, self.wide, self.agree, self.stamps = views.narrow, views.wide, views.agree, views.stamps
        self.known: list[Any] = [self] * len(views.agree)
        self.is_fresh = self.is_ahead = False

    def __del__(self) -> None:
        self._files.give_back(self.number)

    def settle(self, f: Fragment) -> None:
        """Make the fragment's registers what they are."""
        self._engine.settle(f)


class _Entry:
    """A piece of a block, and how well it has paid to run it natively in this launch. begins: whether native turns may
    begin with it; rounds, turns: how often they have, and how many there were then.
    """

    __slots__ = ("begins", "entered", "is_native", "piece", "rounds", "turns", "weight")

    def __init__(self, piece: Piece) -> None:
        self.piece = piece
        self.is_native = self.begins = piece.start >= 0
        self.entered = self.weight = self.rounds = self.turns = 0


class _Round:
    """What one call of native turns is about: who takes part, by the numbers that the interpreter has for them."""

    __slots__ = ("ctas", "joins", "numbers", "objects", "outers", "points", "price")

    def __init__(self) -> None:
        self.objects: dict[int, Fragment] = {}
        self.ctas: dict[Cta, int] = {}
        self.numbers: dict[JoinPoint, int] = {}
        self.points: list[JoinPoint | None] = []
        self.joins: dict[int, list[JoinPoint]] = {-1: []}
        """By the number of the innermost join: it and those around it."""
        self.outers = 0
        """How many lists of joins there are whose innermost one is Python's."""
        self.price = PRICE


@dataclass(frozen=True)
class Stop:
    """Why native turns have ended. turns: how many were begun. fragment: whose turn goes on in Python, if one does;
    piece, ran: of its block where it goes on, and how many blocks it has run in this turn; changes: before this turn.
    """

    turns: int
    answer: Answer = Answer.NOTHING_LEFT
    fragment: Fragment | None = None
    piece: int = 0
    ran: int = 0
    changes: int = 0


class Engine:
    """The native engine of one launch."""

    def __init__(self, library: Library, grid: Grid, plan: Plan) -> None:
        code: Code = grid.code
        self._library = library
        self._functions = code.functions
        self._plan = plan
        self._grid = grid
        self._rows = plan.rows
        self._pieces = [[_Entry(piece) for piece in pieces] for pieces in plan.pieces]
        self.enters: list[bool] = []
        self.begins: list[bool] = []
        self._note_entries()
        self.counts = np.zeros(len(code.functions), np.int64)
        """Blocks that ran natively and that the machine has not counted."""
        self._context = np.zeros(len(Context), np.uint64)
        self._context_view = _numbers(self._context)
        self._context_address = self._context.ctypes.data
        self._files = _Files(plan, self._context)
        self._table = self._files.table
        self._out = aligned_bytes(8 * (FIRST_ROW + 5 * plan.rows)).view(np.int64)
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
        queue, touched = np.zeros(QUEUE_ROOM, np.int32), np.zeros(MOST_FRAGMENTS, np.int32)
        joins = np.zeros(JOIN_ROOM * len(JoinField), np.int64)
        ctas = np.full(CTA_ROOM * CTA_FIELDS, -1, np.int64)
        self._queue, self._touched = memoryview(queue.data), memoryview(touched.data)
        self._joins, self._ctas = _numbers(joins), _numbers(ctas)
        fixed = np.array([row | kind << 16 for row, kind in plan.filled_rows] or [0], np.int32)
        self._kept: list[Any] = [saved_rows]
        self._set(
            parameters=self._parameters, parameter_bytes=len(grid.launch.parameters), allocations=self._allocations,
            allocation_count=len(blocks), operations=plan.operations, entries=plan.entries, locations=plan.locations,
            location_slots=plan.location_slots, saved_slots=plan.saved_slots, counts=self.counts, out=self._out,
            out32=self._out32, out64=self._out64, out_predicates=self._out_predicates, saved_rows=saved_rows,
            log=aligned_bytes(40 * LOG_ROOM), log_room=LOG_ROOM, places=aligned_bytes(32 * _PLACE_BYTES),
            scratch=aligned_bytes(ROW_BYTES), watched_rows=aligned_bytes(ROW_BYTES * plan.rows),
            watched_blocks=aligned_bytes(4 * LONGEST_WINDOW), kept_rows=aligned_bytes((ROW_BYTES + 5) * plan.rows),
            rows=plan.rows, joins_of_blocks=np.array(plan.joins, np.int32), fixed_rows=fixed,
            fixed_count=len(plan.filled_rows), queue=queue, queue_room=QUEUE_ROOM, touched=touched, joins=joins,
            join_room=JOIN_ROOM, ctas=ctas,
        )  # fmt: skip
        self._cta: Cta | None = None
        self._bounds = (-1, -1)
        self._width = NARROWEST
        """How many fragments are handed in together at most; more where all of them had their turns."""

    def _set(self, **fields: Any) -> None:
        for name, value in fields.items():
            if isinstance(value, np.ndarray):
                self._kept.append(value)
                value = value.ctypes.data
            self._context[Context[name.upper()]] = value

    def _note_entries(self) -> None:
        self.enters[:] = [any(e.is_native and not e.piece.synchronises for e in entries) for entries in self._pieces]
        self.begins[:] = [bool(entries) and entries[0].is_native and entries[0].begins for entries in self._pieces]

    def _visit(self, cta: Cta) -> None:
        """Make a CTA's shared memory that of the context."""
        shared = cta.shared
        if cta is not self._cta:
            self._cta = cta
            self._context[0:4] = (*shared.addresses, shared.size, cta.window)
            self._bounds = (-1, -1)
        bounds = shared.mbarrier_bounds
        if bounds != self._bounds:
            self._bounds = bounds
            self._context[4:6] = bounds

    # ---- one fragment, for a part of its turn ----

    def run(self, f: Fragment, block: int, budget: int, stop: Stop | None = None) -> tuple[int, int, int]:
        """Run a block, and those after it for as long as they are native; at most ``budget`` in all.

        stop: how native turns have ended in the middle of the block. Returns the last block that was run, what its
        block function would have returned, and how many were run before it, which are counted.
        """
        ran, number = 0, stop.piece if stop is not None else 0
        failed = stop is not None and stop.answer == Answer.FAILED
        pieces = self._pieces[block]
        if not pieces or (failed and number == 0 and not pieces[0].piece.synchronises):
            return block, self._functions[block](f, f.registers), 0
        while True:
            entry = self._pieces[block][number]
            piece = entry.piece
            if entry.is_native and not failed and not piece.synchronises and (price := self._hand_in(f, piece.needs)):
                entry.weight -= price
                status, block, following, further = self._run(f, entry, budget - ran)
                ran += further
                if status == Answer.STOPPED:
                    return block, following, ran
                if status == Answer.DIVERGES:
                    return block, self.diverge(f, block), ran
                number = following
                piece = self._pieces[block][number].piece
                if status == Answer.FAILED and number == 0 and not piece.synchronises:
                    return block, self._functions[block](f, f.registers), ran
            if piece.function is None:
                self._plan.make_functions(block)
                assert piece.function is not None
            following = piece.function(f, f.registers)
            number, failed = number + 1, False
            if number == len(self._pieces[block]) or following == BLOCKED:
                return block, following, ran

    def diverge(self, f: Fragment, block: int) -> int:
        """Split a fragment at the branch that ends a block; what its function would have returned."""
        branch = self._plan.branches[block]
        return diverge(f, f.registers[branch.predicate], branch.yes, branch.no, self._plan.joins[block])

    def _hand_in(self, f: Fragment, rows: list[tuple[int, int, int]]) -> int:
        """Give the interpreter these registers, and whose they are. Returns what that costs; 0: there is no way to."""
        file: _File | None = f.native
        price, handed = PRICE, 0
        if file is None:
            number = self._files.take()
            if number < 0:
                return 0
            file = f.native = _File(self, self._files, number)
            price += FILE_PRICE
            for (row, kind), value in zip(self._plan.filled_rows, self._plan.filled(f), strict=True):
                (file.wide if kind == WIDE else file.narrow)[row] = value
                file.agree[row] = not isinstance(value, np.ndarray)
        registers, known, stamps = f.registers, file.known, file.stamps
        for slot, row, kind in rows:
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
        return price + handed // ROWS_A_UNIT

    def _run(self, f: Fragment, entry: _Entry, budget: int) -> tuple[int, int, int, int]:
        """Enter native code: why it stopped, at which block, what follows, and how many blocks it has run before."""
        self._call(f, entry.piece, budget, 0)
        said = self._take_over(f)
        entry.entered += 1
        entry.weight += said[Said.WEIGHT]
        if entry.entered == TRIALS:
            self._judge(entry)
        return said[Said.STATUS], said[Said.BLOCK], said[Said.FOLLOWING], said[Said.RAN]

    def pass_window(self, f: Fragment, blocks: int) -> tuple[int, int] | None:
        """Run so many blocks, all of them native; None, and nothing is done, if that is not to be, or if the fragment
        comes round with the same registers and nothing changed.

        Returns the block that follows, and how many loads the last one has made, at most four if nothing was stored.
        """
        pieces = self._pieces[f.block]
        if not pieces or not pieces[0].is_native or pieces[0].piece.synchronises:
            return None
        piece = pieces[0].piece
        if not self._hand_in(f, piece.needs) or self._call(f, piece, blocks, blocks) == Answer.REFUSED:
            return None
        said = self._take_over(f)
        return said[Said.FOLLOWING], said[Said.LOADS]

    def _call(self, f: Fragment, piece: Piece, budget: int, window: int) -> int:
        self._visit(f.cta)
        table, number = self._table, f.native.number
        base = _FIELDS * number
        table[base + Its.MASK] = f.mask
        table[base + Its.JOIN_BLOCK] = NO_BLOCK if f.join_block is None else f.join_block
        status: int = self._library.run(self._context_address, number, piece.start, budget, window)
        return status

    def _take_over(self, f: Fragment) -> list[int]:
        """Take the registers that a call has changed and that are live; what else it has said."""
        out, file = self._out, f.native
        said: list[int] = out[:FIRST_ROW].tolist()
        if said[Said.CHANGES]:
            self._grid.wakeups.changes += said[Said.CHANGES]
        self._take_rows(f, file, said)
        return said

    def _take_rows(self, f: Fragment, file: _File, said: list[int]) -> None:
        out, rows = self._out, self._rows
        registers, known, slot_of_row = f.registers, file.known, self._plan.slot_of_row
        if scalars := said[Said.SCALARS]:
            flat = iter(self._out_unsigned[FIRST_ROW : FIRST_ROW + 2 * scalars].tolist())
            for packed, value in zip(flat, flat, strict=True):
                row = packed & 0xFFFF
                registers[slot_of_row[row]] = known[row] = value != 0 if packed >> 16 == PREDICATE else value
        for count, first, values in (
            (said[Said.ROWS32], FIRST_ROW + 2 * rows, self._out32),
            (said[Said.ROWS64], FIRST_ROW + 3 * rows, self._out64),
            (said[Said.PREDICATES], FIRST_ROW + 4 * rows, self._out_predicates),
        ):
            if count:
                for row, value in zip(out[first : first + count].tolist(), values[:count].copy(), strict=True):
                    registers[slot_of_row[row]] = known[row] = value

    def _judge(self, entry: _Entry) -> None:
        """Leave a place to Python that native code does too little from."""
        if entry.weight < 0:
            entry.is_native = False
            self._note_entries()
        entry.entered = entry.weight = 0

    # ---- turns of many fragments ----

    def take_turns(self, ready: deque[Fragment], turns: int, blocks: int, window: int, slice: int) -> Stop | None:
        """Give fragments their turns, first come, first served, so many at most, until one of them needs Python; None,
        and nothing is done, if the first one does.

        blocks, window, slice: of a turn, of the window after it in which it is watched whether a loop only polls (0: it
        is Python's), and after how many blocks without a wait a fragment is put aside.
        """
        first = ready[0]
        if first.block < 0 or not self.begins[first.block]:
            return None
        now = _Round()
        given = 0
        for f in islice(ready, self._width):
            if not self._give(f, now):
                break
            self._queue[given] = f.native.number
            given += 1
        if not given:
            return None
        is_open = given == len(ready)
        c = self._context_view
        c[Context.HEAD], c[Context.TAIL], c[Context.CLOSED_AT] = 0, given, -1 if is_open else given
        c[Context.TOUCHED_COUNT] = c[Context.CHANGES] = c[Context.WEIGHT] = 0
        c[Context.JOIN_COUNT] = len(now.points)
        c[Context.TURN_BLOCKS], c[Context.WINDOW_BLOCKS], c[Context.SLICE] = blocks, window, slice
        for _ in range(given):
            ready.popleft()
        entry = self._pieces[first.block][0]
        taken = 0
        while True:
            said = self._answer(turns - taken)
            taken += said[Said.TURNS]
            if said[Said.STATUS] != Answer.CANNOT_SPLIT or not self._make_splittable(said[Said.CURRENT], now):
                break
            c[Context.HEAD] -= 1
            self._queue[c[Context.HEAD]] = said[Said.CURRENT]
            taken -= 1
        if said[Said.STATUS] == Answer.NOTHING_LEFT and not is_open:
            self._width = min(4 * self._width, WIDEST)
        else:
            self._width = max(self._width // 2, 2 * c[Context.HEAD], NARROWEST)
        before = self._grid.wakeups.changes + said[Said.CHANGES_BEFORE]
        self._grid.wakeups.changes += c[Context.CHANGES]
        touched = self._library.touch_living(self._context_address, said[Said.CURRENT], len(now.ctas))
        self._take_back(ready, now, given if not is_open else -1, self._touched[:touched].tolist())
        entry.entered += 1
        entry.weight += c[Context.WEIGHT] - now.price
        entry.rounds += 1
        entry.turns += taken
        if entry.rounds == TRIALS:
            entry.begins = entry.turns >= FEWEST_TURNS * TRIALS
            self._note_entries()
            entry.rounds = entry.turns = 0
        if entry.entered == TRIALS:
            self._judge(entry)
        current = now.objects.get(said[Said.CURRENT])
        if current is None:
            return Stop(taken)
        ran = self._table[_FIELDS * current.native.number + Its.RAN]
        return Stop(taken, Answer(said[Said.STATUS]), current, said[Said.FOLLOWING], ran, before)

    def _answer(self, turns: int) -> list[int]:
        """Enter native code: what it says."""
        self._cta = None
        self._library.run_turns(self._context_address, turns)
        said: list[int] = self._out[:FIRST_ROW].tolist()
        return said

    def _give(self, f: Fragment, now: _Round) -> bool:
        """Hand a fragment in that is ready; False: Python must run it."""
        block = f.block
        if block < 0 or not self.begins[block] or block == f.join_block:
            return False
        first = self._pieces[block][0]
        cta = now.ctas.get(f.cta)
        if cta is None:
            if len(now.ctas) == CTA_ROOM:
                return False
            cta = self._give_cta(f.cta, now)
        join, join_block = self._give_joins(f, now) if f.joins else (-1, NO_BLOCK)
        if join >= 0:
            if not self._complete(f, self._plan.live_rows[block], now):
                return False
        elif (f.native is None or not f.native.is_fresh) and not self._give_rows(f, first.piece.needs, now):
            return False
        self._give_state(f, cta, join, join_block, State.READY, now)
        return True

    def _give_rows(self, f: Fragment, rows: list[tuple[int, int, int]], now: _Round) -> bool:
        named: Any = [item for item in f.tokens.items() if _is_named(item[0])]
        price = self._hand_in(f, rows)
        if not price or len(named) > 1:
            return False
        now.price += price - PRICE
        f.native.is_fresh = True
        number = f.native.number
        barrier, generation = (named[0][0].number, named[0][1]) if named else (-1, 0)
        base = _FIELDS * number
        self._table[base + Its.BARRIER : base + _FIELDS] = array("q", (barrier, generation, -1, 0, 1, number, 0, 0))
        self._new_stamp(base)
        return True

    def _new_stamp(self, base: int) -> None:
        self._context_view[Context.STAMP] += 1
        self._table[base + Its.STAMP] = self._context_view[Context.STAMP]

    def _give_state(self, f: Fragment, cta: int, join: int, join_block: int, state: int, now: _Round) -> None:
        number, block = f.native.number, f.block
        base = _FIELDS * number
        self._table[base + Its.MASK : base + Its.BARRIER] = array(
            "q", (f.mask, f.warp.alive, cta, block, -1, 0, block, join, join_block, f.streak, state)
        )
        now.objects[number] = f

    def _give_cta(self, cta: Cta, now: _Round) -> int:
        number = now.ctas[cta] = len(now.ctas)
        shared, base = cta.shared, CTA_FIELDS * number
        about = (*shared.addresses, shared.size, cta.window, *shared.mbarrier_bounds, cta.alive, cta.threads)
        used = self._plan.barriers
        is_quiet = not cta.cluster.barrier.arrived and not any(b.arrived for b in cta.named if b.number not in used)
        self._ctas[base : base + CtaState.BARRIERS] = array("q", (*about, is_quiet))
        for n in self._plan.barriers:
            barrier, at = cta.named[n], base + CtaState.BARRIERS + n * len(Barrier)
            counts = (barrier.arrived, barrier.needed, barrier.everybody, barrier.generation, bool(barrier.waiters))
            self._ctas[at : at + len(Barrier)] = array("q", (*counts, -1, -1))
        return number

    def _give_joins(self, f: Fragment, now: _Round) -> tuple[int, int]:
        """The number of the innermost join of a fragment, and its block."""
        join, block = -1, NO_BLOCK
        is_plain = _is_plain(f)
        for depth, point in enumerate(f.joins):
            number = now.numbers.get(point) if is_plain else None
            if number is None and is_plain:
                number = self._give_join(point, f.joins[: depth + 1], join, block, now)
            if number is None:
                now.outers += 1
                number = -1 - now.outers
                now.joins[number] = f.joins[: depth + 1]
            join, block = number, point.block
        return join, block

    def _give_join(
        self, point: JoinPoint, joins: list[JoinPoint], parent: int, parent_block: int, now: _Round
    ) -> int | None:
        """Hand a join in, and who has arrived there; None if Python must make one of them."""
        if not self._plan.has_all_rows[point.block] or len(now.points) >= JOIN_ROOM // 2:
            return None
        rows = self._plan.live_rows[point.block]
        for f in point.arrived:
            if not _is_plain(f) or not self._complete(f, rows, now):
                return None
        number = now.numbers[point] = len(now.points)
        now.points.append(point)
        now.joins[number] = joins
        numbers, arrived = [f.native.number for f in point.arrived], 0
        for f, following in zip(point.arrived, [*numbers[1:], -1], strict=False):
            self._give_state(f, now.ctas[f.cta], number, point.block, State.ARRIVED, now)
            self._table[_FIELDS * f.native.number + Its.NEXT] = following
            arrived |= f.mask
        base = len(JoinField) * number
        first, last = (numbers[0], numbers[-1]) if numbers else (-1, -1)
        about = (point.block, point.mask, arrived, first, last, len(numbers), parent, parent_block)
        self._joins[base : base + len(JoinField)] = array("q", about)
        return number

    def _complete(self, f: Fragment, rows: list[tuple[int, int, int]], now: _Round) -> bool:
        """Hand in all that is live."""
        if f.native is not None and f.native.is_fresh and self._table[_FIELDS * f.native.number + Its.IS_COMPLETE]:
            return True
        if f.native is not None:
            self.settle(f)
        if not self._give_rows(f, rows, now):
            return False
        self._table[_FIELDS * f.native.number + Its.IS_COMPLETE] = 1
        return True

    def _make_splittable(self, number: int, now: _Round) -> bool:
        """Give native code what it lacks to split a fragment."""
        base = _FIELDS * number
        if not self._table[base + Its.IS_COMPLETE]:
            f = now.objects[number]
            f.native.is_ahead = True
            self.settle(f)
            if not self._hand_in(f, self._plan.live_rows[self._table[base + Its.LOCATION]]):
                return False
            f.native.is_fresh = True
            self._new_stamp(base)
            self._table[base + Its.IS_COMPLETE] = 1
        else:
            return self._context_view[Context.FREE_COUNT] < 4 and self._files.grow()
        return True

    def settle(self, f: Fragment) -> None:
        """Bring a fragment's registers up to date, and have them handed in again, as Python is about to run it."""
        file: _File | None = f.native
        if file is None:
            return
        file.is_fresh = False
        if file.is_ahead:
            file.is_ahead = False
            location = self._table[_FIELDS * file.number + Its.LOCATION]
            self._library.settle(self._context_address, file.number, location)
            self._take_rows(f, file, self._out[:FIRST_ROW].tolist())

    def _take_back(self, ready: deque[Fragment], now: _Round, closed_at: int, touched: list[int]) -> None:
        """Make the machine's objects what the interpreter has made of them."""
        c, table = self._context_view, self._table
        made, gone, left, changed = [], [], [], []
        for number in touched:
            base = _FIELDS * number
            table[base + Its.IS_TOUCHED] = 0
            its = table[base : base + _FIELDS].tolist()
            f = now.objects.get(number)
            if f is None:
                made.append((its[Its.BORN], number, its))
            elif its[Its.STATE] == State.GONE:
                gone.append(f)
            elif its[Its.STATE] == State.LEFT:
                left.append(f)
            else:
                changed.append((f, its))
        for _, number, its in sorted(made):
            f = self._make(number, its, now)
            if its[Its.STATE] == State.LEFT:
                left.append(f)
            else:
                changed.append((f, its))
        for f in left:
            lifetime.depart(f)
            f.native = None
        for f in gone:
            f.warp.fragments.remove(f)
            del now.objects[f.native.number]
            f.native = None
        for f, its in changed:
            self._update(f, its, now)
        for number in range(c[Context.JOIN_COUNT]):
            first = self._joins[len(JoinField) * number + JoinField.FIRST]
            if first >= 0 or number < len(now.points):
                self._joins_of(number, now)[-1].arrived = self._list_from(first, now)
        others = {}
        for cta, number in now.ctas.items():
            for n in self._plan.barriers:
                others[number * NAMED_BARRIERS + n] = self._take_barrier(cta, number, n, now)
        queue = self._queue[c[Context.HEAD] : c[Context.TAIL]].tolist()
        split_at = max(closed_at - c[Context.HEAD], 0) if closed_at >= 0 else 0
        ready.extendleft(now.objects[number] for number in reversed(queue[:split_at]))
        for number in queue[split_at:]:
            if number >= 0:
                ready.append(now.objects[number])
            else:
                self._grid.wakeups.resume_all(others[-1 - number])

    def _make(self, number: int, its: list[int], now: _Round) -> Fragment:
        """The object of a fragment that has come into being."""
        origin = now.objects[its[Its.ORIGIN]]
        joins = self._joins_of(its[Its.JOIN], now)
        f = Fragment(origin.warp, its[Its.MASK], list(origin.registers), its[Its.BLOCK], joins)
        f.tokens, f.observed = dict(origin.tokens), dict(origin.observed)
        f.pending_loads, f.pending_stores = list(origin.pending_loads), list(origin.pending_stores)
        f.native = _File(self, self._files, number)
        table, base = self._table, _FIELDS * number
        table[base + Its.HAS_OBJECT], table[base + Its.ORIGIN] = 1, number
        now.objects[number] = f
        f.warp.fragments.append(f)
        return f

    def _update(self, f: Fragment, its: list[int], now: _Round) -> None:
        f.block, f.streak = its[Its.BLOCK], its[Its.STREAK]
        f.native.is_fresh = f.native.is_ahead = True
        f.joins = self._joins_of(its[Its.JOIN], now)
        f.join_block = f.joins[-1].block if f.joins else None
        if f.tokens:
            f.tokens = {b: generation for b, generation in f.tokens.items() if not _is_named(b)}
        if its[Its.BARRIER] >= 0:
            f.tokens[f.cta.named[its[Its.BARRIER]]] = its[Its.GENERATION]

    def _joins_of(self, number: int, now: _Round) -> list[JoinPoint]:
        found = now.joins.get(number)
        if found is None:
            base = len(JoinField) * number
            block, mask, *_, parent, _ = self._joins[base : base + len(JoinField)].tolist()
            point = JoinPoint(block, mask, list(self._grid.code.initial))
            found = now.joins[number] = [*self._joins_of(parent, now), point]
        return found

    def _list_from(self, number: int, now: _Round) -> list[Fragment]:
        """Fragments that wait one behind the other."""
        found = []
        while number >= 0:
            found.append(now.objects[number])
            number = self._table[_FIELDS * number + Its.NEXT]
        return found

    def _take_barrier(self, cta: Cta, number: int, n: int, now: _Round) -> list[Fragment]:
        """Make a barrier what it is; returns those who waited there before and are let go."""
        base = CTA_FIELDS * number + CtaState.BARRIERS + n * len(Barrier)
        barrier = cta.named[n]
        arrived, needed, everybody, generation, others, first, _ = self._ctas[base : base + len(Barrier)].tolist()
        barrier.arrived, barrier.needed, barrier.everybody = arrived, needed, bool(everybody)
        barrier.generation = generation
        let_go: list[Fragment] = []
        if not others:
            let_go, barrier.waiters = barrier.waiters, []
        code = self._grid.code
        for f in self._list_from(first, now):
            f.waiting = Waiting(barrier, "waits", code.sites[code.first[f.block]])
            barrier.waiters.append(f)
        return let_go


def _is_named(barrier: Any) -> bool:
    return getattr(barrier, "number", -1) >= 0


def _is_plain(f: Fragment) -> bool:
    """Whether it is only registers that it brings to a join."""
    return not (f.tokens or f.observed or f.pending_loads or f.pending_stores)
