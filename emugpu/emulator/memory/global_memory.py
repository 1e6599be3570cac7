"""The device's memory. Its allocations lie far apart, so that a stray address hits none of them.

It starts poisoned, like shared memory (see `shared`). Processes that are forked for a launch share its bytes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from emugpu.emulator.errors import Fault, UndefinedRead
from emugpu.emulator.memory.address_space import GLOBAL_WINDOW
from emugpu.emulator.memory.bytes import ALL_VALID, CHUNK, UNSIGNED, WORDS, common_bytes, round_up
from emugpu.emulator.memory.unwritten import FAULT, StoredOrigins, Unwritten


@contextmanager
def _of_lane(position: int) -> Iterator[None]:
    """Attributes a Fault that is raised inside to one element of a vector access."""
    try:
        yield
    except Fault as fault:
        fault.position = position
        raise


@dataclass(eq=False)
class Allocation:
    """One block of global memory. `data`: its bytes. `valid`: which of them were written (None if all were)."""

    base: int
    name: str
    data: NDArray[np.uint8]
    valid: NDArray[np.bool_] | None
    words: dict[int, NDArray[Any]] = field(repr=False)
    """The (padded) bytes, viewed as `WORDS` of 1, 2, 4, 8 and 16 bytes."""
    shadow: dict[int, NDArray[Any]] = field(repr=False)
    """`valid`, viewed in the same way."""
    origins: StoredOrigins = field(default_factory=StoredOrigins, repr=False)

    @classmethod
    def over(
        cls, base: int, name: str, nbytes: int, buffer: NDArray[np.uint8], shadow: NDArray[np.uint8]
    ) -> Allocation:
        """Returns a block over existing memory: its bytes, and a shadow of the same size. Both have whole chunks."""
        return cls(
            base=base,
            name=name,
            data=buffer[:nbytes],
            valid=shadow[:nbytes].view(np.bool_),
            words={n: buffer.view(dtype) for n, dtype in WORDS.items()},
            shadow={n: shadow.view(dtype) for n, dtype in WORDS.items()},
        )

    @property
    def end(self) -> int:
        """The first address behind the block."""
        return self.base + self.data.size

    def check_valid(self, offset: int, nbytes: int, unwritten: Unwritten) -> None:
        """Handles bytes of the range that were never written, as `unwritten` says."""
        if self.valid is None:
            return
        valid = self.valid[offset : offset + nbytes]
        if not valid.all():
            first = offset + int(valid.argmin())
            unwritten.read(self.undefined_read(first), self.data[offset : offset + nbytes], valid)

    def undefined_read(self, offset: int, why: str = "") -> UndefinedRead:
        """Returns the fault of a read of the byte at an offset, which is undefined. ``why`` adds to the message."""
        byte = f"global memory byte {self.base + offset:#x} (byte {offset} of '{self.name}')"
        return self.origins.read(byte, self.base + offset, why)

    def mark_valid(self, offset: int, nbytes: int) -> None:
        """Marks a range as written."""
        if self.valid is not None:
            self.valid[offset : offset + nbytes] = True

    def poisonable(self) -> NDArray[np.bool_]:
        """Returns `valid`, as an array even if all bytes were written, so that a part can be poisoned again."""
        if self.valid is None:
            self.valid = self.shadow[1][: self.data.size].view(np.bool_)
            self.valid[:] = True
        return self.valid


class GlobalMemory:
    """All allocations of a device, by address."""

    ALIGNMENT = 256
    GUARD = 1 << 21

    def __init__(self, first: int = GLOBAL_WINDOW) -> None:
        """first: the lowest address to allocate."""
        self.unwritten = FAULT
        """The policy for reads of unwritten bytes."""
        self.on_first_undefined: Callable[[Allocation], None] | None = None
        """Called when a byte becomes undefined in a block of which all bytes were written."""
        self.allocations: list[Allocation] = []
        self._bases: list[int] = []
        self._next = first

    def alloc(self, nbytes: int, name: str = "", at: int | None = None) -> int:
        """Allocates `nbytes` poisoned bytes. Returns their device address, a multiple of 256 unless `at` gives it."""
        if nbytes <= 0:
            raise ValueError(f"allocation of {nbytes} bytes ('{name}'): at least one byte is needed")
        padded = round_up(nbytes, CHUNK)
        name = name or f"allocation {len(self.allocations)}"
        base = self._next if at is None else at
        block = Allocation.over(base, name, nbytes, common_bytes(padded), common_bytes(padded))
        if at is not None:
            self._check_room(block)
        self.insert(block)
        self._next = max(self._next, round_up(block.end + self.GUARD, self.GUARD))
        return block.base

    def _check_room(self, block: Allocation) -> None:
        if block.base <= 0 or block.base % CHUNK:
            raise ValueError(f"allocation '{block.name}' at {block.base:#x}: must be a positive multiple of {CHUNK}")
        for other in self.allocations:
            if block.base < other.end and other.base < block.end:
                raise ValueError(f"allocation '{block.name}' at {block.base:#x} overlaps '{other.name}'")

    def insert(self, block: Allocation) -> None:
        """Adds a block to those that accesses may hit."""
        position = bisect_right(self._bases, block.base)
        self.allocations.insert(position, block)
        self._bases.insert(position, block.base)

    def remove(self, block: Allocation) -> None:
        """Removes a block, so that accesses to it are outside every allocation."""
        position = bisect_right(self._bases, block.base) - 1
        assert self.allocations[position] is block
        del self.allocations[position], self._bases[position]

    def upload(self, array: ArrayLike, name: str = "", at: int | None = None) -> int:
        """Copies an array (row-major) into a new allocation. Returns its device address."""
        source = np.ascontiguousarray(array)
        address = self.alloc(source.nbytes, name, at)
        block, _ = self.find(address, source.nbytes)
        block.data[:] = source.reshape(-1).view(np.uint8)
        block.valid = None
        return address

    def download(self, address: int, dtype: DTypeLike, shape: int | tuple[int, ...]) -> NDArray[Any]:
        """Returns a copy of device memory as an array. Fault if a byte of it was never written."""
        dtype = np.dtype(dtype)
        nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        return self.read(address, nbytes).copy().view(dtype).reshape(shape)

    def find(self, address: int, nbytes: int) -> tuple[Allocation, int]:
        """Returns the allocation that holds `nbytes` at `address`, and the byte offset in it. Fault if none does."""
        position = bisect_right(self._bases, address) - 1
        if position >= 0:
            block = self.allocations[position]
            offset = address - block.base
            if offset + nbytes <= block.data.size:
                return block, offset
        raise Fault(
            f"global access of {nbytes} bytes at {address:#x} is outside every allocation; " + self._nearest(address),
            "address",
        )

    def direct(self) -> list[Allocation]:
        """Returns the allocations whose arrays native code may access directly during a launch."""
        return self.allocations

    def ranges(self) -> tuple[tuple[str, int, int], ...]:
        """Returns (name, first address, bytes) of every allocation."""
        return tuple((block.name, block.base, block.data.size) for block in self.allocations)

    def holding(self, address: int) -> Allocation | None:
        """Returns the allocation that holds an address, or None."""
        position = bisect_right(self._bases, address) - 1
        if position >= 0 and address < self.allocations[position].end:
            return self.allocations[position]
        return None

    def name_of(self, address: int) -> str:
        """Returns the name of the allocation that holds an address, with the byte offset in it, or ""."""
        block = self.holding(address)
        return f"'{block.name}' + {address - block.base}" if block is not None else ""

    def _nearest(self, address: int) -> str:
        if not self.allocations:
            return "nothing is allocated"
        block = min(self.allocations, key=lambda b: max(b.base - address, address - b.end, 0))
        return f"the nearest is '{block.name}' at {block.base:#x} .. {block.end - 1:#x}"

    @staticmethod
    def _check_aligned(address: int, align: int) -> None:
        if address % align:
            raise Fault(f"global address {address:#x} is not aligned to the {align} bytes of the access", "alignment")

    def read(self, address: int, nbytes: int, align: int = 1) -> NDArray[np.uint8]:
        """Returns a view of `nbytes` written bytes. Copy it if it must outlive the next write."""
        self._check_aligned(address, align)
        block, offset = self.find(address, nbytes)
        block.check_valid(offset, nbytes, self.unwritten)
        return block.data[offset : offset + nbytes]

    def write(self, address: int, values: NDArray[np.uint8], align: int = 1) -> None:
        """Writes a one-dimensional array of bytes."""
        self._check_aligned(address, align)
        block, offset = self.find(address, values.size)
        block.data[offset : offset + values.size] = values
        block.mark_valid(offset, values.size)

    def fill(self, address: int, value: int, nbytes: int) -> None:
        """Writes one byte's value to `nbytes` bytes."""
        block, offset = self.find(address, nbytes)
        block.data[offset : offset + nbytes] = value
        block.mark_valid(offset, nbytes)

    def load_int(self, address: int, nbytes: int) -> int:
        """Loads one naturally aligned little-endian unsigned integer of 1, 2, 4 or 8 bytes."""
        return int.from_bytes(self.read(address, nbytes, nbytes).tobytes(), "little")

    def store_int(self, address: int, nbytes: int, value: int) -> None:
        """Stores the low `nbytes` bytes of `value`, naturally aligned."""
        low = value & ((1 << 8 * nbytes) - 1)
        self.write(address, np.frombuffer(low.to_bytes(nbytes, "little"), np.uint8), nbytes)

    def gather(self, addresses: NDArray[np.integer], nbytes: int) -> NDArray[Any]:
        """Loads one naturally aligned word (`WORDS`) for each element of `addresses`."""
        hit = self._one_block(addresses, nbytes)
        if hit is None:
            values = []
            for position, address in enumerate(addresses.tolist()):
                with _of_lane(position):
                    values.append(self.read(address, nbytes, nbytes).tobytes())
            return np.frombuffer(b"".join(values), WORDS[nbytes])
        block, offsets = hit
        index = offsets >> (nbytes.bit_length() - 1)
        if block.valid is not None and not (block.shadow[nbytes].take(index) == ALL_VALID[nbytes]).all():
            for position, offset in enumerate(offsets.tolist()):
                with _of_lane(position):
                    block.check_valid(offset, nbytes, self.unwritten)
        return block.words[nbytes].take(index)

    def scatter(self, addresses: NDArray[np.integer], nbytes: int, values: NDArray[np.unsignedinteger]) -> None:
        """Stores one naturally aligned integer per lane. If lanes collide, the last one wins."""
        hit = self._one_block(addresses, nbytes)
        if hit is None:
            each = np.broadcast_to(values, addresses.shape)
            for position, address in enumerate(addresses.tolist()):
                with _of_lane(position):
                    self.store_int(address, nbytes, int(each[position]))
            return
        block, offsets = hit
        index = offsets >> (nbytes.bit_length() - 1)
        block.words[nbytes][index] = values
        if block.valid is not None:
            block.shadow[nbytes][index] = ALL_VALID[nbytes]

    def peek(self, addresses: NDArray[np.integer], nbytes: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """Returns the result of `gather`, and the mask of its bits that were never written."""
        values, missing = [], []
        for position, address in enumerate(addresses.tolist()):
            with _of_lane(position):
                self._check_aligned(address, nbytes)
                block, offset = self.find(address, nbytes)
            there = slice(offset, offset + nbytes)
            written = np.ones(nbytes, np.uint8) if block.valid is None else block.valid[there].view(np.uint8)
            values.append(block.data[there].tobytes())
            missing.append(((written ^ 1) * np.uint8(0xFF)).tobytes())
        dtype = UNSIGNED[nbytes]
        return np.frombuffer(b"".join(values), dtype), np.frombuffer(b"".join(missing), dtype)

    def undefine(self, addresses: NDArray[np.integer], stored: tuple[str, str]) -> None:
        """Marks bytes as undefined, because of a store: see `StoredOrigins.note`."""
        while addresses.size:
            block, _ = self.find(int(addresses[0]), 1)
            here = (addresses >= block.base) & (addresses < block.end)
            is_first = block.valid is None
            block.poisonable()[addresses[here] - block.base] = False
            if is_first and self.on_first_undefined is not None:
                self.on_first_undefined(block)
            block.origins.note(addresses[here], stored)
            addresses = addresses[~here]

    def _one_block(self, addresses: NDArray[np.integer], nbytes: int) -> tuple[Allocation, NDArray[np.int64]] | None:
        """Returns the allocation that holds all addresses, and the offsets in it, or None. Checks the alignment."""
        merged = int(np.bitwise_or.reduce(addresses))
        if merged & (nbytes - 1):
            for position, address in enumerate(addresses.tolist()):
                with _of_lane(position):
                    self._check_aligned(address, nbytes)
        low, high = int(np.minimum.reduce(addresses)), int(np.maximum.reduce(addresses))
        position = bisect_right(self._bases, low) - 1
        if position < 0 or high + nbytes > self.allocations[position].end:
            return None
        block = self.allocations[position]
        return block, (addresses - addresses.dtype.type(block.base)).astype(np.int64)
