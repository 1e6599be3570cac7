"""The micro-operations of an instruction, as the records that the interpreter reads."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from emugpu.emulator.instructions.operations import BY_NAME, NUMBERS
from emugpu.emulator.instructions.table import NOTHING, Effect, Emitted, Function, Micro, OfWarp, Temporary, Unsupported
from emugpu.emulator.native.calls import Call
from emugpu.emulator.native.layout import NAMED_BARRIERS
from emugpu.emulator.native.operations import (
    ACCESSES,
    ATOMIC_ACCESSES,
    ATOMICS,
    BARRIER,
    EXCHANGES,
    MATRICES,
    WAIT_FOR_LOADS,
    Control,
    Flag,
)
from emugpu.emulator.native.rows import NARROW, PREDICATE, WIDE, NotNative, Rows
from emugpu.emulator.ptx.ast import TYPE_BYTES, Immediate, Instruction, Negated, Operand, Register
from emugpu.emulator.translate.cfg import destinations, is_guard_branch, sources

NO_GUARD = NO_ROW = 0xFFFF

RECORD = np.dtype(
    [("op", "u2"), ("guard", "u2"), ("flags", "u2"), ("d", "u2"), ("a", "u2"), ("b", "u2"), ("c", "u2"), ("e", "u2"),
     ("imm", "u8"), ("yes", "i4"), ("no", "i4")]
)  # fmt: skip
"""A micro-operation in the interpreter's format."""

Record = dict[str, int]


def synchronises(emitted: Emitted | Unsupported) -> bool:
    """Returns whether an instruction is a barrier."""
    return isinstance(emitted, Effect) and any(m.name == BARRIER for m in emitted.micro)


