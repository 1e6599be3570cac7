"""The shared memory of one CTA.

It starts poisoned. A shadow array with one boolean per byte says which bytes were ever written. A read of an unwritten
byte is a Fault, because on a GPU the program would see whatever the previous kernel left there; `unwritten` may choose
another result.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emugpu.emulator.errors import Fault
from emugpu.emulator.memory.address_space import RESERVED_SHARED
from emugpu.emulator.memory.bytes import ALL_VALID, CHUNK, CHUNK_DTYPE, UNSIGNED, WORDS, Zeroed, aligned_bytes, round_up
from emugpu.emulator.memory.unwritten import FAULT, StoredOrigins, Unwritten

MBARRIER_BYTES = 8


class SharedMemory:
    """Addresses are byte offsets inside the CTA's window.

    `size` counts the reserved first KiB, then static and dynamic shared memory. The public arrays are views of the same
    two buffers: `data` (bytes), `valid` (one bool per byte), `chunks` (16-byte items). Set `valid` to False only
    through `poison` or `reset`, because ranges that were found valid are cached until then.
    """

    def __init__(self, size: int, unwritten: Unwritten = FAULT, zeroed: Zeroed = aligned_bytes) -> None:
        if size < RESERVED_SHARED:
            raise ValueError(f"shared memory size {size}: must include the {RESERVED_SHARED} reserved bytes")
        padded = round_up(size, CHUNK)
        self.size = size
        self._unwritten = unwritten
        self._origins = StoredOrigins()
        self.data = zeroed(padded)
        self.valid = zeroed(padded).view(np.bool_)
        self.chunks = self.data.view(CHUNK_DTYPE)
        self._valid_chunks = self.valid.view(CHUNK_DTYPE)
        self._full_chunks = size // CHUNK
        self._known_valid: set[Hashable] = set()
        self._mbarriers: dict[int, str] = {}
        self._mbarriers_first = padded
        self._mbarriers_end = 0

    def reset(self) -> None:
        """Marks all bytes as unwritten."""
        self.valid[:] = False
        self._known_valid.clear()

    def poison(self, offset: int, nbytes: int) -> None:
        """Marks a range as unwritten."""
        self.check_range(offset, nbytes)
        self.valid[offset : offset + nbytes] = False
        self._known_valid.clear()

    def undefine(self, offsets: NDArray[np.integer], stored: tuple[str, str]) -> None:
        """Marks bytes as undefined, because of a store: see `StoredOrigins.note`."""
        self.valid[offsets] = False
        self._known_valid.clear()
        self._origins.note(offsets, stored)

    # -- live mbarriers, which nothing may overwrite -----------------------------------------------

    def guard_mbarrier(self, offset: int, name: str) -> None:
        """Makes a write to the 8 bytes at `offset` a Fault from now on."""
        self._mbarriers[offset] = name
        # Bounds for a quick test. A released mbarrier does not shrink them.
        self._mbarriers_first = min(self._mbarriers_first, offset)
        self._mbarriers_end = max(self._mbarriers_end, offset + MBARRIER_BYTES)

    def release_mbarrier(self, offset: int) -> None:
        """Allows writes again, because the mbarrier has been invalidated."""
        self._mbarriers.pop(offset, None)

    def check_no_mbarrier(self, first: int, end: int, what: str = "written") -> None:
        """Raises Fault if a live mbarrier lies in the bytes first .. end - 1."""
        if end <= self._mbarriers_first or first >= self._mbarriers_end:
            return
        for offset, name in sorted(self._mbarriers.items()):
            if offset < end and first < offset + MBARRIER_BYTES:
                raise Fault(
                    f"shared memory {first:#x}..{end - 1:#x} is {what}, but the live {name} is there; "
                    "mbarriers are opaque, and mbarrier.inval must come first",
                    "mbarrier-overwritten",
                    offset,
                )

    @cached_property
    def _words(self) -> dict[int, NDArray[Any]]:
        return {n: self.data.view(dtype) for n, dtype in WORDS.items()}

    @cached_property
    def _valid_words(self) -> dict[int, NDArray[Any]]:
        return {n: self.valid.view(dtype) for n, dtype in WORDS.items()}

    # -- for code that accesses the arrays directly -------------------------------------------------

    @cached_property
    def addresses(self) -> tuple[int, int]:
        """The host addresses of `data` and `valid`."""
        return self.data.ctypes.data, self.valid.ctypes.data

    @property
    def mbarrier_bounds(self) -> tuple[int, int]:
        """The first byte and the end of the range that holds all live mbarriers."""
        return self._mbarriers_first, self._mbarriers_end

    # -- checks ------------------------------------------------------------------------------------

    def check_range(self, offset: int, nbytes: int, align: int = 1) -> None:
        """Raises Fault unless `nbytes` at `offset` are aligned and lie in the program's part of the window."""
        if offset % align:
            raise Fault(
                f"shared address {offset:#x} is not aligned to the {align} bytes of the access", "alignment", offset
            )
        if offset < RESERVED_SHARED:
            raise Fault(
                f"shared address {offset:#x} is in the first {RESERVED_SHARED} bytes "
                "of the CTA's window, which the system reserves",
                "address",
                offset,
            )
        if offset + nbytes > self.size:
            raise Fault(
                f"shared access of {nbytes} bytes at {offset:#x} ends at {offset + nbytes:#x}, "
                f"beyond the CTA's {self.size:#x} bytes of shared memory",
                "address",
                offset,
            )

    def check_valid(self, offset: int, nbytes: int) -> None:
        """Handles bytes of the range that were never written, as `unwritten` says."""
        valid = self.valid[offset : offset + nbytes]
        if not valid.all():
            first = offset + int(valid.argmin())
            why = f" (access of {nbytes} bytes at {offset:#x})"
            fault = self._origins.read(f"shared memory byte {first:#x}", first, why, first)
            self._unwritten.read(fault, self.data[offset : offset + nbytes], valid)

    def mark_valid(self, first: int, end: int, key: Hashable) -> None:
        """Marks the bytes first .. end - 1 as written. `key` names them, as in `check_chunks`."""
        if key not in self._known_valid:
            self.valid[first:end] = True
            self._known_valid.add(key)

    def check_chunks(self, index: NDArray[np.integer], key: Hashable = None) -> None:
        """Raises Fault unless every 16-byte chunk of `index` is in range. Handles bytes that were never written.

        A `key` that names this very index array turns the next check of it into a set look-up, until `poison` or
        `reset`.
        """
        if key is not None and key in self._known_valid:
            return
        self._check_chunk_range(index)
        if not self._valid_chunks.take(index).view(np.bool_).all():
            flat = np.asarray(index).ravel()
            bad = flat[~self.valid.reshape(-1, CHUNK)[flat].all(axis=1)].min()
            first = int(bad) * CHUNK + int(self.valid[bad * CHUNK : bad * CHUNK + CHUNK].argmin())
            fault = self._origins.read(f"shared memory byte {first:#x}", first, " (16-byte chunk access)", first)
            rows = (-1, CHUNK)
            self._unwritten.read(fault, self.data.reshape(rows), self.valid.reshape(rows), flat)
        elif key is not None:
            self._known_valid.add(key)

    def _check_chunk_range(self, index: NDArray[np.integer]) -> None:
        low, high = int(index.min()), int(index.max())
        if low * CHUNK < RESERVED_SHARED or high >= self._full_chunks:
            self.check_range(low * CHUNK, CHUNK)
            self.check_range(high * CHUNK, CHUNK)

    def _check_lanes(self, offsets: NDArray[np.integer], nbytes: int, reading: bool | None) -> None:
        """Raises the Fault of the first lane whose access breaks a rule, if any does.

        reading: True for a load, False for a store, None to check only the range.
        """
        for position, offset in enumerate(np.asarray(offsets).ravel().tolist()):
            try:
                self.check_range(offset, nbytes, nbytes)
                if reading:
                    self.check_valid(offset, nbytes)
                elif reading is False:
                    self.check_no_mbarrier(offset, offset + nbytes)
            except Fault as fault:
                fault.position = position
                raise

    # -- contiguous ranges -------------------------------------------------------------------------

    def read(self, offset: int, nbytes: int, align: int = 1) -> NDArray[np.uint8]:
        """Returns a view of `nbytes` written bytes. Copy it if it must outlive the next write."""
        self.check_range(offset, nbytes, align)
        self.check_valid(offset, nbytes)
        return self.data[offset : offset + nbytes]

    def write(self, offset: int, values: NDArray[np.uint8], align: int = 1) -> None:
        """Writes a one-dimensional array of bytes."""
        self.check_range(offset, values.size, align)
        self.check_no_mbarrier(offset, offset + values.size)
        self.data[offset : offset + values.size] = values
        self.valid[offset : offset + values.size] = True

    def load_int(self, offset: int, nbytes: int) -> int:
        """Loads one naturally aligned little-endian unsigned integer of 1, 2, 4 or 8 bytes."""
        if offset % nbytes or offset < RESERVED_SHARED or offset + nbytes > self.size:
            self.check_range(offset, nbytes, nbytes)
        if self._valid_words[nbytes][offset // nbytes] != ALL_VALID[nbytes]:
            self.check_valid(offset, nbytes)
        return int(self._words[nbytes][offset // nbytes])

    def store_int(self, offset: int, nbytes: int, value: int) -> None:
        """Stores the low `nbytes` bytes of `value`, naturally aligned."""
        if offset % nbytes or offset < RESERVED_SHARED or offset + nbytes > self.size:
            self.check_range(offset, nbytes, nbytes)
        if offset < self._mbarriers_end and offset + nbytes > self._mbarriers_first:
            self.check_no_mbarrier(offset, offset + nbytes)
        self._words[nbytes][offset // nbytes] = value & ((1 << 8 * nbytes) - 1)
        self._valid_words[nbytes][offset // nbytes] = ALL_VALID[nbytes]

    # -- one access per lane -----------------------------------------------------------------------

    def gather(self, offsets: NDArray[np.integer], nbytes: int) -> NDArray[Any]:
        """Loads one naturally aligned word (`WORDS`) for each element of `offsets`."""
        index = self._word_index(offsets, nbytes)
        try:
            if not np.count_nonzero(self._valid_words[nbytes].take(index) != ALL_VALID[nbytes]):
                return self._words[nbytes].take(index)
        except IndexError:
            pass
        self._check_lanes(offsets, nbytes, reading=True)
        return self._words[nbytes].take(index)

    def scatter(self, offsets: NDArray[np.integer], nbytes: int, values: NDArray[Any]) -> None:
        """Stores one naturally aligned word (`WORDS`) per lane. If lanes collide, the last one wins."""
        first, end = int(np.minimum.reduce(offsets)), int(np.maximum.reduce(offsets)) + nbytes
        unusual = int(np.bitwise_or.reduce(offsets)) % nbytes or first < RESERVED_SHARED or end > self.size
        if unusual or (first < self._mbarriers_end and end > self._mbarriers_first):
            self._check_lanes(offsets, nbytes, reading=False)
        index = offsets // nbytes
        self._words[nbytes][index] = values
        self._valid_words[nbytes][index] = ALL_VALID[nbytes]

    def peek(self, offsets: NDArray[np.integer], nbytes: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """Returns the result of `gather`, and the mask of its bits that were never written."""
        self._check_lanes(offsets, nbytes, reading=None)
        index = offsets // nbytes
        unwritten = self._valid_words[nbytes].take(index) ^ ALL_VALID[nbytes]
        return self._words[nbytes].take(index), unwritten * UNSIGNED[nbytes].type(0xFF)

    def _word_index(self, offsets: NDArray[np.integer], nbytes: int) -> NDArray[np.integer]:
        # A read needs no range check here: reserved bytes count as unwritten, and the array ends where the memory ends.
        negative = offsets.dtype.kind == "i" and int(offsets.min()) < 0
        if negative or (nbytes > 1 and np.count_nonzero(offsets & (nbytes - 1))):
            self._check_lanes(offsets, nbytes, reading=False)
        return offsets if nbytes == 1 else offsets >> (nbytes.bit_length() - 1)

    # -- 16-byte chunks ----------------------------------------------------------------------------

    def read_chunks(self, index: NDArray[np.integer]) -> NDArray[np.complex128]:
        """Returns the 16-byte items with these chunk numbers (byte offset / 16) in an opaque type, for `.view`."""
        self.check_chunks(index)
        return self.chunks.take(index)

    def write_chunks(
        self, index: NDArray[np.integer], items: NDArray[np.complex128], span: tuple[int, int] | None = None
    ) -> None:
        """Writes 16-byte items (any 16-byte type viewed as `CHUNK_DTYPE`) to the chunks numbered `index`.

        span: the first byte offset of all these chunks and the end of the last one, if they are known.
        """
        first, end = span or (int(index.min()) * CHUNK, int(index.max()) * CHUNK + CHUNK)
        if first < RESERVED_SHARED or end > self.size:
            self._check_chunk_range(index)
        if first < self._mbarriers_end and end > self._mbarriers_first:
            for chunk in np.asarray(index).ravel().tolist():
                self.check_no_mbarrier(chunk * CHUNK, (chunk + 1) * CHUNK)
        self.chunks[index] = items
        self._valid_chunks[index] = ALL_VALID[CHUNK]

    def peek_chunks(self, index: NDArray[np.integer]) -> tuple[NDArray[np.complex128], NDArray[np.complex128]]:
        """Returns the result of `read_chunks`, and the mask of its bits that were never written, as 16-byte items."""
        self._check_chunk_range(index)
        unwritten = np.where(self._valid_chunks.take(index).view(np.bool_), 0, 0xFF).astype(np.uint8)
        return self.chunks.take(index), unwritten.view(CHUNK_DTYPE)
