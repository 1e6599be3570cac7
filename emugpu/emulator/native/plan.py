"""Decides which parts of a kernel run natively, as micro-operations, when a launch first needs it.

A block is one native piece if all its instructions have micro-operations. In other blocks every part that is long
enough is a native piece, and Python functions run the rest; schedules and counters still see one block. A native piece
may access only ordinary registers: none that nothing writes, and none that an asynchronous operation reads. It may
begin with accumulators of wgmma, which Python puts into the registers before.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emugpu.emulator.instructions.table import Effect, Emitted, Unsupported, find
from emugpu.emulator.instructions.tensor_memory import early_read, layout_of
from emugpu.emulator.machine.code import EXIT, BlockFunction
from emugpu.emulator.machine.slots import set_of
from emugpu.emulator.native.calls import Call
from emugpu.emulator.native.operations import WAIT_FOR_LOADS, Control
from emugpu.emulator.native.records import NO_GUARD, RECORD, Encoder, Record, synchronises
from emugpu.emulator.native.rows import ROW_BYTES, WIDE, Rows
from emugpu.emulator.ptx.ast import Instruction
from emugpu.emulator.translate.cfg import (
    BRANCHES,
    BasicBlock,
    accumulators,
    destinations,
    held_operands,
    sources,
)

SHORTEST = 12
"""What the shortest native piece in a block that Python runs otherwise costs Python, in plain instructions: cheaper
pieces are faster there."""
ACCESS = 4
"""What an access to memory costs Python, in plain instructions."""
CTA_INDEX = [f"f.cta.index[{axis}]" for axis in range(3)]
OF_ALL_CTAS = re.compile(r"f\.cta\.(rank|window|warps|cluster\.ctas)\b")
"""What all CTAs have in common that are alone in their clusters."""
MOST = 0xFFFE
"""Most rows and most locations, because their numbers have 16 bits."""


@dataclass
class Piece:
    """A part of a block: instructions ``[first, last)``. ``start`` is its first micro-operation, or -1 if Python runs
    it.

    ``needs``: the registers that this piece, or native code after it, may read. ``function``: the part in Python, made
    at its first call. ``synchronises``: it is a barrier, which is native if fragments get whole
    turns. ``publishes``: it reads accumulators of wgmma, which Python puts into the registers first, so native code
    does not continue to it by itself.
    """

    first: int
    last: int
    start: int = -1
    needs: int = 0
    reads: set[int] = field(default_factory=set)
    writes: set[int] = field(default_factory=set)
    function: BlockFunction | None = None
    synchronises: bool = False
    publishes: bool = False

    @property
    def is_entered(self) -> bool:
        """Returns whether native code may begin with it, for one fragment."""
        return self.start >= 0 and not self.synchronises

    @property
    def follows(self) -> bool:
        """Returns whether native code may continue to it."""
        return self.start >= 0 and not self.publishes


@dataclass(frozen=True)
class Branch:
    """The end of a block at which lanes may diverge."""

    predicate: int
    yes: int
    no: int


@dataclass
class NativePlan:
    """All data of a kernel that the engine needs."""

    pieces: list[list[Piece]]
    """The pieces of each block; none if Python runs the whole block."""
    branches: dict[int, Branch]
    joins: list[int]
    operations: NDArray[Any]
    entries: NDArray[np.int32]
    locations: NDArray[np.int32]
    location_slots: NDArray[np.int32]
    saved_slots: NDArray[np.int32]
    rows: int
    kinds: list[int]
    """The kind of each row."""
    literal_rows: list[int]
    literals: NDArray[np.uint8]
    """The contents of the literals' rows, [literals, bytes of a row]."""
    filled: Callable[[Any], tuple[Any, ...]]
    """Returns the values of a fragment's special registers and variables' addresses."""
    filled_rows: list[tuple[int, int]]
    """The rows of these values, each with its kind."""
    cta_rows: list[int] | None
    """The rows of %ctaid.x, .y and .z, with their kinds in the upper 16 bits, or -1. None if a register is live where a
    warp starts, or if another of these values depends on the CTA.
    """
    live: list[int]
    """The registers that native code accesses and that are live, at each location."""
    accesses: dict[int, tuple[str, str, int, int]]
    """The verb, the space, the bytes of an item, and the items, of each instruction that accesses memory natively."""
    barriers: list[int]
    """The numbers of the barriers that run natively."""
    stores: dict[int, tuple[str, int, bool, int]]
    """The layouts of the stores to tensor memory, by instruction."""
    tracks_memory: bool
    """Whether native code must know the local memory of a fragment, or what is pending of its tensor memory."""
    calls: list[Call]
    """The instructions that Python executes in the middle of native code."""
    early_reads: list[tuple[int, str]]
    """The reads of registers before the wait for their load: the instruction, and the message of its finding."""
    has_all_rows: list[bool]
    """Whether all registers that are live at the start of a block have rows."""
    make_functions: Callable[[int], None]
    """Makes the Python functions of a block's pieces."""
    workspaces: list[Any] = field(default_factory=list)
    """The memory of ended launches."""


