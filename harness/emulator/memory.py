"""Byte-addressed memories of the emulated GPU: one CTA's shared memory, and the device's global memory.

Both start poisoned. A shadow array of booleans, one per byte, says which bytes were ever written; a read
that meets an unwritten byte is a Fault, because the program would see whatever the previous kernel left
there.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from harness.emulator.errors import Fault

RESERVED_SHARED_BYTES = 1024
"""The system owns the first KiB of every CTA's shared window; a program's first symbol lands behind it."""

CHUNK = 16
"""Bytes of the unit in which TMA, matrix descriptors and ldmatrix/stmatrix move shared memory."""

UNSIGNED: dict[int, np.dtype[Any]] = {
    1: np.dtype(np.uint8),
    2: np.dtype(np.uint16),
    4: np.dtype(np.uint32),
    8: np.dtype(np.uint64),
}
CHUNK_DTYPE = np.dtype(np.complex128)
"""Any 16-byte type will do to move chunks whole; NumPy's take and put are fastest on a native one."""

_ALL_VALID = {1: 0x01, 2: 0x0101, 4: 0x01010101, 8: 0x0101010101010101}


def aligned_bytes(nbytes: int, alignment: int = 64) -> NDArray[np.uint8]:
    """Zeroed bytes at a host address that is a multiple of `alignment`, as wider views need."""
    raw = np.zeros(nbytes + alignment, np.uint8)
    skip = -raw.ctypes.data % alignment
    return raw[skip : skip + nbytes]


