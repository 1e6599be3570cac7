"""Writes the Python source of basic blocks: operands become expressions, and instructions become lines.

A block becomes ``def b7(f, R)``: ``f`` is the fragment that runs, ``R`` its registers. The function loads registers
into locals ``v12`` at the start and stores them back at the end. It returns the next block, or EXIT, BLOCKED or SPLIT.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence, Set
from typing import Any

import numpy as np

from emugpu.emulator.errors import Fault, PtxSyntaxError
from emugpu.emulator.instructions.move import special_register
from emugpu.emulator.instructions.table import (
    UNEXPECTED,
    Assign,
    Effect,
    Emitted,
    Unsupported,
    address_parts,
    bits_of,
    find,
    mask,
)
from emugpu.emulator.instructions.tensor_memory import forget_load, load_early
from emugpu.emulator.instructions.values import add_offset, narrow, select
from emugpu.emulator.isa import lacking, why_not
from emugpu.emulator.machine.barriers import SUSPENDED
from emugpu.emulator.machine.code import BLOCKED, EXIT
from emugpu.emulator.machine.divergence import diverge, diverge_many, restrict
from emugpu.emulator.machine.events import Site
from emugpu.emulator.machine.slots import set_of
from emugpu.emulator.machine.state import Fragment
from emugpu.emulator.memory.address_space import RESERVED_SHARED
from emugpu.emulator.ptx.ast import (
    TYPE_BYTES,
    Immediate,
    Instruction,
    Label,
    MemoryOperand,
    Negated,
    Operand,
    Register,
    Special,
    Symbol,
)
from emugpu.emulator.translate.cfg import (
    BRANCHES,
    BasicBlock,
    accumulators,
    destinations,
    held_operands,
    is_guard_branch,
    load_step,
    sources,
)
from emugpu.emulator.translate.expressions import expressions
from emugpu.emulator.translate.layout import VariableLayout


def unsupported(f: Fragment, site: Site, why: str) -> None:
    raise Fault(f"{why}: {site.text}", "unsupported")


def pending(name: str) -> None:
    raise Fault(f"reads register {name} before the wait that makes it readable", "wgmma")


def narrow_literal(bits: int) -> int:
    """Returns the bits of a float64 literal as an f32."""
    return int(np.uint64(bits).view(np.float64).astype(np.float32).view(np.uint32))


class Operands:
    """Turns operands into expressions and objects into names of generated code. It is the emitters' `Translator`."""

    def __init__(self, layout: VariableLayout) -> None:
        self.layout = layout
        self.names: dict[str, Any] = {"np": np}
        """The objects that generated code refers to by name."""
        self.assigned: dict[int, list[tuple[Register, str]]] = {}
        """By the index of a plain instruction: the registers that it writes, and expressions of their new values."""
        self._constant_names: dict[Hashable, str] = {}

    def emit(self, i: Instruction) -> Emitted | Unsupported:
        """Returns the result of the instruction's emitter, or its refusal.

        Raises PtxSyntaxError on an unknown symbol.
        """
        if lacking(i):
            return Unsupported()
        try:
            emitted = find(i).emit(i, self)
            if isinstance(emitted, Assign):
                self.assigned[i.index] = expressions(emitted.micro, self)
            return emitted
        except UNEXPECTED:
            return Unsupported()
        except PtxSyntaxError as error:
            raise PtxSyntaxError(f"PTX line {i.line}: {i.text}: {error}") from None

    def use(self, thing: Callable[..., Any]) -> str:
        name = thing.__name__
        if self.names.setdefault(name, thing) is not thing:
            # Another file has a function with this name.
            name = f"{thing.__module__.rpartition('.')[2]}_{name}"
            known = self.names.setdefault(name, thing)
            assert known is thing, name
        return name

    def constant(self, make: Callable[..., Any], *arguments: Hashable) -> str:
        key = (make, arguments)
        if key not in self._constant_names:
            name = self._constant_names[key] = f"C{len(self._constant_names)}"
            self.names[name] = make(*arguments)
        return self._constant_names[key]

    def read(self, operand: Operand, kind: str) -> str:
        if isinstance(operand, Register):
            if kind != "pred" and operand.type in TYPE_BYTES and TYPE_BYTES[operand.type] > TYPE_BYTES[kind]:
                return f"{self.use(narrow)}(v{operand.slot}, {bits_of(kind)})"
            return f"v{operand.slot}"
        if isinstance(operand, Negated):
            return f"(v{operand.register.slot} ^ True)"
        if isinstance(operand, Immediate):
            if kind == "pred":
                return str(bool(operand.value))
            if operand.float_bits == 64 and kind == "f32":
                return str(narrow_literal(operand.value))
            return str(operand.value & mask(kind))
        if isinstance(operand, Special):
            return special_register(operand.name, self)
        if isinstance(operand, Symbol | Label):
            return self.address(operand)
        raise Unsupported

    def address(self, operand: Symbol | Label) -> str:
        offset = operand.offset if isinstance(operand, Symbol) else 0
        space, base = self.layout.find(operand.name)
        if space == "shared":
            return f"(f.cta.window + {RESERVED_SHARED + base + offset})"
        if space in ("param", "local"):
            return str(base + offset)
        address = f"f.grid.symbols[{operand.name!r}]"
        return f"({address} + {offset})" if offset else address

    def space_of(self, operand: Operand) -> str | None:
        if isinstance(operand, MemoryOperand) and isinstance(operand.base, Symbol):
            return self.layout.find(operand.base.name)[0]
        return None

    def pointer(self, operand: Operand) -> str:
        base, width, offset = address_parts(operand)
        expression = self.read(base, width)
        if not offset:
            return expression
        return f"{self.use(add_offset)}({expression}, {offset & mask(width)}, {bits_of(width)})"


