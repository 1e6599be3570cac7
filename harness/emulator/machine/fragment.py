"""Warps, and the fragments they split into when their lanes diverge.

A fragment is a set of lanes of one warp that execute together. Registers hold Python scalars where all lanes agree and
32-lane NumPy arrays where they may differ; a fragment of one lane holds scalars only, which makes elected-thread
loops fast. Fragments that split at a branch meet again at the branch's immediate post-dominator.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import Fault
from ..ptx.cfg import EXIT

if TYPE_CHECKING:
    from .grid import Cta
    from .warpgroup import Member

WARP_SIZE = 32
FULL_MASK = 0xFFFFFFFF
SPLIT = -3
BLOCKED = -2
"""What a block function returns instead of the next block (EXIT is the third)."""
SUSPENDED = object()
"""What a blocking operation returns when the fragment has to wait."""

Value = Any
"""int, bool, 32-lane array, or None for poison."""

ALL_LANES = np.arange(WARP_SIZE)


@lru_cache(maxsize=1024)
def _lanes(mask: int) -> tuple[tuple[int, ...], np.ndarray]:
    """The lanes of a mask, as a tuple and as an array to index with."""
    lanes = tuple(lane for lane in range(WARP_SIZE) if mask >> lane & 1)
    return lanes, np.array(lanes)


class JoinPoint:
    """Lanes of ``mask`` meet at ``block``; fragments that have arrived wait in ``arrived``."""

    __slots__ = ("arrived", "block", "mask")

    def __init__(self, block: int, mask: int):
        self.block = block
        self.mask = mask
        self.arrived: list[Fragment] = []


class Warp:
    """32 lanes of a CTA: which are alive, and the values of their special registers."""

    def __init__(self, cta: Cta, index: int, block: tuple[int, int, int]):
        self.cta = cta
        self.index = index
        threads = block[0] * block[1] * block[2]
        linear = np.arange(index * WARP_SIZE, (index + 1) * WARP_SIZE)
        self.tid = tuple(
            axis.astype(np.uint32)
            for axis in (linear % block[0], linear // block[0] % block[1], linear // (block[0] * block[1]))
        )
        count = min(WARP_SIZE, threads - index * WARP_SIZE)
        self.alive = (1 << count) - 1
        self.fragments: list[Fragment] = []
        self.member: Member | None = None
        """Its part in a warpgroup, once it has executed a wgmma instruction."""

    def __repr__(self) -> str:
        return f"warp {self.index}"


class Fragment:
    """Lanes of one warp that execute together.

    ``registers`` is indexed by register slot; ``block`` is the basic block to run next.
    """

    __slots__ = (
        "block",
        "count",
        "cta",
        "join_block",
        "joins",
        "lane_index",
        "lanes",
        "mask",
        "pending_loads",
        "polled",
        "registers",
        "single",
        "tokens",
        "waiting",
        "warp",
    )  # fmt: skip

    def __init__(self, warp: Warp, mask: int, registers: list[Value], block: int, joins: list[JoinPoint]):
        self.warp = warp
        self.cta = warp.cta
        self.registers = registers
        self.block = block
        self.joins = joins
        self.join_block = joins[-1].block if joins else None
        self.waiting: Waiting | None = None
        self.tokens: dict[object, int] = {}
        """Per barrier object: the generation this fragment has arrived for."""
        self.pending_loads: list[tuple[Sequence[int], Any]] = []
        self.polled = -1
        self._set_mask(mask)

    def _set_mask(self, mask: int) -> None:
        self.mask = mask
        self.lanes, self.lane_index = _lanes(mask)
        self.count = len(self.lanes)
        self.single = self.lanes[0] if self.count == 1 else -1

    # ---- divergence ----

    def diverge(self, predicate: Value, taken: int, fallthrough: int, join: int) -> int:
        """Next block when every lane agrees, else SPLIT after creating one fragment per side."""
        if predicate is None:
            raise Fault("branches on a predicate that was never written")
        chosen = predicate[self.lane_index]
        if chosen.all():
            return taken
        if not chosen.any():
            return fallthrough
        mask = 0
        for lane, choice in zip(self.lanes, chosen.tolist(), strict=True):
            mask |= choice << lane
        self.split([(mask, taken), (self.mask & ~mask, fallthrough)], join)
        return SPLIT

    def diverge_many(self, selector: Value, targets: Sequence[int], join: int) -> int:
        """``brx.idx``: each lane picks a target by its index."""
        if isinstance(selector, int):
            if selector >= len(targets):
                raise Fault(f"brx.idx index {selector} is outside its table of {len(targets)} targets")
            return targets[selector]
        groups: dict[int, int] = {}
        for lane in self.lanes:
            index = int(selector[lane])
            if index >= len(targets):
                raise Fault(f"brx.idx index {index} is outside its table of {len(targets)} targets")
            groups[targets[index]] = groups.get(targets[index], 0) | 1 << lane
        if len(groups) == 1:
            return next(iter(groups))
        self.split([(mask, target) for target, mask in groups.items()], join)
        return SPLIT

    def split(self, parts: Sequence[tuple[int, int]], join: int) -> None:
        """Replace this fragment by one per (mask, block); they meet again at block ``join``."""
        joins = self.joins if join == EXIT else [*self.joins, JoinPoint(join, self.mask)]
        program = self.cta.machine.program
        children = []
        for mask, block in parts:
            child = Fragment(self.warp, mask, self.registers, block, joins)
            if child.single >= 0:
                child.registers = self._lane_registers(child.single, program.live_in(block))
            else:
                child.registers = list(self.registers)
            child.tokens = dict(self.tokens)
            children.append(child)
        self.warp.fragments.remove(self)
        self.warp.fragments.extend(children)
        for child in children:
            if child.block == EXIT:
                child.exit()
            else:
                self.cta.machine.resume(child)

    def _lane_registers(self, lane: int, slots: Sequence[int]) -> list[Value]:
        registers: list[Value] = [None] * len(self.registers)
        for slot in slots:
            value = self.registers[slot]
            registers[slot] = value[lane].item() if isinstance(value, np.ndarray) else value
        return registers

    # ---- joining and leaving ----

    def arrive_at_join(self) -> None:
        """This fragment has reached the block where its siblings meet it again."""
        self.joins[-1].arrived.append(self)
        _complete_join(self.joins[-1])

    def exit(self) -> None:
        """The lanes leave the kernel; siblings waiting for them at join points no longer do."""
        self.warp.fragments.remove(self)
        self.warp.alive &= ~self.mask
        for join in reversed(self.joins):
            join.mask &= ~self.mask
            _complete_join(join)
        self.cta.lanes_left(self)

    # ---- what instructions ask for ----

    def restrict(self, guard: Value) -> Fragment | None:
        """The lanes for which the guard holds (None if there are none); registers are shared."""
        if guard is True:
            return self
        if guard is False:
            return None
        if guard is None:
            raise Fault("is guarded by a predicate that was never written")
        mask = 0
        for lane in self.lanes:
            mask |= int(guard[lane]) << lane
        if mask in (0, self.mask):
            return self if mask else None
        part = Fragment(self.warp, mask, self.registers, self.block, self.joins)
        part.tokens = self.tokens
        part.pending_loads = self.pending_loads
        return part

    def require_whole_warp(self) -> None:
        """Raise Fault unless all living lanes of the warp are here (``.aligned`` and ``.sync`` instructions)."""
        if self.mask != self.warp.alive:
            missing = self.warp.alive & ~self.mask
            raise Fault(
                f"needs the whole warp converged, but only lanes 0x{self.mask:08x} execute it; "
                f"lanes 0x{missing:08x} are elsewhere"
            )

    def read_accumulators(self) -> None:
        """Something other than a wgmma is about to read registers in which wgmma accumulates."""
        if self.warp.member is not None:
            self.warp.member.publish()

    def finish_loads(self) -> None:
        """``tcgen05.wait``: registers of earlier ``tcgen05.ld`` become readable."""
        for slots, source in self.pending_loads:
            values = source() if callable(source) else source
            if self.single >= 0:
                values = [row[self.single].item() for row in values]
            for slot, value in zip(slots, values, strict=True):
                self.registers[slot] = value
        self.pending_loads.clear()


class Waiting:
    """Why a fragment is suspended: the barrier-like object, a sentence, and the instruction index."""

    __slots__ = ("instruction", "on", "what")

    def __init__(self, on: Any, what: str, instruction: int):
        self.on = on
        self.what = what
        self.instruction = instruction


def _complete_join(join: JoinPoint) -> None:
    """Merge the arrived fragments once every lane that is still alive is among them."""
    arrived = 0
    for fragment in join.arrived:
        arrived |= fragment.mask
    if not join.arrived or arrived != join.mask:
        return
    parts, join.arrived = join.arrived, []
    merged = parts[0] if len(parts) == 1 else _merge(parts, join)
    merged.joins = merged.joins[:-1]
    merged.join_block = merged.joins[-1].block if merged.joins else None
    merged.block = join.block
    merged.cta.machine.resume(merged)


def _merge(parts: list[Fragment], join: JoinPoint) -> Fragment:
    first = parts[0]
    program = first.cta.machine.program
    registers: list[Value] = [None] * len(first.registers)
    second = parts[1].registers
    for slot in program.live_in(join.block):
        value = first.registers[slot]
        if value is not second[slot] or len(parts) > 2:
            value = _merge_value([(p, p.registers[slot]) for p in parts], program.register_dtypes[slot])
        registers[slot] = value
    merged = Fragment(first.warp, join.mask, registers, join.block, first.joins)
    for part in parts:
        merged.tokens.update(part.tokens)
        merged.pending_loads.extend(part.pending_loads)
        first.warp.fragments.remove(part)
    first.warp.fragments.append(merged)
    return merged


def _merge_value(parts: list[tuple[Fragment, Value]], dtype: Any) -> Value:
    first = parts[0][1]
    if all(value is first for _, value in parts):
        return first
    if all(isinstance(value, int) and value == first for _, value in parts):
        return first
    merged = np.zeros(WARP_SIZE, dtype)
    for part, value in parts:
        # A register written on one side only is undefined in the other lanes: those keep zero.
        if value is not None:
            merged[part.lane_index] = value[part.lane_index] if isinstance(value, np.ndarray) else value
    return merged


def lane_value(value: Value, lane: int) -> int:
    """One lane's scalar of a register value."""
    if isinstance(value, int):
        return value
    if value is None:
        raise Fault("uses a register that was never written")
    return int(value[lane])
