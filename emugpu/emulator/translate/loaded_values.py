"""What the values that a kernel loads can decide: the stores, and uses of tensor memory, that they reach through
registers.

The answer holds for all paths through the kernel, because it looks at what each instruction reads and writes, and not
at the order of instructions. It does not follow values through memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

from emugpu.emulator.instructions.table import Assign, Emitted, Unsupported, find
from emugpu.emulator.ptx.ast import Instruction, MemoryOperand, Register, Vector
from emugpu.emulator.translate.cfg import EXCHANGES, accumulators, destinations

_GUARD = -1
_VALUE = 1
"""The operand of a store, shfl, vote, redux or match that is stored or exchanged."""
_SPACES = ("global", "shared", "shared::cta", "shared::cluster")
_OF_TENSOR_MEMORY = ("tcgen05.ld", "tcgen05.st", "tcgen05.cp", "tcgen05.mma", "tcgen05.dealloc")


class Reach(NamedTuple):
    """The instructions, by index, that use a loaded value.

    ``own``: by the lane that has loaded it. ``warp``: by any lane of its warp, after an exchange.
    """

    own: frozenset[int]
    warp: frozenset[int]


class LoadedValues:
    """Finds for each load of a kernel what its value can reach."""

    def __init__(self, instructions: Sequence[Instruction], emitted: Sequence[Emitted | Unsupported]) -> None:
        self._instructions, self._emitted = instructions, emitted
        self._known: dict[int, tuple[Reach | None, ...]] = {}
        self._used: dict[int, bool] = {}

    @cached_property
    def stores(self) -> frozenset[int]:
        """The instructions ``st`` to global and shared memory, by index."""
        return frozenset(
            i.index for i in self._instructions if find(i).name == "st" and not set(i.modifiers).isdisjoint(_SPACES)
        )

    @cached_property
    def uses(self) -> frozenset[int]:
        """The instructions at which a value may end without deciding anything else, by index: these stores, and
        accesses to tensor memory. All of them have events.
        """
        return self.stores.union(i.index for i in self._instructions if find(i).name.startswith(_OF_TENSOR_MEMORY))

    @cached_property
    def _readers(self) -> dict[int, list[tuple[Instruction, int]]]:
        """By register slot: the instructions that read it, each with the operand's position, or _GUARD."""
        found: dict[int, list[tuple[Instruction, int]]] = {}
        for i in self._instructions:
            results = find(i).writes
            read = [(r, _GUARD) for r in ([i.guard] if i.guard else [])]
            read += [(r, 0) for r in accumulators(i)]
            for position, operand in enumerate(i.operands):
                if position >= results or isinstance(operand, MemoryOperand):
                    read += [(r, position) for r in operand.registers()]
            for register, position in read:
                found.setdefault(register.slot, []).append((i, position))
        return found

    def is_used(self, index: int) -> bool:
        """Returns whether the first result of an instruction reaches anything but arithmetic."""
        if index not in self._used:
            reach = self._reach(self._instructions[index].operands[0].registers())
            self._used[index] = reach is None or any(reach)
        return self._used[index]

    def reach(self, load: int) -> tuple[Reach | None, ...]:
        """Returns which of `uses` each element of a load reaches: as the data of a store, or as any operand of others.

        It is None for an element that may decide anything else, such as an address, a guard, an atomic, or a branch
        around more than arithmetic. All are None if none of them reaches anything: no compiler leaves such a load in a
        program.
        """
        if load not in self._known:
            loaded = self._instructions[load].operands[0]
            elements = loaded.elements if isinstance(loaded, Vector) else (loaded,)
            found = tuple(self._reach(one.registers()) for one in elements)
            decides = any(reach is None or any(reach) for reach in found)
            self._known[load] = found if decides else (None,) * len(found)
        return self._known[load]

    def _reach(self, registers: Sequence[Register]) -> Reach | None:
        uses: dict[bool, set[int]] = {False: set(), True: set()}
        work = [(r.slot, False) for r in registers]
        seen = set(work)
        while work:
            slot, is_exchanged = work.pop()
            for i, position in self._readers.get(slot, ()):
                if i.index in self.uses and (position == _VALUE if i.index in self.stores else position != _GUARD):
                    uses[is_exchanged].add(i.index)
                    continue
                exchanges = i.opcode in EXCHANGES and position == _VALUE
                changed = [i] if exchanges or self._is_arithmetic(i) else self._skipped(i)
                if changed is None:
                    return None
                new = {(r.slot, is_exchanged or exchanges) for one in changed for r in destinations(one)} - seen
                seen |= new
                work += new
        return Reach(frozenset(uses[False]), frozenset(uses[True]))

    def _is_arithmetic(self, i: Instruction) -> bool:
        return isinstance(self._emitted[i.index], Assign)

    def _skipped(self, branch: Instruction) -> list[Instruction] | None:
        """Returns the instructions that a branch may skip, up to where all paths meet again.

        Returns None if there is anything but arithmetic among them, or a way back.
        """
        found, at = [], branch.index
        end = at + 1
        while at < end:
            i = self._instructions[at]
            if i.opcode == "bra" and min(i.targets) > at:
                end = max(end, *i.targets)
            elif self._is_arithmetic(i):
                found.append(i)
            else:
                return None
            at += 1
        return found
