"""Control-flow graph of a kernel: basic blocks, immediate post-dominators, live registers.

A block also ends before every instruction that can suspend a warp, so that a block either runs to its end or has no
effect at all. It ends after instructions that make something readable, so that it becomes readable at a block boundary.
The guard of a suspending instruction becomes a branch around it, so that lanes for which it is false need not wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from emugpu.emulator.instructions.table import find
from emugpu.emulator.machine.code import EXIT
from emugpu.emulator.ptx.ast import Instruction, MemoryOperand, PtxKernel, Register


@dataclass
class BasicBlock:
    """A basic block: the instructions ``[first, last)``, with one entry and one exit."""

    index: int
    first: int
    last: int
    skips: Instruction | None = None
    """For a block without instructions: the instruction whose guard the block tests. True goes to the next block."""
    successors: list[int] = field(default_factory=list)
    join: int = EXIT
    """The immediate post-dominator: lanes that diverge at the end of this block meet again there."""
    reads: set[int] = field(default_factory=set)
    """Register slots that the block reads before it writes them."""
    loads: set[int] = field(default_factory=set)
    """The slots of ``reads`` that are ordinary operands, not accumulators of a wgmma."""
    writes: set[int] = field(default_factory=set)
    live_in: set[int] = field(default_factory=set)
    live_out: set[int] = field(default_factory=set)


_STRONG = {"acquire", "release", "acq_rel", "relaxed", "volatile", "mmio"}


def reaches_other_ctas(i: Instruction) -> bool:
    """Returns whether CTAs may depend on one another through this access to global memory.

    The block ends after it, so that other CTAs may run right after it.
    """
    shared = any(m.startswith("shared") for m in i.modifiers)
    if i.opcode in ("atom", "red"):
        return not shared
    return i.opcode in ("ld", "st") and not shared and not _STRONG.isdisjoint(i.modifiers)


BRANCHES = ("bra", "brx", "ret", "exit")
"""Instructions that end a block."""
EXCHANGES = ("shfl", "vote", "redux", "match")
"""Instructions that suspend a warp only if its lanes are in different fragments."""


def is_guard_branch(i: Instruction) -> bool:
    """Returns whether the instruction's guard becomes a branch around it."""
    return i.guard is not None and find(i).blocks


def build(kernel: PtxKernel) -> tuple[list[BasicBlock], dict[int, int]]:
    """Returns the kernel's blocks in program order, and the block at which each branch target starts."""
    instructions = kernel.instructions
    leaders = {0, len(instructions)}
    parting = [i for i in instructions if i.opcode in BRANCHES or is_guard_branch(i)]
    # Before the first of these instructions and of their targets, all lanes are together.
    apart = min((k for i in parting for k in (i.index, *i.targets)), default=0)
    guarded: set[int] = set()
    for i in instructions:
        spec = find(i)
        if i.opcode in BRANCHES:
            leaders.add(i.index + 1)
            leaders.update(i.targets)
        elif spec.blocks and (i.index >= apart or i.opcode not in EXCHANGES):
            leaders.add(i.index)
            if i.guard is not None:
                guarded.add(i.index)
                leaders.add(i.index + 1)
        if spec.settles or reaches_other_ctas(i):
            leaders.add(i.index + 1)
    blocks: list[BasicBlock] = []
    starting_at: dict[int, int] = {}
    for first, last in pairwise(sorted(leaders)):
        starting_at[first] = len(blocks)
        if first in guarded:
            blocks.append(BasicBlock(len(blocks), first, first, instructions[first]))
        blocks.append(BasicBlock(len(blocks), first, last))
    for block in blocks:
        block.successors = _successors(block, blocks, instructions, starting_at)
    _post_dominators(blocks)
    _liveness(blocks, instructions)
    return blocks, starting_at


def _successors(
    block: BasicBlock, blocks: list[BasicBlock], instructions: list[Instruction], starting_at: dict[int, int]
) -> list[int]:
    following = block.index + 1 if block.index + 1 < len(blocks) else EXIT
    if block.skips is not None:
        return list(dict.fromkeys([following, starting_at.get(block.first + 1, EXIT)]))
    last = instructions[block.last - 1]
    if last.opcode not in BRANCHES:
        return [following]
    targets = [EXIT] if last.opcode in ("ret", "exit") else [starting_at.get(t, EXIT) for t in last.targets]
    if last.guard is not None:
        targets.append(following)
    return list(dict.fromkeys(targets))


def destinations(i: Instruction) -> list[Register]:
    """Returns the registers that an instruction writes."""
    return find(i).destinations(i)


