"""Tensor memory of one CTA: storage, allocation, and the access shapes of tcgen05.ld and tcgen05.st.

PTX ISA 9.7.16.1 "Tensor Memory", 9.7.16.7 "Allocation", 9.7.16.8 "tcgen05.ld / st".
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache, reduce
from operator import or_
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from emugpu.emulator.errors import Fault
from emugpu.emulator.memory.bytes import CHUNK_DTYPE, UNSIGNED, Zeroed, aligned_bytes
from emugpu.emulator.memory.unwritten import FAULT, Unwritten

LANES = 128
COLUMNS = 512
CHUNK_COLUMNS = 4
"""Columns of one lane that make a chunk of 16 bytes."""
ALLOCATION_COLUMNS = 32
"""Columns are allocated in units of 32."""

_ADDRESS_LANE_SHIFT = 16


def split_address(address: int) -> tuple[int, int]:
    """Returns (lane, column) of a tensor memory address: lane in bits 31..16, column in bits 15..0."""
    return (address >> _ADDRESS_LANE_SHIFT) & 0xFFFF, address & 0xFFFF


class PendingWrite(Protocol):
    """A write to a range of columns that is deferred (see the MMA unit)."""

    first_column: int
    end_column: int
    count: int
    """The number of collected operations; 0 if nothing is pending."""

    def flush(self) -> None:
        """Carries out the write now."""

    def retire(self) -> None:
        """Removes it from every tensor memory in which it is registered."""


class UndefinedWords(NamedTuple):
    """Which words of a matrix [M, N] are undefined, and where that comes from, as `machine.poison` has it."""

    words: NDArray[np.bool_]
    origin: str


class TensorMemory:
    """128 lanes x 512 columns of 32 bits. `data[lane, column]` holds the bits, `valid` which words were ever written.

    `pending` lists deferred writes. `settle` carries out those that touch a range of columns, and every access through
    the methods below does so first.
    """

    def __init__(self, unwritten: Unwritten = FAULT, zeroed: Zeroed = aligned_bytes) -> None:
        self.unwritten = unwritten
        self.data = zeroed(4 * LANES * COLUMNS).view(np.uint32).reshape(LANES, COLUMNS)
        self.valid = zeroed(LANES * COLUMNS).view(np.bool_).reshape(LANES, COLUMNS)
        self._undefined: NDArray[np.int32] | None = None
        """By word: 0, or the number of the origin if a product has left an undefined result there, until it is valid
        again.
        """
        self._origins: dict[str, int] = {}
        self._flat = self.data.reshape(-1)
        self.chunks = self._flat.view(CHUNK_DTYPE)
        self._flat_valid = self.valid.reshape(-1)
        self.valid_chunks = self._flat_valid.view(UNSIGNED[CHUNK_COLUMNS])
        self.pending: list[PendingWrite] = []
        self._allocations: dict[int, int] = {}
        self._allocated = np.zeros(COLUMNS // ALLOCATION_COLUMNS, np.bool_)
        self._allocated_mask = 0
        self._smallest_allocation = COLUMNS
        self._relinquished = False
        self._readable = np.zeros(1, np.int64)

    # -- for code that accesses the arrays directly -------------------------------------------------

    @cached_property
    def addresses(self) -> tuple[int, int, int]:
        """The host addresses of `data`, `valid` and the mask of units that are allocated and have no pending write."""
        return self.data.ctypes.data, self.valid.ctypes.data, self._readable.ctypes.data

    def note_readable(self) -> None:
        """Updates the mask of readable units after a change of allocations or pending writes."""
        pending = [_unit_mask(w.first_column, w.end_column) for w in self.pending if w.count]
        self._readable[0] = self._allocated_mask & ~reduce(or_, pending, 0)

    # -- allocation --------------------------------------------------------------------------------

    def allocate(self, ncols: int) -> int | None:
        """Returns the first column of `ncols` newly allocated, poisoned columns, or None if no block is free now.

        Blocks lie at multiples of their size. Fault on a size that is no power of two in 32..512, on a size above that
        of an earlier allocation (PTX ISA 9.7.16.7.1), or after `relinquish`.
        """
        if not (ALLOCATION_COLUMNS <= ncols <= COLUMNS and ncols & (ncols - 1) == 0):
            raise Fault(
                f"tcgen05.alloc of {ncols} columns: must be a power of two in {ALLOCATION_COLUMNS}..{COLUMNS}",
                "tmem-alloc",
            )
        if self._relinquished:
            raise Fault(
                "tcgen05.alloc after tcgen05.relinquish_alloc_permit: the CTA gave up its right to allocate",
                "tmem-alloc",
            )
        if ncols > self._smallest_allocation:
            raise Fault(
                f"tcgen05.alloc of {ncols} columns after one of {self._smallest_allocation}: "
                "successive allocations of a CTA must not grow",
                "tmem-alloc",
            )
        for column in range(0, COLUMNS, ncols):
            mask = _unit_mask(column, column + ncols)
            if not self._allocated_mask & mask:
                self._allocated_mask |= mask
                self._allocations[column] = ncols
                self._smallest_allocation = ncols
                self.valid[:, column : column + ncols] = False
                if self._undefined is not None:
                    self._undefined[:, column : column + ncols] = 0
                self.note_readable()
                return column
        return None

    def deallocate(self, column: int, ncols: int) -> None:
        """Frees a block.

        Fault unless `allocate` returned `column` for the same size and the block is still allocated.
        """
        owned = self._allocations.get(column)
        if owned is None:
            raise Fault(
                f"tcgen05.dealloc of column {column}: no allocation starts there; {self._describe()}", "tmem-alloc"
            )
        if owned != ncols:
            raise Fault(
                f"tcgen05.dealloc of {ncols} columns at column {column}: the allocation has {owned} columns",
                "tmem-alloc",
            )
        self.retire(column, column + ncols)
        del self._allocations[column]
        self._allocated_mask &= ~_unit_mask(column, column + ncols)
        self.note_readable()

    def relinquish(self) -> None:
        """Gives up the right to allocate."""
        self._relinquished = True

    def leaks(self) -> list[tuple[int, int]]:
        """Returns (first column, columns) of every block that is still allocated."""
        return sorted(self._allocations.items())

    def _describe(self) -> str:
        if not self._allocations:
            return "nothing is allocated"
        blocks = (f"{column}..{column + ncols - 1}" for column, ncols in self.leaks())
        return "allocated columns: " + ", ".join(blocks)

    def check_allocated(self, first: int, end: int, what: str) -> None:
        """Raises Fault unless columns first .. end - 1 exist and are allocated by this CTA."""
        if end > COLUMNS:
            raise Fault(f"{what} reaches tensor memory column {end - 1}; the last one is {COLUMNS - 1}", "tmem-alloc")
        mask = _unit_mask(first, end)
        if self._allocated_mask & mask != mask:
            raise Fault(
                f"{what} touches tensor memory columns {first}..{end - 1}: not allocated; {self._describe()}",
                "tmem-alloc",
            )

    def not_allocated(self, place: RegisterPlace) -> str:
        """Describes what an access touches outside the CTA's allocations; "" if nothing, or if there are none."""
        if not self._allocated_mask or self._allocated_mask & place.units == place.units:
            return ""
        return f"columns {place.first_column}..{place.end_column - 1}: not allocated; {self._describe()}"

    # -- deferred writes ----------------------------------------------------------------------------

    def _overlapping(self, first: int, end: int) -> list[PendingWrite]:
        return [w for w in self.pending if w.first_column < end and first < w.end_column]

    def make_readable(self, units: int) -> bool:
        """Carries out the pending writes on allocation units. Returns whether these can be accessed directly now."""
        first, end = (units & -units).bit_length() - 1, units.bit_length()
        self.settle(ALLOCATION_COLUMNS * first, ALLOCATION_COLUMNS * end)
        return not units & ~int(self._readable[0])

    def settle(self, first: int = 0, end: int = COLUMNS) -> None:
        """Carries out the pending writes on columns first .. end - 1."""
        for write in self._overlapping(first, end):
            write.flush()

    def retire(self, first: int, end: int) -> None:
        """Carries out the pending writes on these columns, and stops collecting writes for them."""
        for write in self._overlapping(first, end):
            write.flush()
            write.retire()

    # -- undefined results ---------------------------------------------------------------------------

    def undefine(self, lanes: slice, columns: slice, words: NDArray[np.bool_], origin: str) -> None:
        """Marks results of a product as undefined."""
        if self._undefined is None:
            self._undefined = np.zeros((LANES, COLUMNS), np.int32)
        self._undefined[lanes, columns][words] = self._origins.setdefault(origin, len(self._origins) + 1)
        self.valid[lanes, columns] &= ~words

    def is_undefined(self, lanes: slice, columns: slice) -> NDArray[np.bool_]:
        """Returns which words hold an undefined result of a product."""
        if self._undefined is None:
            return np.zeros(self.valid[lanes, columns].shape, np.bool_)
        found: NDArray[np.bool_] = (self._undefined[lanes, columns] != 0) & ~self.valid[lanes, columns]
        return found

    def _state(self, lane: int, column: int) -> str:
        """Returns what is wrong with a word that is not valid."""
        number = 0 if self._undefined is None else int(self._undefined[lane, column])
        return f", a product with {[*self._origins][number - 1]}" if number else ", which was never written"

    def check_accumulator(self, lanes: slice, columns: slice) -> None:
        """Handles words of a part of D that were never written, as `unwritten` says. A sum with an undefined result is
        undefined.
        """
        written = self.valid[lanes, columns] | self.is_undefined(lanes, columns)
        if not written.all():
            lane, column = (int(x) for x in np.argwhere(~written)[0])
            fault = Fault(
                f"tcgen05.mma adds to D at tensor memory lane {lanes.start + lane}, column {columns.start + column}"
                ", which was never written",
                "uninitialised",
            )
            self.unwritten.read(fault, self.data, self.valid, (lanes, columns), spreads=True)

    # -- tcgen05.ld and tcgen05.st -----------------------------------------------------------------

    def load(self, place: RegisterPlace) -> NDArray[np.uint32]:
        """Executes tcgen05.ld. Returns the registers of one warp, [registers, 32 threads]."""
        self._prepare(place)
        if np.count_nonzero(self._flat_valid.take(place.flat)) != place.flat.size:
            bad = int(place.flat[~self._flat_valid[place.flat]].min())
            lane, column = divmod(bad, COLUMNS)
            what = f"tcgen05.ld {place.shape} reads tensor memory lane {lane}, column {column}"
            fault = Fault(what + self._state(lane, column), "uninitialised")
            self.unwritten.read(fault, self._flat, self._flat_valid, place.flat)
        if not place.packed:
            return self._flat.take(place.flat)
        low, high = self._flat.take(place.flat) & 0xFFFF
        packed: NDArray[np.uint32] = low | (high << 16)
        return packed

    def peek(self, place: RegisterPlace) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
        """Returns the result of `load`, and the mask of its bits that were never written."""
        values, missing = self._flat.take(place.flat), np.where(self._flat_valid.take(place.flat), 0, 0xFFFFFFFF)
        if place.packed:
            values, missing = (part[0] & 0xFFFF | (part[1] & 0xFFFF) << 16 for part in (values, missing))
        return values, missing.astype(np.uint32)

    def forget(self, place: RegisterPlace, undefined: NDArray[np.uint32]) -> None:
        """Marks the words with undefined bits of a store as unwritten. `undefined`: the bits, as stored."""
        if place.packed:
            undefined = np.stack([undefined & 0xFFFF, undefined >> 16])
        self._flat_valid[place.flat[undefined != 0]] = False

    def store(self, place: RegisterPlace, registers: NDArray[np.uint32]) -> None:
        """Executes tcgen05.st: writes the registers [registers, 32 threads] of one warp."""
        self._prepare(place)
        if place.packed:
            registers = np.stack([registers & 0xFFFF, registers >> 16])
        if registers.shape != place.flat.shape:
            raise Fault(
                f"tcgen05.st {place.shape} takes {place.flat.shape[-2]} registers of 32 threads, "
                f"got an array of shape {registers.shape}"
            )
        self._flat[place.flat] = registers
        self._flat_valid[place.flat] = True

    def _prepare(self, place: RegisterPlace) -> None:
        if not self._allocated_mask:
            self.check_allocated(place.first_column, place.end_column, "this access")
        if self.pending:
            self.settle(place.first_column, place.end_column)


