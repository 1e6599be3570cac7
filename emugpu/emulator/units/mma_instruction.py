"""One tcgen05.mma: its decoded descriptors, and the places of its operands and of D (PTX ISA 9.7.16.10)."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from emugpu.emulator.errors import Fault
from emugpu.emulator.memory.descriptors import InstructionDescriptor, decode, decode_sm100
from emugpu.emulator.memory.shared import SharedMemory
from emugpu.emulator.memory.tmem import LANES, TensorMemory, split_address
from emugpu.emulator.units.operands import Operand, operand

QUADRANT = 32
WORD_BYTES = 4


class TensorCoreCta(Protocol):
    """The parts of a CTA that the tensor core needs."""

    shared: SharedMemory
    tmem: TensorMemory


class TensorMemoryBlock(NamedTuple):
    """A rectangle of one CTA's tensor memory, and the part of D (the CTA's rows, all columns) that it holds."""

    lanes: slice
    columns: slice
    target: tuple[slice, slice]


@lru_cache(maxsize=1024)
def accumulator_layout(d_address: int, m: int, n: int, cta_group: int) -> tuple[list[TensorMemoryBlock], int, int]:
    """Returns the blocks of D in each CTA's tensor memory, and its first and one-past-last column.

    m=256, cta_group 2 (layout A) and m=128, cta_group 1 (D): row r in lane r. m=128, cta_group 2 (B): 64 rows per CTA,
    the right half of the columns in lanes 64 and up. m=64, cta_group 1 (F): 16 rows in each warp's 32 lanes, in the
    lower or the upper 16 as the address says. Source: PTX ISA 9.7.16.10.5.
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
        blocks = [TensorMemoryBlock(slice(0, 128), slice(column, column + n), (slice(0, 128), everything))]
    elif cta_group == 2:
        width = n // 2
        columns = slice(column, column + width)
        blocks = [
            TensorMemoryBlock(slice(64 * h, 64 * h + 64), columns, (slice(0, 64), slice(h * width, (h + 1) * width)))
            for h in range(2)
        ]
    else:
        width = n
        columns = slice(column, column + n)
        blocks = [
            TensorMemoryBlock(
                slice(32 * q + lane, 32 * q + lane + 16), columns, (slice(16 * q, 16 * q + 16), everything)
            )
            for q in range(4)
        ]
    return blocks, column, column + width


class Mma(NamedTuple):
    """One tcgen05.mma.

    a: descriptor, or tensor memory address if ``a_in_tmem``. vectors: scale factors for each row of an operand, 0
    without block scaling. scales: the addresses of the factors of A and B. shift: D is divided by 2^shift first.
    metadata: the address of the metadata that says which elements of a sparse A are kept.
    """

    kind: str
    d_address: int
    a: int
    a_in_tmem: bool
    b_descriptor: int
    idesc: int
    accumulate: bool
    cta_group: int
    lane_mask: tuple[int, ...] | None
    shift: int = 0
    weights: bool = False
    vectors: int = 0
    scales: tuple[int, int] = (0, 0)
    metadata: int | None = None

    def shape(self) -> InstructionDescriptor:
        return decode(self.kind, self.idesc, self.cta_group, self.weights, self.sparse)

    @property
    def sparse(self) -> bool:
        return self.metadata is not None

    @property
    def depth(self) -> int:
        """Elements along K, including the masked ones of a sparse A."""
        return self.shape().k * (2 if self.sparse else 1)

    def operands(self) -> tuple[Operand | None, Operand]:
        """Returns A (None if it is in tensor memory) and B of one CTA."""
        shape = self.shape()
        packed = self.kind in ("mxf4", "mxf4nvf4")
        a = None
        if not self.a_in_tmem:
            rows = shape.m // self.cta_group
            a = operand(decode_sm100(self.a, shape.is_k96), rows, shape.k, shape.a_major, shape.a_type, packed)
        columns, place = shape.n // self.cta_group, decode_sm100(self.b_descriptor, shape.is_k96)
        return a, operand(place, columns, self.depth, shape.b_major, shape.b_type, packed, 1 + self.sparse)

    def layout(self) -> tuple[list[TensorMemoryBlock], int, int]:
        """Returns the blocks of D in each CTA's tensor memory, and its first and one-past-last column."""
        shape = self.shape()
        if self.weights and shape.m < LANES:
            return _weights_layout(self.d_address, shape.m, shape.n)
        if self.sparse and shape.m == 128 and self.cta_group == 2:
            # Layout C: each CTA's 64 rows are laid out like those of M = 64.
            return accumulator_layout(self.d_address, 64, shape.n, 1)
        return accumulator_layout(self.d_address, shape.m, shape.n, self.cta_group)

    @property
    def a_columns(self) -> range:
        """Returns the columns of an A in tensor memory: a row has 32 bytes, or 48 with K = 96 (PTX ISA 9.7.16.10.4)."""
        first = split_address(self.a)[1]
        return range(first, first + (12 if self.shape().is_k96 else 8))

    @property
    def parts(self) -> int:
        """The parts of D's columns that lie one above the other, in lanes of their own."""
        return len({block.target[1].start for block in self.layout()[0]})

    @property
    def scaled(self) -> tuple[int, int]:
        """The rows of A in each CTA and the columns of B that have scale factors."""
        shape = self.shape()
        return shape.m // self.cta_group, shape.n

    @property
    def flops(self) -> int:
        shape = self.shape()
        return 2 * shape.m * shape.n * self.depth


