"""Control-flow graph of a kernel: basic blocks, immediate post-dominators, live registers.

Blocks are also cut before every instruction that can block a warp, so that a block runs to its end or has no effect at
all, and after ``tcgen05.wait`` and ``wgmma.wait_group``: what they make readable is so at a block boundary.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from .ast import Dual, Instruction, Kernel, Memory, Negated, Operand, Register, Vector

EXIT = -1
"""Pseudo block: the thread has left the kernel."""


@dataclass
class Block:
    """A run of instructions ``[first, last)`` with one entry and one exit."""

    index: int
    first: int
    last: int
    successors: list[int] = field(default_factory=list)
    join: int = EXIT
    """Immediate post-dominator: where lanes that diverge at the end of this block meet again."""
    reads: set[int] = field(default_factory=set)
    """Register slots read before they are written in this block."""
    loads: set[int] = field(default_factory=set)
    """Those of them that are read as ordinary operands, not as accumulators of a wgmma."""
    writes: set[int] = field(default_factory=set)
    live_in: set[int] = field(default_factory=set)
    live_out: set[int] = field(default_factory=set)


def can_block(instruction: Instruction) -> bool:
    """Whether the instruction may suspend the warp that executes it."""
    opcode, modifiers = instruction.opcode, instruction.modifiers
    if opcode == "mbarrier":
        return modifiers[0] in ("try_wait", "test_wait")
    if opcode in ("bar", "barrier"):
        return "arrive" not in modifiers and "warp" not in modifiers
    if opcode == "cp":
        return "wait_group" in modifiers
    if opcode == "wgmma":
        return modifiers[0] == "wait_group"
    return opcode == "setmaxnreg" or (opcode == "tcgen05" and modifiers[0] == "alloc")


def is_terminator(instruction: Instruction) -> bool:
    return instruction.opcode in ("bra", "brx", "ret", "exit", "trap")


def build(kernel: Kernel) -> list[Block]:
    """Blocks of the kernel in program order."""
    instructions = kernel.instructions
    leaders = {0, len(instructions)}
    for instruction in instructions:
        if is_terminator(instruction):
            leaders.add(instruction.index + 1)
            leaders.update(instruction.targets)
        if can_block(instruction):
            leaders.add(instruction.index)
        if instruction.opcode in ("tcgen05", "wgmma") and instruction.modifiers[0].startswith("wait"):
            leaders.add(instruction.index + 1)
    cuts = sorted(leaders)
    blocks = [Block(i, first, last) for i, (first, last) in enumerate(pairwise(cuts))]
    starting_at = {block.first: block.index for block in blocks}
    for block in blocks:
        last = instructions[block.last - 1]
        targets = [starting_at.get(t, EXIT) for t in last.targets]
        falls_through = not is_terminator(last) or last.guard is not None
        if last.opcode in ("ret", "exit", "trap"):
            targets.append(EXIT)
        if falls_through:
            targets.append(block.index + 1 if block.index + 1 < len(blocks) else EXIT)
        block.successors = list(dict.fromkeys(targets))
    _post_dominators(blocks)
    _liveness(blocks, instructions)
    return blocks


def registers(operand: Operand) -> Iterator[Register]:
    """Every register named by an operand."""
    if isinstance(operand, Register):
        yield operand
    elif isinstance(operand, Negated):
        yield operand.register
    elif isinstance(operand, Vector):
        for element in operand.elements:
            yield from registers(element)
    elif isinstance(operand, Dual):
        yield from registers(operand.first)
        yield from registers(operand.second)
    elif isinstance(operand, Memory):
        yield from registers(operand.base)
        for coordinate in operand.coordinates or ():
            yield from registers(coordinate)


_NO_DESTINATION = {
    "st", "bra", "brx", "ret", "exit", "trap", "bar", "barrier", "fence", "membar", "red", "stmatrix", "prefetch",
    "prefetchu", "cp", "setmaxnreg", "nanosleep", "griddepcontrol", "discard", "applypriority", "createpolicy_",
    "clusterlaunchcontrol", "pmevent", "brkpt",
}  # fmt: skip
_MBARRIER_RESULT = {"arrive", "arrive_drop", "test_wait", "try_wait", "pending_count"}


def destinations(instruction: Instruction) -> list[Register]:
    """Registers an instruction writes."""
    if not instruction.operands or instruction.opcode in _NO_DESTINATION:
        return []
    first = instruction.operands[0]
    if instruction.opcode == "mbarrier" and instruction.modifiers[0] not in _MBARRIER_RESULT:
        return []
    if instruction.opcode == "tcgen05" and instruction.modifiers[0] != "ld":
        return []
    if instruction.opcode == "wgmma" and instruction.modifiers[0] != "mma_async":
        return []
    if isinstance(first, Memory):
        return []
    return list(registers(first))


def accumulators(instruction: Instruction) -> list[Register]:
    """Registers a wgmma.mma_async adds to."""
    return destinations(instruction) if instruction.opcode == "wgmma" else []


def sources(instruction: Instruction) -> list[Register]:
    """Registers an instruction reads. A guarded write keeps the old value, so it reads its destination too."""
    found = [instruction.guard] if instruction.guard else []
    written = destinations(instruction)
    start = 1 if written or (instruction.operands and not isinstance(instruction.operands[0], Memory)) else 0
    if instruction.opcode in _NO_DESTINATION or not written:
        start = 0
    for operand in instruction.operands[start:]:
        found.extend(registers(operand))
    if instruction.guard or instruction.opcode == "wgmma":
        found.extend(written)
    return found


def _liveness(blocks: list[Block], instructions: list[Instruction]) -> None:
    for block in blocks:
        for instruction in instructions[block.first : block.last]:
            read = {r.slot for r in sources(instruction)} - block.writes
            block.reads |= read
            block.loads |= read - {r.slot for r in accumulators(instruction)}
            block.writes.update(r.slot for r in destinations(instruction))
    changed = True
    while changed:
        changed = False
        for block in reversed(blocks):
            live_out = set().union(*(blocks[s].live_in for s in block.successors if s != EXIT))
            live_in = block.reads | (live_out - block.writes)
            if live_in != block.live_in or live_out != block.live_out:
                block.live_in, block.live_out = live_in, live_out
                changed = True


def _post_dominators(blocks: list[Block]) -> None:
    """Immediate post-dominators by iteration over reverse order (Cooper, Harvey, Kennedy on the reversed graph)."""
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
