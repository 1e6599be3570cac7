"""Which registers may be read although nothing was written to them, and which may hold a load nobody waited for.

Code that compilers emit reads such registers: a value that is written under a guard, computed with, and used under
the same guard. That is no mistake until it is *used*: stored, an address, a branch. So most registers are found here to
be defined wherever they are read; for the few others the translator keeps, at run time, the lanes in which they are.
"""

from __future__ import annotations

from collections.abc import Sequence

from harness.emulator.instructions.table import Assign, Effect, Emitted, find
from harness.emulator.machine.code import EXIT
from harness.emulator.ptx.ast import Instruction
from harness.emulator.translate.cfg import Block, accumulators, destinations, is_guard_branch, sources


class Definedness:
    """``defined_in[b]``: slots that are defined in all lanes at the start of block b. ``tracked``: that need not be.

    ``unloaded_in[b]``: slots that may be destinations of a tcgen05.ld that was not waited for.
    """

    def __init__(
        self, instructions: Sequence[Instruction], emitted: Sequence[Emitted], blocks: Sequence[Block]
    ) -> None:
        self._instructions = instructions
        self._emitted = emitted
        self._everything = frozenset(r.slot for i in instructions for r in [*sources(i), *destinations(i)])
        self._trusted = frozenset(r.slot for i in instructions for r in accumulators(i))
        """Accumulators of wgmma: what they hold is known at run time."""
        self.defined_in = self._defined(blocks)
        self.unloaded_in = self._unloaded(blocks)
        self.tracked = self._tracked(blocks)

    def _defined(self, blocks: Sequence[Block]) -> list[set[int]]:
        at_start: list[set[int]] = [set(self._everything) for _ in blocks]
        if blocks:
            at_start[0] = set(self._trusted)
        work = list(range(len(blocks)))
        while work:
            block = blocks[work.pop(0)]
            defined = set(at_start[block.index])
            for i in self._instructions[block.first : block.last]:
                self.step(i, defined)
            for s in block.successors:
                if s != EXIT and not at_start[s] <= defined:
                    at_start[s] &= defined
                    if s not in work:
                        work.append(s)
        return at_start

    def step(self, i: Instruction, defined: set[int]) -> None:
        """What an instruction does to the set of defined slots."""
        for slot, is_defined in self._results(i, defined):
            if is_defined:
                defined.add(slot)
            else:
                defined.discard(slot)

    def _results(self, i: Instruction, defined: set[int]) -> list[tuple[int, bool]]:
        written = [r.slot for r in destinations(i) if r.slot not in self._trusted]
        clean = True
        emitted = self._emitted[i.index]
        if isinstance(emitted, Effect) and emitted.partial is not None:
            clean = emitted.partial.slot in defined
        elif isinstance(emitted, Assign):
            clean = all(r.slot in defined for r in sources(i))
        guarded = i.guard is not None and not is_guard_branch(i)
        return [(slot, clean and (not guarded or slot in defined)) for slot in written]

    def _tracked(self, blocks: Sequence[Block]) -> frozenset[int]:
        found: set[int] = set()
        for block in blocks:
            defined = set(self.defined_in[block.index])
            if block.skips is not None:
                found.update(r.slot for r in sources(block.skips) if r.slot not in defined)
            for i in self._instructions[block.first : block.last]:
                own = {r.slot for r in destinations(i)}
                found.update(
                    r.slot for r in sources(i) if r.slot not in defined and (r.slot not in own or _also_read(i, r.slot))
                )
                found.update(slot for slot, is_defined in self._results(i, defined) if not is_defined)
                self.step(i, defined)
        return frozenset(found - self._trusted)

    def _unloaded(self, blocks: Sequence[Block]) -> list[set[int]]:
        at_start: list[set[int]] = [set() for _ in blocks]
        work = list(range(len(blocks)))
        while work:
            block = blocks[work.pop(0)]
            unloaded = set(at_start[block.index])
            for i in self._instructions[block.first : block.last]:
                load_step(i, unloaded)
            for s in block.successors:
                if s != EXIT and not unloaded <= at_start[s]:
                    at_start[s] |= unloaded
                    if s not in work:
                        work.append(s)
        return at_start


def load_step(i: Instruction, unloaded: set[int]) -> None:
    """What an instruction does to the set of slots that wait for a tcgen05.ld."""
    spec = find(i)
    name = spec.name if spec else ""
    if name == "tcgen05.wait::ld":
        unloaded.clear()
    elif name == "tcgen05.ld":
        unloaded.update(r.slot for r in destinations(i))
    elif i.guard is None:
        unloaded.difference_update(r.slot for r in destinations(i))


def _also_read(i: Instruction, slot: int) -> bool:
    """Whether a register that the instruction writes is an operand to be read, too, and not only kept by a guard."""
    spec = find(i)
    results = spec.writes if spec is not None else 1
    if i.guard is not None and i.guard.slot == slot:
        return True
    return any(r.slot == slot for operand in i.operands[results:] for r in operand.registers())
