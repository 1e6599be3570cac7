"""The common parts of shared and global memory: buffers, word sizes, 16-byte chunks, and shadow values."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

CHUNK = 16
"""TMA, matrix descriptors and ldmatrix/stmatrix move shared memory in units of this many bytes."""

UNSIGNED: dict[int, np.dtype[Any]] = {
    1: np.dtype(np.uint8),
    2: np.dtype(np.uint16),
    4: np.dtype(np.uint32),
    8: np.dtype(np.uint64),
}
CHUNK_DTYPE = np.dtype(np.complex128)
"""A 16-byte type for moving whole chunks. Any such type would do; NumPy's take and put are fastest on a native one."""

WORDS: dict[int, np.dtype[Any]] = UNSIGNED | {CHUNK: CHUNK_DTYPE}
"""The words that memories move for a lane in one step, by their bytes. A chunk is no integer: only its bytes count."""
ALL_VALID = {n: np.ones(n, np.uint8).view(word)[0] for n, word in WORDS.items()}
"""The shadow of a word whose bytes were all written, by the size of the word."""

_CACHE_LINE = 64
_LARGE = 1 << 20
Zeroed = Callable[[int], NDArray[np.uint8]]
"""A function that returns so many zeroed bytes."""


def aligned_bytes(nbytes: int) -> NDArray[np.uint8]:
    """Returns zeroed bytes at a host address that is a multiple of 64, as wider views need. Raises MemoryError.

    A large block comes from the system itself, which provides a page when it is touched and takes all of them back with
    the array. glibc's malloc would serve it from its heap once a block as large was freed (mallopt(3),
    M_MMAP_THRESHOLD): calloc then clears it, so all pages are there, and the heap keeps them.
    """
    if nbytes >= _LARGE:
        try:
            return np.frombuffer(mmap.mmap(-1, nbytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), np.uint8)
        except OSError as error:
            raise MemoryError(f"{nbytes} bytes: {error.strerror}") from None
    raw = np.zeros(nbytes + _CACHE_LINE, np.uint8)
    skip = -raw.ctypes.data % _CACHE_LINE
    return raw[skip : skip + nbytes]


class SpareBytes:
    """A source of zeroed bytes that reuses buffers no longer in use, because clearing costs less than new pages."""

    def __init__(self) -> None:
        self._spare: dict[int, list[NDArray[np.uint8]]] = {}

    def take(self, nbytes: int) -> NDArray[np.uint8]:
        spare = self._spare.get(nbytes)
        if not spare:
            return aligned_bytes(nbytes)
        found = spare.pop()
        found.fill(0)
        return found

    def give(self, *buffers: NDArray[Any]) -> None:
        for buffer in buffers:
            self._spare.setdefault(buffer.nbytes, []).append(buffer.reshape(-1).view(np.uint8))


def common_bytes(nbytes: int) -> NDArray[np.uint8]:
    """Returns zeroed, page-aligned bytes that later forked processes share with this one."""
    return np.frombuffer(mmap.mmap(-1, max(nbytes, 1)), np.uint8, nbytes)


def round_up(value: int, step: int) -> int:
    """Returns the smallest multiple of `step` that is not below `value`."""
    return -(-value // step) * step