@lru_cache(maxsize=256)
def _weights_layout(d_address: int, m: int, n: int) -> tuple[list[TensorMemoryBlock], int, int]:
    """Returns layouts E and G of ``.ws``: parts of the columns lie one above the other, as many as the rows allow."""
    lane, column = split_address(d_address)
    if lane:
        raise Fault(f"tcgen05.mma.ws D address {d_address:#x}: lane {lane} must be 0", "operand")
    parts = LANES // m
    width = n // parts
    blocks = [
        TensorMemoryBlock(
            slice(m * p, m * (p + 1)), slice(column, column + width), (slice(0, m), slice(p * width, (p + 1) * width))
        )
        for p in range(parts)
    ]
    return blocks, column, column + width


def a_lanes(what: Mma) -> NDArray[np.intp]:
    """Returns the lanes of the rows of an A in tensor memory, [parts, rows].

    They are the lanes of D, and both begin in the same one (PTX ISA 9.7.16.10.5). If parts of D's columns lie one above
    the other, in ``.ws`` and in a pair with M = 128, there are as many copies of A, and they may differ. FlashMLA's
    kernels for B200 multiply two halves of K at once that way (sparse prefill, 2026).
    """
    lane, wanted = split_address(what.a)[0], split_address(what.d_address)[0]
    if lane != wanted:
        raise Fault(f"tcgen05.mma A address {what.a:#x}: lane {lane} must be {wanted}, the lane of D", "operand")
    parts: dict[int, list[NDArray[np.intp]]] = {}
    for block in what.layout()[0]:
        parts.setdefault(block.target[1].start, []).append(np.arange(block.lanes.start, block.lanes.stop))
    return np.stack([np.concatenate(lanes) for lanes in parts.values()])


class ScalePlaces(NamedTuple):
    """Where the scale factors of rows of A or of columns of B lie.

    lanes: [4 copies, numbers]. columns: [numbers, words]; only with K = 96 the factors may lie in several words. spans:
    all columns, for each word.
    """

    lanes: NDArray[np.intp]
    columns: NDArray[np.intp]
    spans: tuple[slice, ...]


@lru_cache(maxsize=1024)
def scale_places(what: Mma) -> tuple[ScalePlaces, ScalePlaces]:
    """Returns the places of the scale factors of A and of B in each CTA (PTX ISA 9.7.16.10.7).

    Number r has its factors in lane r % 32 of each quadrant and in column r / 32. In layout B, a quadrant has only
    those columns of B that it multiplies, counted from 0, so there are two copies of each. The ISA does not say so; it
    is NVIDIA's layout (ScaleFactorDuplicated2by2 in CUTLASS's mma_traits_sm100_frag.hpp, and CuTe DSL's example
    2cta_mma_blockscale_m128.py, 2026).

    With K = 96, factors behind the last byte of a word go on in the word four columns behind it, or eight for more than
    128 columns of B. The ISA tells these two cases apart and shows them in figures only. The numbers are those of
    CUTLASS: tmem_sf_frg, and the steps of 6 or 3 factors in sm103_blockscaled_mma_warpspecialized.hpp (2026).
    """
    found, shape = [], what.shape()
    operands = zip(what.scales, what.scaled, (1, what.parts), (shape.a_id, shape.b_id), strict=True)
    for address, count, parts, byte in operands:
        part, number = np.divmod(np.arange(count), count // parts)
        copies = LANES // QUADRANT // parts
        quadrants = copies * part + np.arange(LANES // QUADRANT)[:, None] % copies
        lanes, first = QUADRANT * quadrants + number % QUADRANT, split_address(address)[1]
        words, apart = -(-(byte + what.vectors) // WORD_BYTES), LANES // QUADRANT * -(-count // LANES)
        starts = [first + apart * word for word in range(words)]
        columns = number[:, None] // QUADRANT + np.array(starts)
        spans = tuple(slice(start, start + int(number.max()) // QUADRANT + 1) for start in starts)
        found.append(ScalePlaces(lanes, columns, spans))
    return found[0], found[1]


def metadata_columns(what: Mma) -> slice:
    """Returns the columns of an MMA's metadata: two; for types of 16 and 32 bits, the one that the selector names."""
    assert what.metadata is not None
    column = split_address(what.metadata)[1]
    if what.kind in ("f16", "tf32"):
        column += what.idesc & 3
        return slice(column, column + 1)
    return slice(column, column + 2)
