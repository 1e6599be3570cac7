"""Follows a register back to the instructions that may have produced its value, using only the text of the PTX.

Events carry accesses to memory; values that pass between registers are followed here, over all paths that lead to an
instruction. If there are several loads, the recording decides: the load is the one that was executed last.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from emugpu.emulator.machine.code import Code
from emugpu.emulator.ptx.ast import TYPE_BYTES, Immediate, Instruction, Operand, PtxKernel, Register, Vector
from emugpu.emulator.translate.cfg import destinations

LOADS = ("ld", "ldu", "ldmatrix", "tcgen05", "wgmma", "mma", "atom", "cp")
"""The search ends at these instructions, whose values come from memory or from the tensor core."""
NARROW = ("bf16x2", "f16x2", "e4m3x2", "e5m2x2", "e2m1x2")
"""Types of conversions with two operands, of which the first becomes the upper half."""


@dataclass(frozen=True)
class Producer:
    """An instruction that produces a value.

    ``position`` is the number of its destination register, ``byte`` the byte in it. ``shuffled``: other lanes may
    have passed the value on.
    """

    instruction: Instruction
    position: int
    byte: int
    shuffled: bool = False


def producers_of(code: Code, index: int, register: Register, byte: int) -> list[Producer]:
    """Returns the possible producers of a byte of a register that the instruction at this index reads."""
    kernel = code.kernel
    before = _predecessors(code)
    found: dict[tuple[int, int], Producer] = {}
    work = [(n, register, byte, False) for n in before[index]]
    seen = set()
    while work:
        at, wanted, part, shuffled = work.pop()
        if (at, wanted.slot, part) in seen:
            continue
        seen.add((at, wanted.slot, part))
        instruction = kernel.instructions[at]
        written = destinations(instruction)
        position = next((n for n, r in enumerate(written) if r.slot == wanted.slot), None)
        if position is None or instruction.guard is not None:
            work += [(n, wanted, part, shuffled) for n in before[at]]
        if position is None:
            continue
        if instruction.opcode in LOADS:
            if not instruction.has("param"):
                found[at, position] = Producer(instruction, position, part, shuffled)
            continue
        shuffled = shuffled or instruction.opcode == "shfl"
        for operand, its_byte in _read(instruction, part, written[position]):
            work += [(n, r, its_byte, shuffled) for r in operand.registers() for n in before[at]]
    return list(found.values())


def _read(i: Instruction, byte: int, wanted: Register) -> list[tuple[Operand, int]]:
    """Returns the operands that a byte of a result depends on, each with the byte."""
    given = i.operands[1:]
    if i.opcode == "mov":
        if isinstance(i.operands[0], Vector):
            place = next(n for n, e in enumerate(i.operands[0].elements) if wanted in e.registers())
            return [(given[0], byte + place * TYPE_BYTES.get(wanted.type, 4))]
        if isinstance(given[0], Vector):
            size = TYPE_BYTES.get(wanted.type, 4) // len(given[0].elements)
            return [(given[0].elements[byte // size], byte % size)] if size else []
        return [(given[0], byte)]
    if i.opcode == "cvt":
        kind = next((m for m in i.modifiers if m in NARROW), "")
        if kind and len(given) == 2:
            half = TYPE_BYTES.get(kind, 2) // 2
            return [(given[byte // half == 0], 0)]
        to, of = i.modifiers[-2:]
        if not (to[0] in "su" and of[0] in "su"):
            return [(given[0], 0)]
        # In a wider integer, the additional bytes depend on the value only through its sign.
        inside = byte < TYPE_BYTES[of]
        return [(given[0], byte if inside else TYPE_BYTES[of] - 1)] if inside or of[0] == "s" else []
    if i.opcode in ("shl", "shr") and isinstance(given[1], Immediate):
        moved, rest = divmod(given[1].value, 8)
        source = byte - moved if i.opcode == "shl" else byte + moved
        if rest == 0:
            return [(given[0], source)] if 0 <= source < TYPE_BYTES[i.modifiers[-1]] else []
    if i.opcode == "and" and any(isinstance(o, Immediate) and not o.value >> 8 * byte & 0xFF for o in given):
        return []
    if i.opcode in ("selp", "setp"):
        return [(operand, byte) for operand in given[:2]]
    return [(operand, byte) for operand in given]


@lru_cache(maxsize=8)
def _predecessors(code: Code) -> Sequence[Sequence[int]]:
    """Returns for each instruction those that may be executed right before it."""
    kernel: PtxKernel = code.kernel
    found: dict[int, list[int]] = defaultdict(list)
    for i in kernel.instructions:
        for target in i.targets:
            found[target].append(i.index)
        if i.guard is not None or i.opcode not in ("bra", "brx", "ret", "exit"):
            found[i.index + 1].append(i.index)
    return [found[n] for n in range(len(kernel.instructions) + 1)]
