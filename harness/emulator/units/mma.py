"""The tensor core: tcgen05.mma of kind::f16 with both operands in shared memory (PTX ISA 9.7.16.10).

Operands are read, and checked, when `MmaUnit.mma` is called. In "f32" accumulation the multiplication is put
off: the K slices of one accumulator are collected and multiplied in one BLAS call as soon as the accumulator
is looked at, used differently, or the panel is full. Only the order in which f32 sums are taken can tell the
difference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from harness.emulator.errors import Fault
from harness.emulator.memory.descriptors import InstructionDescriptor, decode_instruction, decode_sm100
from harness.emulator.memory.shared import SharedMemory
from harness.emulator.memory.tmem import LANES, TensorMemory, split_address
from harness.emulator.units import sums
from harness.emulator.units.operands import PANEL_SLICES, Accumulation, K, Operand, Panels, operand


class Cta(Protocol):
    """What the unit needs of a CTA."""

    shared: SharedMemory
    tmem: TensorMemory


@dataclass(frozen=True, eq=False)
class Plan:
    """Everything about an instruction that follows from its descriptors. positions: chunk numbers of a, then of b."""

    idesc: InstructionDescriptor
    a: Operand
    b: Operand
    positions: NDArray[np.intp]
    flops: int

    def values(self, chunks: NDArray[np.complex128]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """A [M, slices * K] and B [N, slices * K] from what was fetched at the positions, [slices, CTAs, positions]."""
        behind_a = self.a.positions.size
        return (
            self.a.values(chunks[..., :behind_a].view(np.uint16)),
            self.b.values(chunks[..., behind_a:].view(np.uint16)),
        )


@lru_cache(maxsize=4096)
def make_plan(a_descriptor: int, b_descriptor: int, idesc: int, cta_group: int) -> Plan:
    instruction = decode_instruction(idesc, cta_group)
    a_rows, b_rows = instruction.m // cta_group, instruction.n // cta_group
    a = operand(decode_sm100(a_descriptor), a_rows, instruction.a_major, instruction.a_type)
    b = operand(decode_sm100(b_descriptor), b_rows, instruction.b_major, instruction.b_type)
    positions = np.concatenate([a.positions.ravel(), b.positions.ravel()])
    return Plan(instruction, a, b, positions, 2 * instruction.m * instruction.n * K)


class Mma(NamedTuple):
    """One tcgen05.mma: the arguments of `MmaUnit.mma` behind the CTAs."""

    d_address: int
    a_descriptor: int
    b_descriptor: int
    idesc: int
    accumulate: bool
    cta_group: int
    lane_mask: tuple[int, ...] | None

    def plan(self) -> Plan:
        """The descriptors, decoded."""
        return make_plan(self.a_descriptor, self.b_descriptor, self.idesc, self.cta_group)


class Block:
    """A rectangle of one CTA's tensor memory and the part of D (CTA's rows, all columns) it holds."""

    __slots__ = ("columns", "lanes", "target")

    def __init__(self, lanes: slice, columns: slice, target: tuple[slice, slice]) -> None:
        self.lanes = lanes
        self.columns = columns
        self.target = target


@lru_cache(maxsize=1024)
def accumulator_layout(d_address: int, m: int, n: int, cta_group: int) -> tuple[list[Block], int, int]:
    """The blocks of D in each CTA's tensor memory, and its first and one-past-last column.

    m=256, cta_group 2 (layout A) and m=128, cta_group 1 (D): row r in lane r. m=128, cta_group 2 (B): 64
    rows per CTA, the right half of the columns in lanes 64 and up. m=64, cta_group 1 (F): 16 rows in each
    warp's 32 lanes, the lower or the upper 16 as the address says. Source: PTX ISA 9.7.16.10.5.
    """
    lane, column = split_address(d_address)
    allowed = (0, 16) if m == 64 else (0,)
    if lane not in allowed:
        raise Fault(
            f"tcgen05.mma D address {d_address:#x}: lane {lane} must be {' or '.join(map(str, allowed))} for M = {m}"
        )
    everything = slice(0, n)
    if m // cta_group == 128:
        width = n
        blocks = [Block(slice(0, 128), slice(column, column + n), (slice(0, 128), everything))]
    elif cta_group == 2:
        width = n // 2
        columns = slice(column, column + width)
        blocks = [
            Block(slice(64 * h, 64 * h + 64), columns, (slice(0, 64), slice(h * width, (h + 1) * width)))
            for h in range(2)
        ]
    else:
        width = n
        columns = slice(column, column + n)
        blocks = [
            Block(slice(32 * q + lane, 32 * q + lane + 16), columns, (slice(16 * q, 16 * q + 16), everything))
            for q in range(4)
        ]
    return blocks, column, column + width


class _PendingProduct:
    """K slices of one accumulator that have been fetched but not multiplied.

    Registered in the tensor memory of every CTA of the pair. `accumulate` tells whether the product adds to
    D.
    """

    def __init__(self, unit: MmaUnit, members: Sequence[TensorMemory], d_address: int, idesc: int, plan: Plan) -> None:
        cta_group = len(members)
        self.unit = unit
        self.members = tuple(members)
        self.d_address = d_address
        self.idesc = idesc
        self.plan = plan
        self.blocks, self.first_column, self.end_column = accumulator_layout(
            d_address, plan.idesc.m, plan.idesc.n, cta_group
        )
        self.panel = unit.panels.take((PANEL_SLICES, cta_group, plan.positions.size))
        self.count = 0
        self.accumulate = False
        for tmem in self.members:
            tmem.pending.append(self)

    def append(self, pair: Sequence[Cta], plan: Plan) -> None:
        for i, cta in enumerate(pair):
            cta.shared.chunks.take(plan.positions, out=self.panel[self.count, i], mode="clip")
        self.count += 1
        if self.count == PANEL_SLICES:
            self.flush()

    def flush(self) -> None:
        if not self.count:
            return
        a, b = self.plan.values(self.panel[: self.count])
        product = a @ b.T
        if self.plan.idesc.negate:
            np.negative(product, out=product)
        rows = product.shape[0] // len(self.members)
        for i, tmem in enumerate(self.members):
            share = product[i * rows : (i + 1) * rows]
            for block in self.blocks:
                target = tmem.data[block.lanes, block.columns].view(np.float32)
                if self.accumulate:
                    target += share[block.target]
                else:
                    target[...] = share[block.target]
                    tmem.valid[block.lanes, block.columns] = True
        self.count = 0
        self.accumulate = True

    def retire(self) -> None:
        for tmem in self.members:
            tmem.pending.remove(self)
        self.unit.panels.give(self.panel)


class MmaUnit:
    """Executes tcgen05.mma.

    Args:
        accumulation: "f32" multiplies and adds in f32 (exact for integers below 2^24); "tensor_core" follows
            the published rules of the hardware (`sums`), instruction by instruction, and is slow.
    """

    def __init__(self, accumulation: Accumulation = "f32") -> None:
        if accumulation not in ("f32", "tensor_core"):
            raise ValueError(f"accumulation '{accumulation}': must be f32 or tensor_core")
        self.accumulation = accumulation
        self.panels = Panels()

    def mma(
        self,
        pair: Sequence[Cta],
        d_address: int,
        a_descriptor: int,
        b_descriptor: int,
        idesc: int,
        accumulate: bool,
        cta_group: int,
        lane_mask: Sequence[int] | None = None,
    ) -> int:
        """D = A . B (+ D): A is M x 16, B is 16 x N. Returns the floating-point operations, 2 * M * N * 16.

        Args:
            pair: the CTAs, even rank first: one for cta_group 1, two for cta_group 2. A is split over them
                by rows, B by columns, D by rows; every address below holds in each CTA.
            d_address: tensor memory address of D.
            a_descriptor, b_descriptor: 64-bit shared-memory matrix descriptors.
            idesc: 32-bit instruction descriptor.
            accumulate: whether the old D is added.
            lane_mask: 4 words per CTA; a set bit keeps the old D of that lane (word q, bit b: lane 32 q + b).
        """
        if len(pair) != cta_group:
            raise Fault(f"tcgen05.mma with cta_group::{cta_group} needs {cta_group} CTAs, got {len(pair)}")
        plan = make_plan(a_descriptor, b_descriptor, idesc, cta_group)
        for cta in pair:
            cta.shared.check_chunks(plan.positions, plan)
        kept = _kept_lanes(lane_mask, cta_group)
        if self.accumulation == "f32" and plan.idesc.d_type == "f32" and kept is None:
            self._defer(pair, d_address, idesc, plan, accumulate)
        else:
            self._execute(pair, d_address, plan, accumulate, kept)
        return plan.flops

    def _defer(self, pair: Sequence[Cta], d_address: int, idesc: int, plan: Plan, accumulate: bool) -> None:
        for product in pair[0].tmem.pending:
            if (
                isinstance(product, _PendingProduct)
                and product.d_address == d_address
                and product.idesc == idesc
                and product.members[-1] is pair[-1].tmem
            ):
                if not accumulate:
                    # D is overwritten whole: what was collected for it can never be seen.
                    product.count = 0
                    product.accumulate = False
                product.append(pair, plan)
                return
        self._claim_accumulator(pair, d_address, plan, accumulate)
        product = _PendingProduct(self, [cta.tmem for cta in pair], d_address, idesc, plan)
        product.accumulate = accumulate
        product.append(pair, plan)

    def _claim_accumulator(self, pair: Sequence[Cta], d_address: int, plan: Plan, accumulate: bool) -> list[Block]:
        """Check D's columns and carry out what is pending on them."""
        blocks, first, end = accumulator_layout(d_address, plan.idesc.m, plan.idesc.n, len(pair))
        for cta in pair:
            tmem = cta.tmem
            tmem.check_allocated(first, end, "tcgen05.mma D")
            for write in [w for w in tmem.pending if w.first_column < end and first < w.end_column]:
                write.flush()
                write.retire()
            if accumulate:
                for block in blocks:
                    tmem.check_accumulator(block.lanes, block.columns)
        return blocks

    def _execute(
        self,
        pair: Sequence[Cta],
        d_address: int,
        plan: Plan,
        accumulate: bool,
        kept: NDArray[np.bool_] | None,
    ) -> None:
        """One instruction at once: for the bit-level model, f16 results and lane masks."""
        idesc = plan.idesc
        blocks = self._claim_accumulator(pair, d_address, plan, accumulate)
        a, b = plan.values(np.stack([cta.shared.chunks.take(plan.positions) for cta in pair])[None])
        if idesc.negate:
            a = -a
        rows = idesc.m // len(pair)
        old = np.zeros((idesc.m, idesc.n), np.uint32)
        if accumulate:
            for i, cta in enumerate(pair):
                for block in blocks:
                    old[i * rows : (i + 1) * rows][block.target] = cta.tmem.data[block.lanes, block.columns]
        types = (idesc.a_type, idesc.b_type, idesc.d_type)
        result = sums.dot(a, b, old, *types, self.accumulation, K, sums.BLACKWELL)
        for i, cta in enumerate(pair):
            share = result[i * rows : (i + 1) * rows]
            for block in blocks:
                target = cta.tmem.data[block.lanes, block.columns]
                valid = cta.tmem.valid[block.lanes, block.columns]
                written = slice(None) if kept is None else ~kept[i, block.lanes]
                target[written] = share[block.target][written]
                valid[written] = True


def _kept_lanes(lane_mask: Sequence[int] | None, cta_group: int) -> NDArray[np.bool_] | None:
    """Per CTA and lane, whether the mask keeps the old D; None if it keeps nothing."""
    if lane_mask is None or not any(lane_mask):
        return None
    words = 4 * cta_group
    if len(lane_mask) != words:
        raise Fault(f"tcgen05.mma lane mask of {len(lane_mask)} words: cta_group::{cta_group} takes {words}")
    packed = np.array(lane_mask, "<u4").view(np.uint8)
    return np.unpackbits(packed, bitorder="little").astype(np.bool_).reshape(cta_group, LANES)