def _unit_mask(first: int, end: int) -> int:
    """Returns a mask with bit u set for every allocation unit u that columns first .. end - 1 touch."""
    low, high = first // ALLOCATION_COLUMNS, -(-end // ALLOCATION_COLUMNS)
    return (1 << high) - (1 << low)


class _Shape(NamedTuple):
    registers: int
    """The number of registers of .x1."""
    largest: int
    """The largest N of .xN."""
    lane_alignment: int


SHAPES = {
    "32x32b": _Shape(1, 128, 32),
    "16x64b": _Shape(1, 128, 16),
    "16x128b": _Shape(2, 64, 16),
    "16x256b": _Shape(4, 32, 16),
    "16x32bx2": _Shape(1, 128, 16),
}


def _position(shape: str, t: NDArray[Any], i: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Returns (lane, column) of thread t's register i relative to the access (PTX ISA 9.7.16.2.3).

    For 16x32bx2 the split is left out: threads 16 and up start at a column of their own.
    """
    match shape:
        case "16x64b":
            lane, column = t // 4 + 8 * (t % 2), 2 * i + t // 2 % 2
        case "16x128b":
            lane, column = t // 4 + 8 * (i % 2), t % 4 + 4 * (i // 2)
        case "16x256b":
            lane, column = t // 4 + 8 * (i // 2 % 2), 2 * (t % 4) + i % 2 + 8 * (i // 4)
        case "16x32bx2":
            lane, column = t % 16, i
        case _:
            lane, column = t, i
    lane, column, _ = np.broadcast_arrays(lane, column, t + i)
    return lane, column


@lru_cache(maxsize=64)
def first_register(shape: str, warp_in_group: int) -> NDArray[np.uint32]:
    """Returns the flat indices of a warp's first register in an access to address 0.

    `parts_of` gives the other ones.
    """
    lane, column = _position(shape, np.arange(32), np.zeros(1, np.intp))
    return np.asarray((32 * warp_in_group + lane) * COLUMNS + column, np.uint32)


def parts_of(shape: str, registers: int) -> list[int]:
    lane, column = _position(shape, np.zeros(1, np.intp), np.arange(registers))
    return [int(part) for part in lane * COLUMNS + column]


@dataclass(frozen=True, eq=False)
class RegisterPlace:
    """The place of an access's registers.

    flat: the flat indices (lane * 512 + column), [registers, 32 threads], or [low and high half, registers, 32] if
    packed. shape: as in ".16x256b.x4". lanes, first_column, end_column: the range that they span. units: mask of the
    allocation units that they touch.
    """

    shape: str
    flat: NDArray[np.intp]
    packed: bool
    lanes: range
    first_column: int
    end_column: int
    units: int


@lru_cache(maxsize=2048)
def place(
    shape: str, num: int, address: int, warp_in_group: int, pack16: bool = False, half_split: int = 0
) -> RegisterPlace:
    """Returns the place of the registers of one warp's tcgen05.ld or tcgen05.st. Fault on operands that do not exist.

    Args:
        shape: "32x32b", "16x64b", "16x128b", "16x256b" or "16x32bx2".
        num: the .xN multiplier.
        address: tensor memory address that all threads pass.
        warp_in_group: warp index modulo 4, which decides which 32 lanes the warp can access.
        pack16: `.pack::16b` or `.unpack::16b`: the low halves of two neighbouring columns in one register.
        half_split: immHalfSplitoff of 16x32bx2, in columns.
    """
    rule = SHAPES.get(shape)
    if rule is None:
        raise Fault(f"tensor memory access shape {shape}: must be one of {', '.join(SHAPES)}")
    if not (1 <= num <= rule.largest and num & (num - 1) == 0):
        raise Fault(f"tensor memory access {shape}.x{num}: .xN must be a power of two up to {rule.largest}")
    address_lane, column = split_address(address)
    if address_lane % rule.lane_alignment:
        raise Fault(
            f"tensor memory address {address:#x}: lane {address_lane} must be a multiple of "
            f"{rule.lane_alignment} for shape {shape}"
        )
    # A warp accesses only its own quadrant of lanes, whichever quadrant the address names.
    base_lane = 32 * (warp_in_group % 4) + address_lane % 32

    thread = np.arange(32)
    register = np.arange(num * rule.registers)[:, None]
    lanes, columns = _position(shape, thread, register)
    if pack16:
        columns = np.stack([2 * columns, 2 * columns + 1])
    columns = columns + column
    if shape == "16x32bx2":
        columns = columns + np.where(thread >= 16, half_split, 0)
    first, end = int(columns.min()), int(columns.max()) + 1
    if first < 0 or end > COLUMNS:
        raise Fault(
            f"tensor memory access {shape}.x{num} at column {column} reaches column {end - 1}; "
            f"the last is {COLUMNS - 1}"
        )
    flat = (base_lane + lanes) * COLUMNS + columns
    flat.setflags(write=False)
    units = 0
    for touched in np.unique(columns // ALLOCATION_COLUMNS).tolist():
        units |= 1 << touched
    spanned = range(int(flat.min()) // COLUMNS, int(flat.max()) // COLUMNS + 1)
    return RegisterPlace(f"{shape}.x{num}", flat.astype(np.intp), pack16, spanned, first, end, units)
