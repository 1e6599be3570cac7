"""What a basic block of PTX costs a warp: an in-order scoreboard over its instructions.

The emulator runs PTX, the GPU machine code that ptxas makes of it. What ptxas drops or folds away (copies between
registers, conversions of addresses) costs nothing here; the rest is issued in order, one instruction a cycle and
sub-partition at best, each as soon as its operands are there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.emulator.machine.code import Code
from harness.emulator.ptx.ast import TYPE_BYTES, Instruction, Vector
from harness.emulator.translate.cfg import destinations, sources
from harness.timing.constants import Gpu

FREE = ("mov", "cvta", "isspacep")
"""Mostly not there in machine code."""
LANES = 32
REGISTER_BYTES = 4


@dataclass(frozen=True)
class BlockCost:
    """``slots``: issue slots. ``cycles``: until the warp comes to the next block. ``at``: when each instruction is
    issued, from the block's start, by its index. ``signal``: when the last one that others may wait for has taken
    effect. ``global_bytes``: that a warp moves by plain loads and stores.
    """

    slots: float
    cycles: float
    at: dict[int, float]
    signal: float
    global_bytes: int


def block_costs(code: Code, gpu: Gpu) -> list[BlockCost]:
    """One for each block of a kernel."""
    instructions = code.kernel.instructions
    return [_cost(instructions[first : last + 1], gpu) for first, last in zip(code.first, code.last, strict=True)]


def _cost(instructions: Sequence[Instruction], gpu: Gpu) -> BlockCost:
    ready: dict[int, float] = {}
    now, slots, signal, moved = 0.0, 0.0, 0.0, 0
    loads_done = 0.0
    at = {}
    for i in instructions:
        issue, latency = _instruction(i, gpu)
        now = max([now, *(ready.get(r.slot, 0.0) for r in sources(i))])
        if i.opcode == "tcgen05" and i.modifiers[0] == "wait::ld":
            now = max(now, loads_done)
        at[i.index] = now
        for r in destinations(i):
            ready[r.slot] = now + latency
        if i.opcode == "tcgen05" and i.modifiers[0] == "ld":
            loads_done = max(loads_done, now) + issue
            loads_done = max(loads_done, now + latency)
            issue = 1.0
        now += issue
        slots += min(issue, 1.0) if i.opcode not in ("cvt",) else issue
        if i.opcode in ("mbarrier", "bar", "barrier", "st", "atom", "red"):
            signal = now
        moved += _global_bytes(i)
    end = max([now, *ready.values()]) if instructions else 0.0
    return BlockCost(slots, end, at, signal or end, moved)


def _global_bytes(i: Instruction) -> int:
    if i.opcode not in ("ld", "st") or "global" not in i.modifiers:
        return 0
    count = next((len(o.elements) for o in i.operands if isinstance(o, Vector)), 1)
    return LANES * count * TYPE_BYTES.get(i.modifiers[-1], REGISTER_BYTES)


def _instruction(i: Instruction, gpu: Gpu) -> tuple[float, float]:
    """Cycles until the next instruction of the warp can be issued, and until the results are there."""
    alu = gpu["issue.alu_latency"]
    verb = i.modifiers[0] if i.modifiers else ""
    match i.opcode:
        case op if op in FREE:
            return 0.0, 0.0
        case "cvt":
            if i.modifiers[-2:] in (("u64", "u32"), ("u32", "u64"), ("s64", "s32")):
                return 0.0, 0.0
            return gpu["issue.convert_cycles"], alu
        case "ld" | "ldmatrix":
            if "shared" in verb or any(m.startswith("shared") for m in i.modifiers) or i.opcode == "ldmatrix":
                return 1.0, gpu["issue.shared_latency"]
            if "param" in " ".join(i.modifiers):
                return 1.0, gpu["issue.shared_latency"]
            return 1.0, gpu["l2.latency"]
        case "st" | "stmatrix":
            return gpu["issue.matrix_cycles"] if i.opcode == "stmatrix" else 1.0, 0.0
        case "atom":
            shared = any(m.startswith("shared") for m in i.modifiers)
            return 1.0, gpu["issue.shared_latency"] if shared else gpu["l2.latency"] * 2
        case "mbarrier":
            wait = verb in ("try_wait", "test_wait")
            return gpu["barrier.arrive"], gpu["barrier.try_wait"] if wait else 0.0
        case "barrier" if verb == "cluster" and "arrive" in i.modifiers and "relaxed" not in i.modifiers:
            return gpu["issue.gpu_fence"], 0.0
        case "fence" | "membar":
            return _fence(i, gpu), 0.0
        case "elect" | "shfl" | "vote" | "redux" | "activemask" | "match":
            return 1.0, gpu["issue.elect"]
        case "cp" if "bulk" in i.modifiers and "commit_group" not in i.modifiers and "wait_group" not in i.modifiers:
            return gpu["issue.tma"], 0.0
        case "tcgen05" if verb == "ld":
            registers = len(destinations(i))
            cycles = registers * REGISTER_BYTES * LANES / gpu["tmem.rate"]
            return cycles, gpu["tmem.latency"] + cycles
        case "setmaxnreg":
            return gpu["issue.elect"], 0.0
        case "bra" | "ret" | "exit":
            return 2.0, 0.0
        case _:
            return 1.0, alu


def _fence(i: Instruction, gpu: Gpu) -> float:
    words = set(i.modifiers)
    if "mbarrier_init" in words:
        return gpu["issue.barrier_init_fence"]
    if "proxy" in words:
        return gpu["issue.proxy_fence"]
    if words & {"gpu", "sys", "gl", "cluster"}:
        return gpu["issue.gpu_fence"]
    return gpu["issue.alu_latency"]
