"""The local memory of a warp. Each of its 32 threads has its own, at the same addresses."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from emugpu.emulator.errors import Fault
from emugpu.emulator.memory.bytes import ALL_VALID, CHUNK, UNSIGNED, aligned_bytes, round_up
from emugpu.emulator.memory.unwritten import FAULT, Unwritten

THREADS = 32
MOST = 512 << 10
"""The most bytes of a thread (CUDA Programming Guide, "Technical Specifications per Compute Capability")."""


def _fault(bad: NDArray[np.bool_], message: str, rule: str = "address") -> Fault:
    """Returns the fault of the first thread whose access is bad."""
    return Fault(message, rule, position=int(np.flatnonzero(bad)[0]))


class LocalMemory:
    """Local memory, which starts poisoned like shared memory.

    Addresses are byte offsets in a thread's frame, which `allocate` extends. tops: the end of each thread's frame.
    """

    def __init__(self, nbytes: int, unwritten: Unwritten = FAULT) -> None:
        self.tops = np.full(THREADS, nbytes, np.int64)
        self._unwritten = unwritten
        self._about = np.zeros(4, np.int64)
        self.address: int = self._about.ctypes.data
        """Where native code finds the addresses of the bytes and of their shadow, the bytes of a thread, and `tops`."""
        self._make_room(nbytes)

    def _make_room(self, nbytes: int) -> None:
        self._pitch = round_up(nbytes, CHUNK)
        data, valid = aligned_bytes(THREADS * self._pitch), aligned_bytes(THREADS * self._pitch)
        self._about[:] = data.ctypes.data, valid.ctypes.data, self._pitch, self.tops.ctypes.data
        self._words = {n: data.view(dtype) for n, dtype in UNSIGNED.items()}
        self._valid = {n: valid.view(dtype) for n, dtype in UNSIGNED.items()}

    def allocate(self, lanes: NDArray[np.intp], sizes: NDArray[np.int64], alignment: int) -> NDArray[np.int64]:
        """Extends the frames of some threads. Returns where their new bytes begin; these count as unwritten."""
        begin = -(-self.tops[lanes] // alignment) * alignment
        too_long = (sizes < 0) | (sizes > MOST - begin)
        if too_long.any():
            raise _fault(too_long, f"alloca of {int(sizes[too_long][0]):,} bytes: a thread has at most {MOST:,}")
        self.tops[lanes] = begin + sizes
        if self.tops.max() > self._pitch:
            held, written, pitch = self._words[1], self._valid[1], self._pitch
            self._make_room(2 * int(self.tops.max()))
            for new, old in ((self._words[1], held), (self._valid[1], written)):
                new.reshape(THREADS, self._pitch)[:, :pitch] = old.reshape(THREADS, pitch)
        for lane, first, size in zip(lanes.tolist(), begin.tolist(), sizes.tolist(), strict=True):
            self._valid[1].reshape(THREADS, self._pitch)[lane, first : first + size] = 0
        return begin

    def _index(self, lanes: NDArray[np.intp], offsets: NDArray[np.int64], nbytes: int) -> NDArray[np.int64]:
        misaligned = offsets % nbytes != 0
        if misaligned.any():
            at = f"0x{int(offsets[misaligned][0]):x}"
            raise _fault(
                misaligned, f"local address {at} is not aligned to the {nbytes} bytes of the access", "alignment"
            )
        outside = (offsets < 0) | (offsets > self.tops[lanes] - nbytes)
        if outside.any():
            at, size = f"0x{int(offsets[outside][0]):x}", int(self.tops[lanes][outside][0])
            raise _fault(outside, f"local access of {nbytes} bytes at {at} is outside the thread's {size} bytes")
        return (lanes * self._pitch + offsets) // nbytes

    def load(self, lanes: NDArray[np.intp], offsets: NDArray[np.int64], nbytes: int) -> NDArray[Any]:
        """Loads one naturally aligned unsigned integer for each of some threads."""
        index = self._index(lanes, offsets, nbytes)
        unwritten = self._valid[nbytes][index] != ALL_VALID[nbytes]
        if unwritten.any():
            at = int(offsets[unwritten][0])
            message = f"local memory of {nbytes} bytes at 0x{at:x} is read but was never written"
            fault = _fault(unwritten, message, "uninitialised")
            bytes_read = index[:, None] * nbytes + np.arange(nbytes)
            self._unwritten.read(fault, self._words[1], self._valid[1].view(np.bool_), bytes_read)
        return self._words[nbytes][index]

    def peek(
        self, lanes: NDArray[np.intp], offsets: NDArray[np.int64], nbytes: int
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        """Returns the result of `load`, and the mask of its bits that were never written."""
        index = self._index(lanes, offsets, nbytes)
        missing: NDArray[Any] = (self._valid[nbytes][index] ^ ALL_VALID[nbytes]) * UNSIGNED[nbytes].type(0xFF)
        return self._words[nbytes][index], missing

    def forget(self, lane: int, offset: int) -> None:
        """Marks a byte as unwritten."""
        self._valid[1][lane * self._pitch + offset] = 0

    def store(self, lanes: NDArray[np.intp], offsets: NDArray[np.int64], nbytes: int, values: Any) -> None:
        index = self._index(lanes, offsets, nbytes)
        self._words[nbytes][index] = values
        self._valid[nbytes][index] = ALL_VALID[nbytes]
