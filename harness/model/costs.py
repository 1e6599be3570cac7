"""Computes the cost of a basic block of PTX for a warp, with an in-order scoreboard over its instructions.

The emulator runs PTX, but the GPU runs the machine code that ptxas makes of it. Instructions that ptxas drops or folds
(copies between registers, conversions of addresses) cost nothing here. The others are issued in order, at most one per
cycle and sub-partition, each when its operands are ready.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from emugpu.emulator.machine.code import Code
from emugpu.emulator.ptx.ast import TYPE_BYTES, Instruction, Vector
from emugpu.emulator.translate.cfg import destinations, sources
from harness.model.constants import GpuConstants

FREE = ("mov", "cvta", "isspacep")
"""Instructions that usually do not appear in machine code."""
LANES = 32
REGISTER_BYTES = 4


@dataclass(frozen=True)
class BlockCost:
    """The cost of a block.

    ``slots``: issue slots. ``cycles``: until the warp reaches the next block. ``at``: when each instruction is issued,
    from the block's start, by its index. ``signal``: when the last instruction that others may wait for has taken
    effect. ``global_bytes``: bytes that a warp moves by ordinary loads and stores. ``multiplies``: whether it issues
    wgmma. ``follows``: whether it waits for the launch before this one.
    """

    slots: float
    cycles: float
    at: dict[int, float]
    signal: float
    global_bytes: int
    multiplies: bool = False
    follows: bool = False


def block_costs(code: Code, gpu: GpuConstants) -> list[BlockCost]:
    """Returns the costs of each block of a kernel."""
    instructions = code.kernel.instructions
    return [_cost(instructions[first : last + 1], gpu) for first, last in zip(code.first, code.last, strict=True)]


def _cost(instructions: Sequence[Instruction], gpu: GpuConstants) -> BlockCost:
    ready: dict[int, float] = {}
    now, slots, signal, moved = 0.0, 0.0, 0.0, 0
    loads_done = 0.0
    stored = multiplies = follows = False
    at = {}
    for i in instructions:
        issue, latency = _instruction(i, gpu)
        if stored and i.opcode == "fence" and "proxy" in i.modifiers:
            issue = gpu["issue.proxy_fence_stored"]
        stored = stored or _stores_to_shared(i)
        multiplies = multiplies or _multiplies(i)
        follows = follows or (i.opcode == "griddepcontrol" and "wait" in i.modifiers)
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
    return BlockCost(slots, end, at, signal or end, moved, multiplies, follows)


def _stores_to_shared(i: Instruction) -> bool:
    return i.opcode == "stmatrix" or (i.opcode == "st" and any(m.startswith("shared") for m in i.modifiers))


def _multiplies(i: Instruction) -> bool:
    return i.opcode == "wgmma" and i.modifiers[0] == "mma_async"


def _global_bytes(i: Instruction) -> int:
    if i.opcode not in ("ld", "st") or "global" not in i.modifiers:
        return 0
    count = next((len(o.elements) for o in i.operands if isinstance(o, Vector)), 1)
    return LANES * count * TYPE_BYTES.get(i.modifiers[-1], REGISTER_BYTES)


def _instruction(i: Instruction, gpu: GpuConstants) -> tuple[float, float]:
    """Returns the cycles until the warp's next instruction can be issued, and until the results are ready."""
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
        case "mbarrier" if verb == "arrive" and {"release", "cluster"} <= set(i.modifiers):
            return gpu["barrier.release"], 0.0
        case "mbarrier":
            wait = verb in ("try_wait", "test_wait")
            return gpu["barrier.arrive"], gpu["barrier.try_wait"] if wait else 0.0
        case "barrier" if verb == "cluster" and "arrive" in i.modifiers and "relaxed" not in i.modifiers:
            return gpu["issue.gpu_fence"], 0.0
        case "fence" | "membar":
            return _fence(i, gpu), 0.0
        case "elect" | "shfl" | "vote" | "redux" | "activemask" | "match":
            return 1.0, gpu["issue.elect"]
        case "cp" if "bulk" in i.modifiers:
            return _bulk(i, gpu), 0.0
        case "wgmma" if verb == "mma_async":
            return gpu["issue.wgmma"], 0.0
        case "wgmma" if verb == "wait_group":
            return gpu["issue.wgmma_wait"], 0.0
        case "tcgen05" if verb == "ld":
            registers = len(destinations(i))
            cycles = registers * REGISTER_BYTES * LANES / gpu["tmem.rate"]
            return cycles, gpu["tmem.latency"] + cycles
        case "setmaxnreg":
            return gpu["issue.elect"], 0.0
        case "brx":
            return gpu["issue.table"], 0.0
        case "bra":
            return gpu["issue.branch"], 0.0
        case "bar" if verb == "warp":
            return gpu["issue.branch"], 0.0
        case "ret" | "exit":
            return 2.0, 0.0
        case _:
            return 1.0, alu


def _bulk(i: Instruction, gpu: GpuConstants) -> float:
    if "commit_group" in i.modifiers:
        return gpu["tma.commit_group"]
    return gpu["tma.wait_group"] if "wait_group" in i.modifiers else gpu["issue.tma"]


def _fence(i: Instruction, gpu: GpuConstants) -> float:
    words = set(i.modifiers)
    if "mbarrier_init" in words:
        return gpu["issue.barrier_init_fence"]
    if "proxy" in words:
        return gpu["issue.proxy_fence"]
    if words & {"gpu", "sys", "gl", "cluster"}:
        return gpu["issue.gpu_fence"]
    return gpu["issue.alu_latency"]
