"""The elements of A and B that a multiplication adds to an element of its accumulator, as places in shared memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from emugpu.emulator.machine.events import Operation
from emugpu.emulator.memory.descriptors import Major
from emugpu.emulator.units.formats import ELEMENT_BITS
from emugpu.emulator.units.mma_instruction import QUADRANT, WORD_BYTES, Mma, scale_places
from emugpu.emulator.units.operands import Operand
from emugpu.emulator.units.wgmma import decode_wgmma

CHUNK = 16


@dataclass(frozen=True)
class ElementRun:
    """Consecutive elements along K, or one element.

    ``cta`` has them in its shared memory. ``chunk`` is the number of the 16-byte chunk, ``first`` the first element
    in it.
    """

    cta: int
    chunk: int
    first: int
    count: int


@dataclass(frozen=True)
class ScaleFactors:
    """Scale factors of a row in a word of a CTA's tensor memory: ``count`` bytes from ``byte`` on."""

    cta: int
    lane: int
    column: int
    byte: int
    count: int


@dataclass(frozen=True)
class ElementProduct:
    """One row of A times one column of B; None for an operand outside of shared memory.

    ``factors`` are those of A and of B.
    """

    a: tuple[ElementRun, ...] | None
    b: tuple[ElementRun, ...] | None
    accumulates: bool
    factors: tuple[ScaleFactors, ...] = ()


def tensor_product(operation: Operation, cta: int, lane: int, column: int) -> ElementProduct | None:
    """Returns what a tcgen05.mma adds to a word of a CTA's tensor memory, or None if it does not change that lane."""
    what, ctas = operation.detail["mma"], operation.detail["ctas"]
    if what.lane_mask is not None and any(what.lane_mask):
        word = what.lane_mask[4 * ctas.index(cta) + lane // 32]
        if word >> lane % 32 & 1:
            return None
    a, b = what.operands()
    n = what.shape().n
    blocks, _, _ = what.layout()
    for block in blocks:
        if block.lanes.start <= lane < block.lanes.stop and block.columns.start <= column < block.columns.stop:
            row = block.target[0].start + lane - block.lanes.start
            own = block.target[1].start + column - block.columns.start
            share = n // what.cta_group
            of_b = tuple(_runs(b, own % share, ctas[own // share]))
            factors = tuple(_factors(what, cta, lane, (row, own)))
            return ElementProduct(None if a is None else tuple(_runs(a, row, cta)), of_b, what.accumulate, factors)
    return None


def _factors(what: Mma, cta: int, lane: int, numbers: tuple[int, int]) -> Iterator[ScaleFactors]:
    """Yields the scale factors of a row of A and of a row of B, in the quadrant of a lane of D."""
    shape = what.shape()
    if what.vectors:
        for number, places, byte in zip(numbers, scale_places(what), (shape.a_id, shape.b_id), strict=True):
            own = int(places.lanes[lane // QUADRANT, number])
            for word, column in enumerate(places.columns[number].tolist()):
                first, end = (min(max(b - WORD_BYTES * word, 0), WORD_BYTES) for b in (byte, byte + what.vectors))
                yield ScaleFactors(cta, own, column, first, end - first)


def register_product(operation: Operation, warp: int, register: int, lane: int) -> ElementProduct:
    """Returns what a wgmma adds to an accumulator register of a lane (PTX ISA 9.7.15.5.1.1)."""
    detail, cta = operation.detail, operation.agent.cta
    decoded = decode_wgmma(detail["form"], detail["a"], detail["b"])
    row = 16 * (warp % 4) + lane // 4 + 8 * (register // 2 % 2)
    column = 8 * (register // 4) + 2 * (lane % 4) + register % 2
    a = None if decoded.form.a_in_registers else tuple(_runs(decoded.a, row, cta))
    return ElementProduct(a, tuple(_runs(decoded.b, column, cta)), bool(detail["keep"]))


def _runs(operand: Operand, row: int, cta: int) -> Iterator[ElementRun]:
    """Yields the elements of a row of an operand along K."""
    bits = ELEMENT_BITS[operand.element]
    size = CHUNK * 8 // (4 if operand.packed else max(8, bits))
    if operand.major is Major.K:
        for chunk in operand.positions[row].ravel().tolist():
            yield ElementRun(cta, chunk, 0, size)
        return
    for chunks in operand.positions:
        yield ElementRun(cta, int(chunks[row // size]), row % size, 1)