class Writer:
    """The source lines of one kernel, and the instruction that each line belongs to."""

    def __init__(
        self,
        instructions: Sequence[Instruction],
        emitted: Sequence[Emitted | Unsupported],
        operands: Operands,
        unloaded_in: Sequence[set[int]],
        starting_at: dict[int, int],
    ):
        self.instructions = instructions
        self.lines: list[str] = []
        self.line_instruction: list[int | None] = []
        self._emitted = emitted
        self._operands = operands
        self._use = operands.use
        self._unloaded_in = unloaded_in
        self._starting_at = starting_at
        self._accumulators = {r.slot for i in instructions for r in accumulators(i)}
        self._held = {r.slot for i in instructions for r in held_operands(i)}
        self._current: int | None = None
        self._open: set[int] = set()
        """Slots whose value an instruction of this block has left open: it is in the register file, not in the local.
        """
        self._assigned: set[int] = set()
        """Slots that the block has assigned, but not stored to the register file yet."""
        self._unloaded: set[int] = set()
        operands.names.update(SUSPENDED=SUSPENDED, BLOCKED=BLOCKED)

    def line(self, text: str, indent: int = 1) -> None:
        self.lines.append("    " * indent + text)
        self.line_instruction.append(self._current)

    # ---- blocks ----

    def block(self, block: BasicBlock) -> None:
        """Writes the function of a block."""
        self._begin(block)
        self._function(f"b{block.index}", block, True)

    def pieces(self, parts: Sequence[BasicBlock]) -> list[str]:
        """Writes the parts of a block as separate functions. Returns their names."""
        self._begin(parts[0])
        names = [f"b{parts[0].index}_{number}" for number in range(len(parts))]
        for name, part in zip(names, parts, strict=True):
            self._current = None
            self._assigned.clear()
            self._function(name, part, part is parts[-1])
        return names

    def _begin(self, block: BasicBlock) -> None:
        self._current = None
        self._open.clear()
        self._assigned.clear()
        self._unloaded = set(self._unloaded_in[block.index])

    def _function(self, name: str, block: BasicBlock, ends: bool) -> None:
        """Writes one function. ends: whether the block ends with these instructions."""
        self.line(f"def {name}(f, R):", 0)
        if block.loads & self._accumulators:
            self.line("if f.warp.member is not None: f.warp.member.publish(f.warp.fragments)")
        self._update(block.loads)
        for slot in sorted(block.loads):
            self.line(f"v{slot} = R[{slot}]")
        if block.skips is not None:
            self._skip(block, block.skips)
            return
        for index in range(block.first, block.last):
            i = self.instructions[index]
            self._current = index
            if i.opcode in BRANCHES:
                self._store_back(block)
                self._branch(i, block)
                return
            self._instruction(i)
            load_step(i, self._unloaded)
        self._store_back(block)
        self.line(f"return {block.successors[0] if ends else 0}")

    def _store_back(self, block: BasicBlock) -> None:
        self._store(block.writes & block.live_out - self._open)

    def _update(self, slots: Set[int]) -> None:
        """Writes a line that brings registers up to date if the fragment holds older ones."""
        if slots:
            self.line(f"if f.outdated & {set_of(slots):#x}: f.fetch(f, {set_of(slots):#x})")

    def _store(self, slots: Set[int]) -> None:
        for slot in sorted(slots):
            self.line(f"R[{slot}] = v{slot}")
        if slots:
            self.line(f"f.unpassed |= {set_of(slots):#x}")

    def _skip(self, block: BasicBlock, i: Instruction) -> None:
        """Writes the guard of an instruction that may suspend: lanes for which it is false branch around it."""
        self._current = i.index
        self._branch_on(i, block.index + 1, self._starting_at.get(i.index + 1, EXIT), block)

    def _branch(self, i: Instruction, block: BasicBlock) -> None:
        if isinstance(self._emitted[i.index], Unsupported):
            self._effect(i, Effect(unsupported, [repr(why_not(i))]))
        if i.opcode == "brx":
            table = tuple(self._starting_at.get(t, EXIT) for t in i.targets)
            selector = self._operands.read(i.operands[0], "u32")
            self.line(f"return {self._use(diverge_many)}(f, {selector}, {table}, {block.join})")
            return
        target = EXIT if i.opcode in ("ret", "exit") else self._starting_at.get(i.targets[0], EXIT)
        if i.guard is None:
            self.line(f"return {target}")
        else:
            following = block.index + 1 if block.index + 1 in block.successors else EXIT
            self._branch_on(i, target, following, block)

    def _branch_on(self, i: Instruction, yes: int, no: int, block: BasicBlock) -> None:
        assert i.guard is not None
        guard = f"v{i.guard.slot}"
        if i.guard_negated:
            yes, no = no, yes
        self.line(f"if {guard} is True: return {yes}")
        self.line(f"if {guard} is False: return {no}")
        self.line(f"return {self._use(diverge)}(f, {guard}, {yes}, {no}, {block.join})")

    # ---- instructions ----

    def _instruction(self, i: Instruction) -> None:
        self._fetch(i)
        emitted = self._emitted[i.index]
        if isinstance(emitted, Assign):
            self._assign(i)
        elif isinstance(emitted, Effect):
            self._effect(i, emitted)
        elif isinstance(emitted, Unsupported):
            self._effect(i, Effect(unsupported, [repr(why_not(i))]))
            for r in destinations(i):
                if i.guard is None:
                    self.line(f"v{r.slot} = 0")
            self._note_assigned(destinations(i))

    def _fetch(self, i: Instruction) -> None:
        """Writes lines that load into locals what only the register file has."""
        for r in sources(i):
            if r.slot in self._unloaded:
                self.line(f"v{r.slot} = {self._use(load_early)}(f, S{i.index}, {r.slot}, {r.name!r})")
                self._unloaded.discard(r.slot)
                self._open.discard(r.slot)
            elif r.slot in self._open and r not in accumulators(i):
                self.line(f"{self._use(pending)}({r.name!r})")
        for r in destinations(i):
            if r.slot in self._unloaded and r not in sources(i):
                self.line(f"{self._use(forget_load)}(f, {r.slot})")
                self._unloaded.discard(r.slot)

    def _assign(self, i: Instruction) -> None:
        pairs = self._operands.assigned[i.index]
        if not pairs:
            return
        names, values = [f"v{register.slot}" for register, _ in pairs], [value for _, value in pairs]
        if i.guard is None:
            self.line(f"{', '.join(names)} = {', '.join(values)}")
        else:
            chosen = [
                f"{self._use(select)}(g, {value}, {name}, {self._bits_of(i)})"
                for name, value in zip(names, values, strict=True)
            ]
            self.line(f"g = {self._guard(i)}")
            self.line("if g is not False:")
            self.line(f"{', '.join(names)} = {', '.join(chosen)}", 2)
        self._note_assigned(destinations(i))

    def _guard(self, i: Instruction) -> str:
        assert i.guard is not None
        return f"v{i.guard.slot}" + (" ^ True" if i.guard_negated else "")

    def _note_assigned(self, written: Iterable[Register]) -> None:
        slots = {r.slot for r in written}
        self._open -= slots
        self._assigned |= slots

    def _bits_of(self, i: Instruction) -> int:
        return 64 if any(r.type in TYPE_BYTES and TYPE_BYTES[r.type] == 8 for r in destinations(i)) else 32

    def _name(self, destination: Operand) -> str:
        return f"v{destination.slot}" if isinstance(destination, Register) else "_"

    def _effect(self, i: Instruction, effect: Effect) -> None:
        poisons = {r.slot for r in effect.poisons}
        stored = {r.slot for r in effect.stores} & self._assigned
        stored |= self._assigned & self._held if effect.stores else set()
        stored |= poisons & self._assigned if i.guard is not None else set()
        self._store(stored)
        fragment, indent = "f", 1
        if i.guard is not None and not is_guard_branch(i):
            self.line(f"g = {self._guard(i)}")
            self.line(f"t = {self._use(restrict)}(f, g)")
            self.line("if t is not None:")
            fragment, indent = "t", 2
        arguments = [fragment, f"S{i.index}", *effect.arguments]
        if effect.stores:
            arguments.append(str(not self._open >= poisons))
        call = f"{self._use(effect.function)}({', '.join(arguments)})"
        if find(i).blocks:
            self.line(f"r = {call}", indent)
            self.line("if r is SUSPENDED: return BLOCKED", indent)
            call = "r"
        self._results(i, effect, call, fragment, indent)
        self._open |= poisons
        self._assigned -= poisons

    def _results(self, i: Instruction, effect: Effect, call: str, fragment: str, indent: int) -> None:
        """Writes lines that assign the results of an effect, in the lanes that have executed it."""
        names = [self._name(destination) for destination in effect.results]
        if not names:
            if call != "r":
                self.line(call, indent)
        elif fragment == "f":
            self.line(f"{', '.join(names)} = {call}", indent)
        else:
            temporaries = [f"n{k}" for k in range(len(names))]
            self.line(f"{', '.join(temporaries)} = {call}", indent)
            for name, new in zip(names, temporaries, strict=True):
                if name != "_":
                    self.line(f"{name} = {self._use(select)}(g, {new}, {name}, {self._bits_of(i)})", indent)
        self._note_assigned(r for o in effect.results for r in o.registers())