def _round_up(value: int, step: int) -> int:
    return -(-value // step) * step


class SharedMemory:
    """The shared memory of one CTA. Addresses are byte offsets inside the CTA's window.

    `size` counts the reserved first KiB, then static and dynamic shared memory. Public arrays, all views of
    the same two buffers: `data` (bytes), `valid` (bool per byte), `chunks` (16-byte items). Change `valid`
    to False only through `poison` or `reset`: ranges found valid are remembered until then.
    """

    def __init__(self, size: int) -> None:
        if size < RESERVED_SHARED_BYTES:
            raise ValueError(f"shared memory size {size}: must include the {RESERVED_SHARED_BYTES} reserved bytes")
        padded = _round_up(size, CHUNK)
        self.size = size
        self.data = aligned_bytes(padded)
        self.valid = aligned_bytes(padded).view(np.bool_)
        self.chunks = self.data.view(CHUNK_DTYPE)
        self._valid_chunks = self.valid.view(CHUNK_DTYPE)
        self._words = {n: self.data.view(dtype) for n, dtype in UNSIGNED.items()}
        self._valid_words = {n: self.valid.view(dtype) for n, dtype in UNSIGNED.items()}
        self._full_chunks = size // CHUNK
        self._known_valid: set[Hashable] = set()

    def reset(self) -> None:
        """Forget everything that was written."""
        self.valid[:] = False
        self._known_valid.clear()

    def poison(self, offset: int, nbytes: int) -> None:
        """Forget what was written to a range."""
        self.check_range(offset, nbytes)
        self.valid[offset : offset + nbytes] = False
        self._known_valid.clear()

    # -- checks ------------------------------------------------------------------------------------

    def check_range(self, offset: int, nbytes: int, align: int = 1) -> None:
        """Fault unless `nbytes` at `offset` lie in the program's part of the window, aligned."""
        if offset % align:
            raise Fault(f"shared address {offset:#x} is not aligned to the {align} bytes of the access")
        if offset < RESERVED_SHARED_BYTES:
            raise Fault(
                f"shared address {offset:#x} is in the first {RESERVED_SHARED_BYTES} bytes "
                "of the CTA's window, which the system reserves"
            )
        if offset + nbytes > self.size:
            raise Fault(
                f"shared access of {nbytes} bytes at {offset:#x} ends at {offset + nbytes:#x}, "
                f"beyond the CTA's {self.size:#x} bytes of shared memory"
            )

    def check_valid(self, offset: int, nbytes: int) -> None:
        """Fault if a byte of the range was never written."""
        valid = self.valid[offset : offset + nbytes]
        if not valid.all():
            first = offset + int(valid.argmin())
            raise Fault(
                f"shared memory byte {first:#x} is read but was never written (access of {nbytes} bytes at {offset:#x})"
            )

    def check_chunks(self, index: NDArray[np.integer], key: Hashable = None) -> None:
        """Fault unless every 16-byte chunk of `index` is in range and fully written.

        A `key` that names this very index array makes the next check of it a set look-up, until `poison` or
        `reset`.
        """
        if key is not None and key in self._known_valid:
            return
        self._check_chunk_range(index)
        if not self._valid_chunks.take(index).view(np.bool_).all():
            flat = np.asarray(index).ravel()
            bad = flat[~self.valid.reshape(-1, CHUNK)[flat].all(axis=1)].min()
            first = int(bad) * CHUNK + int(self.valid[bad * CHUNK : bad * CHUNK + CHUNK].argmin())
            raise Fault(f"shared memory byte {first:#x} is read but was never written (16-byte chunk access)")
        if key is not None:
            self._known_valid.add(key)

    def _check_chunk_range(self, index: NDArray[np.integer]) -> None:
        low, high = int(index.min()), int(index.max())
        if low * CHUNK < RESERVED_SHARED_BYTES or high >= self._full_chunks:
            self.check_range(low * CHUNK, CHUNK)
            self.check_range(high * CHUNK, CHUNK)

    def _explain_vector(self, offsets: NDArray[np.integer], nbytes: int, reading: bool) -> Fault:
        """The Fault of the first lane whose access breaks a rule (called only when some lane's does)."""
        for offset in np.asarray(offsets).ravel().tolist():
            try:
                self.check_range(offset, nbytes, nbytes)
                if reading:
                    self.check_valid(offset, nbytes)
            except Fault as fault:
                return fault
        raise AssertionError("a vector access was refused although every lane is legal")

    # -- contiguous ranges -------------------------------------------------------------------------

    def read(self, offset: int, nbytes: int, align: int = 1) -> NDArray[np.uint8]:
        """A view of `nbytes` written bytes. Copy it if it must outlive the next write."""
        self.check_range(offset, nbytes, align)
        self.check_valid(offset, nbytes)
        return self.data[offset : offset + nbytes]

    def write(self, offset: int, values: NDArray[np.uint8], align: int = 1) -> None:
        """Write a one-dimensional array of bytes."""
        self.check_range(offset, values.size, align)
        self.data[offset : offset + values.size] = values
        self.valid[offset : offset + values.size] = True

    def load_int(self, offset: int, nbytes: int) -> int:
        """One naturally aligned little-endian unsigned integer of 1, 2, 4 or 8 bytes."""
        if offset % nbytes or offset < RESERVED_SHARED_BYTES or offset + nbytes > self.size:
            self.check_range(offset, nbytes, nbytes)
        if self._valid_words[nbytes][offset // nbytes] != _ALL_VALID[nbytes]:
            self.check_valid(offset, nbytes)
        return int(self._words[nbytes][offset // nbytes])

    def store_int(self, offset: int, nbytes: int, value: int) -> None:
        """Store the low `nbytes` bytes of `value`, naturally aligned."""
        if offset % nbytes or offset < RESERVED_SHARED_BYTES or offset + nbytes > self.size:
            self.check_range(offset, nbytes, nbytes)
        self._words[nbytes][offset // nbytes] = value & ((1 << 8 * nbytes) - 1)
        self._valid_words[nbytes][offset // nbytes] = _ALL_VALID[nbytes]

    # -- one access per lane -----------------------------------------------------------------------

    def gather(self, offsets: NDArray[np.integer], nbytes: int) -> NDArray[np.unsignedinteger]:
        """Load one naturally aligned unsigned integer of 1, 2, 4 or 8 bytes per element of `offsets`."""
        index = self._word_index(offsets, nbytes, reading=True)
        try:
            if (self._valid_words[nbytes].take(index) == _ALL_VALID[nbytes]).all():
                return self._words[nbytes].take(index)
        except IndexError:
            pass
        raise self._explain_vector(offsets, nbytes, reading=True)

    def scatter(self, offsets: NDArray[np.integer], nbytes: int, values: NDArray[np.unsignedinteger]) -> None:
        """Store one naturally aligned integer per lane; where lanes collide, the last one stays."""
        index = self._word_index(offsets, nbytes, reading=False)
        self._words[nbytes][index] = values
        self._valid_words[nbytes][index] = _ALL_VALID[nbytes]

    def _word_index(self, offsets: NDArray[np.integer], nbytes: int, reading: bool) -> NDArray[np.integer]:
        # Offsets or-ed together show in one reduction whether any is negative or misaligned. Unwritten
        # bytes, which include the reserved ones, stop a read by themselves; a write needs its lower bound
        # checked.
        merged = int(np.bitwise_or.reduce(offsets))
        bad = merged < 0 or merged & (nbytes - 1)
        if not bad and not reading:
            bad = int(offsets.min()) < RESERVED_SHARED_BYTES or int(offsets.max()) + nbytes > self.size
        if bad:
            raise self._explain_vector(offsets, nbytes, reading)
        return offsets if nbytes == 1 else offsets >> (nbytes.bit_length() - 1)

    # -- 16-byte chunks ----------------------------------------------------------------------------

    def read_chunks(self, index: NDArray[np.integer]) -> NDArray[np.complex128]:
        """The 16-byte items number `index` (byte offset / 16), in an opaque type: `.view` what you need."""
        self.check_chunks(index)
        return self.chunks.take(index)

    def write_chunks(self, index: NDArray[np.integer], items: NDArray[np.complex128]) -> None:
        """Write 16-byte items (any 16-byte type viewed as `CHUNK_DTYPE`) to the chunks number `index`."""
        self._check_chunk_range(index)
        self.chunks[index] = items
        self._valid_chunks[index] = _VALID_CHUNK


_VALID_CHUNK = np.ones(CHUNK, np.bool_).view(CHUNK_DTYPE)[0]


@dataclass(eq=False)
class Allocation:
    """One block of global memory: `data` holds its bytes, `valid` which were written (None when all were)."""

    base: int
    name: str
    data: NDArray[np.uint8]
    valid: NDArray[np.bool_] | None
    words: dict[int, NDArray[np.unsignedinteger]] = field(repr=False)
    """The (padded) bytes viewed as unsigned integers of 1, 2, 4 and 8 bytes."""

    @property
    def end(self) -> int:
        """First address behind the block."""
        return self.base + self.data.size

    def check_valid(self, offset: int, nbytes: int) -> None:
        """Fault if a byte of the range was never written."""
        if self.valid is None:
            return
        valid = self.valid[offset : offset + nbytes]
        if not valid.all():
            first = offset + int(valid.argmin())
            raise Fault(
                f"global memory byte {self.base + first:#x} (byte {first} of '{self.name}') "
                "is read but was never written"
            )

    def mark_valid(self, offset: int, nbytes: int) -> None:
        """Note that a range has been written."""
        if self.valid is not None:
            self.valid[offset : offset + nbytes] = True


class GlobalMemory:
    """The device's memory: allocations far apart, so that a stray address hits none of them."""

    ALIGNMENT = 256
    FIRST_ADDRESS = 0x7F00_0000_0000
    GUARD = 1 << 21

    def __init__(self) -> None:
        self.allocations: list[Allocation] = []
        self._bases: list[int] = []
        self._next = self.FIRST_ADDRESS

    def alloc(self, nbytes: int, name: str = "") -> int:
        """Reserve `nbytes` poisoned bytes; returns their 256-byte aligned device address."""
        if nbytes <= 0:
            raise ValueError(f"allocation of {nbytes} bytes ('{name}'): at least one byte is needed")
        buffer = aligned_bytes(_round_up(nbytes, CHUNK))
        block = Allocation(
            base=self._next,
            name=name or f"allocation {len(self.allocations)}",
            data=buffer[:nbytes],
            valid=np.zeros(nbytes, np.bool_),
            words={n: buffer.view(dtype) for n, dtype in UNSIGNED.items()},
        )
        self.allocations.append(block)
        self._bases.append(block.base)
        self._next = _round_up(block.end + self.GUARD, self.GUARD)
        return block.base

    def upload(self, array: ArrayLike, name: str = "") -> int:
        """Copy an array (row-major) into a new allocation; returns its device address."""
        source = np.ascontiguousarray(array)
        address = self.alloc(source.nbytes, name)
        block = self.allocations[-1]
        block.data[:] = source.reshape(-1).view(np.uint8)
        block.valid = None
        return address

    def download(self, address: int, dtype: DTypeLike, shape: int | tuple[int, ...]) -> NDArray:
        """A copy of device memory as an array. Fault if a byte of it was never written."""
        dtype = np.dtype(dtype)
        nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        return self.read(address, nbytes).copy().view(dtype).reshape(shape)

    def find(self, address: int, nbytes: int) -> tuple[Allocation, int]:
        """The allocation that holds `nbytes` at `address`, and the byte offset in it. Fault if none does."""
        position = bisect_right(self._bases, address) - 1
        if position >= 0:
            block = self.allocations[position]
            offset = address - block.base
            if offset + nbytes <= block.data.size:
                return block, offset
        raise Fault(
            f"global access of {nbytes} bytes at {address:#x} is outside every allocation; " + self._nearest(address)
        )

    def _nearest(self, address: int) -> str:
        if not self.allocations:
            return "nothing is allocated"
        block = min(self.allocations, key=lambda b: max(b.base - address, address - b.end, 0))
        return f"the nearest is '{block.name}' at {block.base:#x} .. {block.end - 1:#x}"

    @staticmethod
    def _check_aligned(address: int, align: int) -> None:
        if address % align:
            raise Fault(f"global address {address:#x} is not aligned to the {align} bytes of the access")

    def read(self, address: int, nbytes: int, align: int = 1) -> NDArray[np.uint8]:
        """A view of `nbytes` written bytes. Copy it if it must outlive the next write."""
        self._check_aligned(address, align)
        block, offset = self.find(address, nbytes)
        block.check_valid(offset, nbytes)
        return block.data[offset : offset + nbytes]

    def write(self, address: int, values: NDArray[np.uint8], align: int = 1) -> None:
        """Write a one-dimensional array of bytes."""
        self._check_aligned(address, align)
        block, offset = self.find(address, values.size)
        block.data[offset : offset + values.size] = values
        block.mark_valid(offset, values.size)

    def load_int(self, address: int, nbytes: int) -> int:
        """One naturally aligned little-endian unsigned integer of 1, 2, 4 or 8 bytes."""
        return int.from_bytes(self.read(address, nbytes, nbytes).tobytes(), "little")

    def store_int(self, address: int, nbytes: int, value: int) -> None:
        """Store the low `nbytes` bytes of `value`, naturally aligned."""
        low = value & ((1 << 8 * nbytes) - 1)
        self.write(address, np.frombuffer(low.to_bytes(nbytes, "little"), np.uint8), nbytes)

    def gather(self, addresses: NDArray[np.integer], nbytes: int) -> NDArray[np.unsignedinteger]:
        """Load one naturally aligned unsigned integer of 1, 2, 4 or 8 bytes per element of `addresses`."""
        hit = self._one_block(addresses, nbytes)
        if hit is None:
            values = [self.load_int(address, nbytes) for address in addresses.tolist()]
            return np.array(values, UNSIGNED[nbytes])
        block, offsets = hit
        if block.valid is not None:
            for byte in range(nbytes):
                if not block.valid.take(offsets + byte).all():
                    for offset in offsets.tolist():
                        block.check_valid(offset, nbytes)
        return block.words[nbytes].take(offsets // nbytes)

    def scatter(self, addresses: NDArray[np.integer], nbytes: int, values: NDArray[np.unsignedinteger]) -> None:
        """Store one naturally aligned integer per lane; where lanes collide, the last one stays."""
        hit = self._one_block(addresses, nbytes)
        if hit is None:
            for address, value in zip(addresses.tolist(), np.asarray(values).tolist(), strict=True):
                self.store_int(address, nbytes, value)
            return
        block, offsets = hit
        block.words[nbytes][offsets // nbytes] = values
        if block.valid is not None:
            for byte in range(nbytes):
                block.valid[offsets + byte] = True

    def _one_block(self, addresses: NDArray[np.integer], nbytes: int) -> tuple[Allocation, NDArray[np.int64]] | None:
        """The one allocation all lanes fall into with their offsets in it, or None; alignment is checked."""
        merged = int(np.bitwise_or.reduce(addresses))
        if merged & (nbytes - 1):
            for address in addresses.tolist():
                self._check_aligned(address, nbytes)
        low, high = int(addresses.min()), int(addresses.max())
        position = bisect_right(self._bases, low) - 1
        if position < 0 or high + nbytes > self.allocations[position].end:
            return None
        block = self.allocations[position]
        return block, (addresses - addresses.dtype.type(block.base)).astype(np.int64)