class Planner:
    """Makes the plan of one kernel."""

    def __init__(
        self,
        instructions: Sequence[Instruction],
        emitted: Sequence[Emitted | Unsupported],
        blocks: Sequence[BasicBlock],
        starting_at: dict[int, int],
        unloaded_in: Sequence[set[int]],
        dtypes: Sequence[Any],
        operands: Any,
        write_pieces: Callable[[int, Sequence[BasicBlock]], list[BlockFunction]],
        quiet: bool,
        early: bool,
    ) -> None:
        """Prepares a plan. ``quiet`` means that no sink will be attached, ``early`` that loads of tensor memory take
        their values at once under the schedule.
        """
        self._instructions = instructions
        self._emitted = emitted
        self._blocks = blocks
        self._starting_at = starting_at
        self._unloaded_in = unloaded_in
        self._operands = operands
        self._write_pieces = write_pieces
        held = {r.slot for i in instructions for r in held_operands(i)}
        self._accumulators = {r.slot for i in instructions for r in accumulators(i)}
        written = {r.slot for i in instructions for r in destinations(i)}
        read = {r.slot for i in instructions for r in sources(i)}
        self._excluded = frozenset(held | (read - written))
        self._rows = Rows(dtypes, operands, self._excluded)
        self._encoder = Encoder(instructions, self._rows, quiet, early)
        self._records: list[Record] = []
        self._early: list[tuple[int, str]] = []
        self._locations: list[set[int]] = []
        self._saved: list[int] = []

    def plan(self) -> NativePlan | None:
        """Returns the plan, or None if the kernel is too large or nothing in it can run natively."""
        blocks = self._blocks
        micro = [self._micro_of_block(block) for block in blocks]
        pieces = [self._pieces(block, found) for block, found in zip(blocks, micro, strict=True)]
        if not any(p.start >= 0 for several in pieces for p in several):
            return None
        self._locations = [block.live_in for block in blocks]
        self._locations += [block.live_out | self._guard_of_end(block) for block in blocks]
        entries = np.full(len(blocks), -1, np.int32)
        branches: dict[int, Branch] = {}
        for block, several, found in zip(blocks, pieces, micro, strict=True):
            live = self._live_within(block, several)
            for number, piece in enumerate(several):
                if piece.start < 0:
                    continue
                piece.start = len(self._records)
                if number == 0 and piece.follows:
                    entries[block.index] = piece.start
                self._encode(block, several, number, found, live, branches)
        self._find_needs(pieces)
        if len(self._rows.kinds) > MOST or len(self._locations) > MOST:
            return None
        return self._finished(pieces, branches, entries)

    # ---- which instructions, and which pieces ----

    def _micro_of_block(self, block: BasicBlock) -> dict[int, list[Record] | None]:
        """Returns the micro-operations of each instruction except branches, or None if Python must run it."""
        unloaded = set(self._unloaded_in[block.index])
        """Registers of loads that may be pending since an earlier block."""
        loading: dict[int, Instruction] = {}
        """Registers of loads of this block that are pending, each with its load."""
        found: dict[int, list[Record] | None] = {}
        for index in range(block.first, block.last):
            i = self._instructions[index]
            emitted = self._emitted[index]
            poisons = isinstance(emitted, Effect) and bool(emitted.poisons)
            if i.opcode not in BRANCHES:
                found[index] = self._encoder.records_of(i, emitted)
            records = found.get(index)
            native = records is not None and not synchronises(emitted)
            written = {r.slot for r in destinations(i)}
            touched = unloaded & (written | {r.slot for r in sources(i)})
            waits = isinstance(emitted, Effect) and any(m.name == WAIT_FOR_LOADS for m in emitted.micro)
            if (isinstance(emitted, Effect) and emitted.stores) or ((poisons or loading or touched) and not native):
                return dict.fromkeys(range(block.first, block.last))
            if records is not None:
                ready: list[Record] = [{"op": Control.LOADED}] if touched else []
                found[index] = [*ready, *self._early_reads(i, loading), *records]
            unloaded -= touched
            for slot in written & loading.keys():
                del loading[slot]
            if poisons:
                loading |= dict.fromkeys(written, i)
            if waits:
                loading.clear()
                unloaded.clear()
        return dict.fromkeys(range(block.first, block.last)) if loading else found

    def _early_reads(self, i: Instruction, loading: dict[int, Instruction]) -> list[Record]:
        """Returns records that count the reads of registers of pending loads, which end these loads."""
        records: list[Record] = []
        for r in sources(i):
            if r.slot not in loading:
                continue
            load = loading[r.slot]
            for slot in [slot for slot, its in loading.items() if its is load]:
                del loading[slot]
            records.append({"op": Control.EARLY_READ, "imm": len(self._early)})
            self._early.append((i.index, early_read(r.name, load.line)))
        return records

    def _guard_of_end(self, block: BasicBlock) -> set[int]:
        """Returns the predicate that decides where a block continues."""
        last = block.skips or self._instructions[block.last - 1]
        ends = block.skips is not None or last.opcode in BRANCHES
        return {last.guard.slot} if ends and last.guard is not None else set()

    def _end_is_native(self, block: BasicBlock) -> bool:
        last = block.skips or self._instructions[block.last - 1]
        if block.skips is None and last.opcode not in BRANCHES:
            return True
        plain = block.skips is not None or not isinstance(self._emitted[last.index], Unsupported)
        return last.opcode != "brx" and plain and not self._guard_of_end(block) & self._excluded

    def _pieces(self, block: BasicBlock, found: dict[int, list[Record] | None]) -> list[Piece]:
        """Divides a block into pieces. Native ones have a start of 0; the list is empty if there are none."""
        end_is_native = self._end_is_native(block)
        pieces: list[Piece] = []
        whole = end_is_native and all(records is not None for records in found.values())
        for index in range(block.first, block.last):
            if synchronises(self._emitted[index]) and found[index] is not None:
                pieces.append(Piece(index, index + 1, 0, synchronises=True))
                continue
            # A branch belongs to the instructions before it.
            native = found[index] is not None if index in found else bool(pieces) and pieces[-1].start == 0
            native = whole or (native and (end_is_native or index in found))
            if pieces and (pieces[-1].start == 0) == native and not pieces[-1].synchronises:
                pieces[-1].last = index + 1
            else:
                pieces.append(Piece(index, index + 1, 0 if native else -1))
        merged: list[Piece] = []
        for piece in pieces:
            if self._cost(piece) < SHORTEST and not whole and not piece.synchronises:
                piece.start = -1
            if merged and merged[-1].start == -1 and piece.start == -1:
                merged[-1].last = piece.last
            else:
                merged.append(piece)
        if block.skips is not None and end_is_native:
            merged = [Piece(block.first, block.last, 0)]
        return [self._described(p) for p in merged] if any(p.start == 0 for p in merged) else []

    def _cost(self, piece: Piece) -> int:
        """Returns what a piece costs Python, in plain instructions."""
        accesses = sum(n in self._encoder.accesses for n in range(piece.first, piece.last))
        return piece.last - piece.first + (ACCESS - 1) * accesses

    def _described(self, piece: Piece) -> Piece:
        for i in self._instructions[piece.first : piece.last]:
            piece.reads |= {r.slot for r in sources(i)} - piece.writes
            piece.writes |= {r.slot for r in destinations(i)}
        piece.publishes = not piece.reads.isdisjoint(self._accumulators)
        return piece

    def _live_within(self, block: BasicBlock, pieces: Sequence[Piece]) -> list[set[int]]:
        """Returns the live registers at the start of each piece and at the end of the block."""
        live = [block.live_out | self._guard_of_end(block)]
        for piece in reversed(pieces):
            live.append(piece.reads | (live[-1] - piece.writes))
        return live[::-1]

    # ---- micro-operations ----

    def _encode(
        self,
        block: BasicBlock,
        pieces: Sequence[Piece],
        number: int,
        found: dict[int, list[Record] | None],
        live: Sequence[set[int]],
        branches: dict[int, Branch],
    ) -> None:
        piece = pieces[number]
        saved = sorted(piece.writes & live[number] & self._rows.registers)
        here = self._location(live[number]) if number else block.index
        begin = {"op": Control.BEGIN, "d": len(saved), "imm": len(self._saved), "e": here}
        self._records.append({**begin, "yes": block.index, "no": number})
        self._saved += saved
        for index in range(piece.first, piece.last):
            self._records += found.get(index) or ()  # branches have no micro-operations
        if number + 1 < len(pieces):
            if pieces[number + 1].follows:
                return
            after = self._location(live[number + 1])
            self._records.append({"op": Control.LEAVE, "e": after, "yes": block.index, "no": number + 1})
            return
        self._records.append(self._end(block, branches))

    def _location(self, live: set[int]) -> int:
        self._locations.append(live)
        return len(self._locations) - 1

    def _end(self, block: BasicBlock, branches: dict[int, Branch]) -> Record:
        """Returns the record of the block's end, which says where it continues."""
        here = len(self._blocks) + block.index
        last = block.skips or self._instructions[block.last - 1]
        if block.skips is not None:
            yes, no = block.index + 1, self._starting_at.get(last.index + 1, EXIT)
        elif last.opcode not in BRANCHES:
            return {"op": Control.GO, "yes": block.successors[0], "e": here}
        else:
            yes = EXIT if last.opcode in ("ret", "exit") else self._starting_at.get(last.targets[0], EXIT)
            no = block.index + 1 if block.index + 1 in block.successors else EXIT
        if last.guard is None:
            return {"op": Control.GO, "yes": yes, "e": here}
        if last.guard_negated:
            yes, no = no, yes
        branches[block.index] = Branch(last.guard.slot, yes, no)
        predicate, _ = self._rows.accessible(last.guard.slot)
        return {"op": Control.BRANCH, "a": predicate, "yes": yes, "no": no, "e": here}

    # ---- all together ----

    def _find_needs(self, pieces: Sequence[Sequence[Piece]]) -> None:
        """Computes liveness among the native pieces alone: the registers that Python must pass to the interpreter."""
        needs: dict[int, set[int]] = {}
        for block, several in zip(self._blocks, pieces, strict=True):
            for piece in several:
                if piece is several[-1]:
                    piece.reads |= self._guard_of_end(block) - piece.writes
        changed = True
        while changed:
            changed = False
            for block, several in zip(reversed(self._blocks), reversed(pieces), strict=True):
                if not several:
                    continue
                following = [pieces[s][0] for s in block.successors if s != EXIT and pieces[s]]
                after = set().union(*(needs.get(p.start, set()) for p in following if p.follows))
                for piece in reversed(several):
                    if piece.start >= 0:
                        found = piece.reads | (after - piece.writes)
                        if found != needs.get(piece.start):
                            needs[piece.start] = found
                            changed = True
                    after = needs[piece.start] if piece.follows else set()
        for several in pieces:
            for piece in several:
                if piece.start >= 0:
                    self._rows.registers |= needs[piece.start]
                    piece.needs = set_of(needs[piece.start])

    def _finished(
        self, pieces: list[list[Piece]], branches: dict[int, Branch], entries: NDArray[np.int32]
    ) -> NativePlan:
        rows = self._rows
        operations = np.zeros(len(self._records), RECORD)
        for name in RECORD.names or ():
            default = NO_GUARD if name == "guard" else 0
            operations[name] = [record.get(name, default) for record in self._records]
        live = [sorted(at & rows.registers) for at in self._locations]
        counts = np.array([len(at) for at in live], np.int32)
        locations = np.stack([np.cumsum(counts, dtype=np.int32) - counts, counts], axis=1).astype(np.int32)
        slots = [row | rows.kinds[row] << 16 for at in live for row in at]
        count = max(64, -(-len(rows.kinds) // 64) * 64)
        literals = np.zeros((len(rows.literals), ROW_BYTES), np.uint8)
        for of_row, (row, value) in zip(literals, rows.literals, strict=True):
            of_row.view(np.uint64 if rows.kinds[row] == WIDE else np.uint32)[:] = value
        text = f"lambda f: ({''.join(f'{expression}, ' for expression, _ in rows.expressions)})"
        filled = eval(text, self._operands.names)  # generated code uses the same expressions
        return NativePlan(
            pieces=pieces,
            branches=branches,
            joins=[block.join for block in self._blocks],
            operations=operations,
            entries=entries,
            locations=locations,
            location_slots=np.array(slots or [0], np.int32),
            saved_slots=np.array(self._saved or [0], np.int32),
            rows=count,
            kinds=rows.kinds,
            literal_rows=[row for row, _ in rows.literals],
            literals=literals,
            filled=filled,
            filled_rows=[(row, rows.kinds[row]) for row in rows.expressions.values()],
            cta_rows=None if self._blocks[0].live_in else _cta_rows(rows),
            live=[set_of(at) for at in live],
            accesses=self._encoder.accesses,
            barriers=sorted(self._encoder.barriers),
            stores={i.index: layout_of(i) for i in self._instructions if find(i).name == "tcgen05.st"},
            tracks_memory=any(i.opcode == "tcgen05" for i in self._instructions)
            or any(space in ("local", "generic") for _, space, _, _ in self._encoder.accesses.values()),
            calls=self._encoder.calls,
            early_reads=self._early,
            has_all_rows=[block.live_in <= rows.registers for block in self._blocks],
            make_functions=lambda block: self._make_functions(block, pieces[block]),
        )

    def _make_functions(self, number: int, pieces: Sequence[Piece]) -> None:
        block = self._blocks[number]
        live = self._live_within(block, pieces)
        parts = []
        for piece, after in zip(pieces, live[1:], strict=True):
            part = BasicBlock(block.index, piece.first, piece.last, block.skips, block.successors, block.join)
            part.reads, part.writes = set(piece.reads), set(piece.writes)
            part.loads = set(piece.reads)
            part.live_out = after if piece is not pieces[-1] else block.live_out
            parts.append(part)
        for piece, function in zip(pieces, self._write_pieces(number, parts), strict=True):
            piece.function = function


def _cta_rows(rows: Rows) -> list[int] | None:
    """Returns the rows of %ctaid, as in `NativePlan`."""
    found = [-1, -1, -1]
    for (text, kind), row in rows.expressions.items():
        if text in CTA_INDEX and found[CTA_INDEX.index(text)] < 0:
            found[CTA_INDEX.index(text)] = row | kind << 16
        elif "f.cta" in OF_ALL_CTAS.sub("", text):
            return None
    return found