def accumulators(i: Instruction) -> list[Register]:
    """Returns the registers that a wgmma.mma_async adds to."""
    return destinations(i) if i.opcode == "wgmma" else []


def held_operands(i: Instruction) -> list[Register]:
    """Returns the registers that an asynchronous instruction reads after its issue: A of a wgmma.mma_async."""
    return i.operands[1].registers() if i.opcode == "wgmma" and i.modifiers[0] == "mma_async" else []


def sources(i: Instruction) -> list[Register]:
    """Returns the registers that an instruction reads. A guarded write keeps the old value, so it also reads it."""
    results = find(i).writes
    found = [i.guard] if i.guard else []
    for position, operand in enumerate(i.operands):
        if position >= results or isinstance(operand, MemoryOperand):
            found.extend(operand.registers())
    if i.guard or i.opcode == "wgmma":
        found.extend(destinations(i))
    return found


def _liveness(blocks: list[BasicBlock], instructions: list[Instruction]) -> None:
    held = {r.slot for i in instructions for r in held_operands(i)}
    for block in blocks:
        if block.skips is not None and block.skips.guard is not None:
            block.reads.add(block.skips.guard.slot)
            block.loads.add(block.skips.guard.slot)
        for i in instructions[block.first : block.last]:
            read = {r.slot for r in sources(i)} - block.writes
            block.reads |= read
            block.loads |= read - {r.slot for r in accumulators(i)}
            block.writes.update(r.slot for r in destinations(i))
    changed = True
    while changed:
        changed = False
        for block in reversed(blocks):
            live_out = held.union(*(blocks[s].live_in for s in block.successors if s != EXIT))
            live_in = held | block.reads | (live_out - block.writes)
            if live_in != block.live_in or live_out != block.live_out:
                block.live_in, block.live_out = live_in, live_out
                changed = True


def _post_dominators(blocks: list[BasicBlock]) -> None:
    """Finds immediate post-dominators by iteration (Cooper, Harvey, Kennedy on the reversed graph)."""
    count = len(blocks)
    exit_node = count
    successors = [[exit_node if s == EXIT else s for s in b.successors] or [exit_node] for b in blocks]
    predecessors: list[list[int]] = [[] for _ in range(count + 1)]
    for node, targets in enumerate(successors):
        for target in targets:
            predecessors[target].append(node)
    order: list[int] = []
    seen = {exit_node}
    stack = [(exit_node, iter(predecessors[exit_node]))]
    while stack:
        node, children = stack[-1]
        child = next((c for c in children if c not in seen), None)
        if child is None:
            order.append(node)
            stack.pop()
        else:
            seen.add(child)
            stack.append((child, iter(predecessors[child])))
    rank = {node: i for i, node in enumerate(order)}
    immediate: dict[int, int] = {exit_node: exit_node}

    def meet(a: int, b: int) -> int:
        while a != b:
            while rank[a] < rank[b]:
                a = immediate[a]
            while rank[b] < rank[a]:
                b = immediate[b]
        return a

    changed = True
    while changed:
        changed = False
        for node in reversed(order[:-1]):
            known = [s for s in successors[node] if s in immediate and s in rank]
            if not known:
                continue
            new = known[0]
            for other in known[1:]:
                new = meet(new, other)
            if immediate.get(node) != new:
                immediate[node] = new
                changed = True
    for block in blocks:
        join = immediate.get(block.index, exit_node)
        block.join = EXIT if join == exit_node else join


def load_step(i: Instruction, unloaded: set[int]) -> None:
    """Updates the set of slots that wait for a tcgen05.ld after an instruction."""
    name = find(i).name
    if name == "tcgen05.wait::ld":
        unloaded.clear()
    elif name.startswith("tcgen05.ld"):
        unloaded.update(r.slot for r in destinations(i))
    elif i.guard is None:
        unloaded.difference_update(r.slot for r in destinations(i))


def unloaded_at_start(blocks: Sequence[BasicBlock], instructions: Sequence[Instruction]) -> list[set[int]]:
    """Returns, for each block, the slots for which a tcgen05.ld may be pending when the block starts."""
    at_start: list[set[int]] = [set() for _ in blocks]
    work = list(range(len(blocks)))
    while work:
        block = blocks[work.pop(0)]
        unloaded = set(at_start[block.index])
        for i in instructions[block.first : block.last]:
            load_step(i, unloaded)
        for s in block.successors:
            if s != EXIT and not unloaded <= at_start[s]:
                at_start[s] |= unloaded
                if s not in work:
                    work.append(s)
    return at_start