class Encoder:
    """Makes the records of one kernel's instructions.

    ``accesses``: the verb, the space, the bytes of an item, and the items, of each instruction that accesses memory
    natively. ``barriers``: the numbers of the barriers that run natively.
    """

    def __init__(self, instructions: Sequence[Instruction], rows: Rows, quiet: bool, early: bool) -> None:
        """For ``quiet`` and ``early`` see `Planner`."""
        self._rows = rows
        self._quiet, self._early = quiet, early
        self._read = {r.slot for i in instructions for r in sources(i)}
        self.accesses: dict[int, tuple[str, str, int, int]] = {}
        self.barriers: set[int] = set()
        self.calls: list[Call] = []

    def records_of(self, i: Instruction, emitted: Emitted | Unsupported) -> list[Record] | None:
        """Returns the records of an instruction, or None if Python must run it."""
        if isinstance(emitted, Unsupported) or (is_guard_branch(i) and not synchronises(emitted)):
            return None
        if emitted is None:
            return []
        given = {m.destination.slot for m in emitted.micro if isinstance(m.destination, Register)}
        if any((m.quiet and not self._quiet) or (m.early and not self._early) for m in emitted.micro):
            return None
        if emitted.micro == (NOTHING,):
            return [] if i.guard is None else None
        if not emitted.micro or {r.slot for r in destinations(i)} & self._read - given:
            return None
        found: list[Record] = []
        known = len(self.calls)
        try:
            guard, flags = NO_GUARD, 0
            if i.guard is not None and not is_guard_branch(i):
                guard, _ = self._rows.read(i.guard, "pred")
                if any(m.destination == i.guard for m in emitted.micro[:-1]):
                    guard = self._derived("mov.32", found, guard)
                flags = Flag.NEGATED if i.guard_negated else 0
            accesses = [m for m in emitted.micro if m.access]
            items = 0
            if accesses:
                m = accesses[0]
                items = len(accesses) // sum(m.is_first for m in accesses)
                verb = "atom" if m.name in ATOMICS else m.name
                self.accesses[i.index] = (verb, m.access, m.nbytes, items)
            for m in emitted.micro:
                found.append(self._record(m, guard, flags, items, found))
            return [{**record, "yes": i.index} for record in found]
        except NotNative:
            del self.calls[known:]
            return None

    def _call(self, m: Micro, function: Function, guard: int, flags: int, before: list[Record]) -> Record:
        sources = [self._source(operand, kind, before) for operand, kind in m.sources]
        holds = None if guard == NO_GUARD else guard
        merges = holds is not None and isinstance(m.destination, Register)
        self.calls.append(Call(function, sources, self._destination(m), holds, bool(flags & Flag.NEGATED), merges))
        return {"op": Control.CALL, "imm": len(self.calls) - 1}

    def _record(self, m: Micro, guard: int, flags: int, items: int, before: list[Record]) -> Record:
        if m.function is not None:
            return self._call(m, m.function, guard, flags, before)
        if m.name in ATOMICS and m.access:
            return self._atomic(m, guard, flags)
        if m.access:
            return {**self._access(m, guard, flags), "c": m.nbytes * items}
        if m.name == BARRIER:
            return self._barrier(m)
        if m.name in EXCHANGES:
            return self._exchange(m, guard)
        if m.name in MATRICES:
            return self._matrix(m, guard)
        if m.name == WAIT_FOR_LOADS and guard == NO_GUARD:
            return {"op": Control.LOADED, "flags": Flag.ALIGNED}
        operation = BY_NAME.get(m.name)
        if operation is None:
            raise NotNative
        if len(operation.sources) != len(m.sources):
            raise NotNative
        rows = []
        for (operand, kind), wanted in zip(m.sources, operation.sources, strict=True):
            row, row_kind = self._source(operand, kind, before)
            if (row_kind == WIDE) != wanted.endswith("64"):
                raise NotNative
            rows.append(row)
        d, d_kind = self._destination(m)
        if (d_kind == WIDE) != operation.result.endswith("64"):
            raise NotNative
        flags |= (Flag.WIDE if d_kind == WIDE else 0) | (Flag.CHOOSES if operation.chooses else 0)
        flags |= Flag.SPREADS if operation.spreads else 0
        rows += [self._rows.literal(0, NARROW)] * (3 - len(rows))
        found = {"op": NUMBERS[m.name], "guard": guard, "flags": flags, "d": d, "imm": m.imm}
        return {**found, **dict(zip("abc", rows, strict=True))}

    def _source(self, operand: Operand | Temporary | OfWarp, kind: str, before: list[Record]) -> tuple[int, int]:
        """Returns the row of a source and its kind. Appends the records that negate a predicate, or take a part of a
        register.
        """
        if isinstance(operand, Negated):
            return self._derived("not.pred", before, self._rows.accessible(operand.register.slot)[0]), PREDICATE
        row, row_kind = self._rows.read(operand, kind)
        if not isinstance(operand, Register) or kind == "pred" or not self._reads_part(operand, kind):
            return row, row_kind
        row = self._derived("trunc.32", before, row) if row_kind == WIDE else row
        bits = 8 * TYPE_BYTES[kind]
        literal = self._rows.literal((1 << bits) - 1, NARROW)
        return (row if bits == 32 else self._derived("and.32", before, row, literal)), NARROW

    def _derived(self, name: str, before: list[Record], *sources: int) -> int:
        """Appends an operation on rows. Returns the row of its result, which lasts to the end of the instruction."""
        to, zero = self._rows.between(NARROW, 16 + len(before)), self._rows.literal(0, NARROW)
        operands = zip("abc", (*sources, zero, zero)[:3], strict=True)
        before.append({"op": NUMBERS[name], "d": to, **dict(operands)})
        return to

    def _reads_part(self, register: Register, kind: str) -> bool:
        return register.type != "pred" and TYPE_BYTES[register.type] > TYPE_BYTES[kind]

    def _destination(self, m: Micro) -> tuple[int, int]:
        if isinstance(m.destination, Register | Temporary):
            return self._rows.read(m.destination, "b32")
        raise NotNative

    def _exchange(self, m: Micro, guard: int) -> Record:
        """Returns a record whose field of the alignment holds the mask of the participating lanes."""
        if guard != NO_GUARD:
            raise NotNative
        *rows, members = [self._rows.read(operand, kind) for operand, kind in m.sources]
        d, d_kind = self._destination(m)
        if WIDE in (d_kind, members[1], *(kind for _, kind in rows)):
            raise NotNative
        found = [row for row, _ in rows] + [self._rows.literal(0, NARROW)] * (3 - len(rows))
        return {"op": EXCHANGES[m.name], "d": d, "e": members[0], **dict(zip("abc", found, strict=True))}

    def _barrier(self, m: Micro) -> Record:
        found = [self._rows.read(operand, kind) for operand, kind in m.sources]
        if any(kind != NARROW for _, kind in found):
            raise NotNative
        number = m.sources[0][0]
        numbers = range(NAMED_BARRIERS)
        self.barriers.update([number.value] if isinstance(number, Immediate) and number.value in numbers else numbers)
        rows = [row for row, _ in found] + [self._rows.literal(0, NARROW)] * (2 - len(found))
        flags = (Flag.ALIGNED if m.alignment > 1 else 0) | (Flag.COUNTED if len(m.sources) == 2 else 0)
        return {"op": Control.BARRIER, "a": rows[0], "b": rows[1], "flags": flags}

    def _matrix(self, m: Micro, guard: int) -> Record:
        if guard != NO_GUARD:
            raise NotNative
        zero = (self._rows.literal(0, NARROW), NARROW)
        read = [self._rows.read(*s) for s in m.sources]
        (base, base_kind), *others = read + [zero] * (3 - len(read))
        flags = (Flag.WIDE_ADDRESS if base_kind == WIDE else 0) | (Flag.FIRST_ITEM if m.is_first else 0)
        if any(kind != NARROW for _, kind in others):
            raise NotNative
        found = {"op": MATRICES[m.name], "a": base, "e": m.alignment, "no": m.part, "flags": flags}
        found |= {"b": others[0][0], "c": others[1][0]}
        found |= {"imm": m.offset & 0xFFFFFFFFFFFFFFFF, "d": NO_ROW}
        if m.destination is not None:
            found["d"], d_kind = self._destination(m)
            if d_kind != NARROW:
                raise NotNative
        return found

    def _access(self, m: Micro, guard: int, flags: int) -> Record:
        base, base_kind = self._rows.read(*m.sources[0])
        flags |= Flag.WIDE_ADDRESS if base_kind == WIDE else 0
        found = {"op": ACCESSES[m.name, m.access, m.nbytes], "guard": guard, "a": base, "e": m.alignment}
        flags |= (Flag.FIRST_ITEM if m.is_first else 0) | (Flag.STRONG if m.strong else 0)
        found["imm"] = m.offset & 0xFFFFFFFFFFFFFFFF
        if m.name == "ld":
            d, kind = self._destination(m)
            return {**found, "d": d, "flags": flags | (Flag.WIDE if kind == WIDE else 0)}
        value, kind = self._rows.read(*m.sources[1])
        flags |= Flag.WIDE if kind == WIDE else 0
        return {**found, "b": value, "d": NO_ROW, "flags": flags}

    def _atomic(self, m: Micro, guard: int, flags: int) -> Record:
        """Returns a record whose field of the alignment holds the kind of atomic."""
        (base, base_kind), *values = (self._rows.read(*s) for s in m.sources)
        kinds = {kind for _, kind in values}
        flags |= Flag.WIDE_ADDRESS if base_kind == WIDE else 0
        flags |= (Flag.WIDE if m.nbytes == 8 else 0) | Flag.STRONG
        d = NO_ROW
        if m.destination is not None:
            d, d_kind = self._destination(m)
            kinds.add(d_kind)
        if kinds != {WIDE if m.nbytes == 8 else NARROW}:
            raise NotNative
        if any(isinstance(o, Register) and self._reads_part(o, kind) for o, kind in m.sources[1:]):
            raise NotNative
        rows = [row for row, _ in values]
        found = {"op": ATOMIC_ACCESSES[m.access, m.nbytes], "guard": guard, "flags": flags, "d": d, "a": base}
        return {**found, "b": rows[0], "c": rows[-1], "e": ATOMICS.index(m.name), "imm": m.offset & 0xFFFFFFFFFFFFFFFF}
