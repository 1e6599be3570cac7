"""The memory of the emulated GPU: one unnamed file in windows, which the program maps, too.

    device    memory from cuMemAlloc; the program reaches it only by copies
    pinned    memory from cuMemAllocHost, at one address for program and kernels; counts as written
    tensors   memory of PyTorch's tensors (emugpu/pytorch), in the second half of the window of pinned memory
    constant  __constant__ variables, at generic addresses

Neither side can change the file's size. The host commits memory when it is touched; until then the file has holes.
If the host cannot back an access, the driver refuses it before it touches the memory, with a line that names the
amount that is left.
"""

from __future__ import annotations

import fcntl
import gc
import mmap
import os
import struct
from dataclasses import dataclass, replace

import numpy as np

from emugpu.driver.results import DriverError
from emugpu.emulator.memory.address_space import CONST_WINDOW
from emugpu.emulator.memory.bytes import CHUNK, round_up
from emugpu.emulator.memory.global_memory import Allocation, GlobalMemory
from emugpu.errors import CannotRun
from emugpu.host_memory import SPARE, free_bytes

PAGE = 4096
ALIGNMENT = 512
GUARD = 1 << 21
"""The number of addresses after each allocation that belong to no allocation."""


@dataclass(frozen=True)
class Window:
    """A range of addresses in a state space, and its place in the file.

    ``generic`` is the difference between its generic addresses, which programs use, and its own ones. ``fixed``: the
    program maps it at the same address.
    """

    name: str
    base: int
    size: int
    offset: int
    fixed: bool = False
    generic: int = 0

    def pack(self) -> bytes:
        return struct.pack("=4Q", self.base + self.generic, self.size, self.offset, self.fixed)

    def holds(self, address: int, nbytes: int = 1) -> bool:
        return self.base <= address and address + nbytes <= self.base + self.size


# Device addresses are above all addresses of a program (2^47 on x86-64); pinned memory is below. Some allocators take
# random addresses: if one has taken those of pinned memory, the program's side chooses others.
DEVICE = Window("device", 1 << 47, 1 << 40, 0)
LOWEST_PINNED = CONST_WINDOW + (1 << 40)
"""Below this address are the windows of other state spaces."""
PINNED = Window("pinned", 0x7100_0000_0000, 1 << 41, DEVICE.size, fixed=True)
CONSTANT = Window("constant", GUARD, 1 << 30, DEVICE.size + PINNED.size, generic=CONST_WINDOW)
WINDOWS = (DEVICE, PINNED, CONSTANT)
FILE_BYTES = sum(window.size for window in WINDOWS)


def pinned_at(base: int) -> Window:
    """Returns the window of pinned memory at ``base``. Raises ValueError if kernels cannot have it there."""
    if base % PAGE or not LOWEST_PINNED <= base <= DEVICE.base - PINNED.size:
        raise ValueError(f"pinned memory at {base:#x}")
    return replace(PINNED, base=base)


def halves(pinned: Window) -> tuple[Window, Window]:
    """Returns the part of the window at one address that is for pinned memory, and the one for tensors."""
    half = pinned.size // 2
    first = replace(pinned, size=half)
    return first, replace(first, name="tensor", base=pinned.base + half, offset=pinned.offset + half)


UNASKED = 1 << 24
"""The number of bytes that may be touched before the host's free memory is queried again."""

_F_ADD_SEALS, _SEAL_SEAL, _SEAL_SHRINK, _SEAL_GROW = 1033, 1, 2, 4


class HostMemoryShort(DriverError):
    """The host cannot back the memory that a program is about to touch. ``reason`` says so in one line."""

    def __init__(self, needed: int, have: int) -> None:
        super().__init__(
            "OUT_OF_MEMORY",
            f"{needed / 2**30:.1f} GiB more of this machine's memory are needed to back what the program uses of the "
            f"emulated GPU's, and {max(have, 0) / 2**30:.1f} GiB are free; use less, or a machine that has more",
        )


class MappedFile:
    """The file, mapped into this process. ``shadow`` says for each of its bytes whether it was written."""

    def __init__(self) -> None:
        if not hasattr(os, "memfd_create"):
            raise CannotRun("the emulated driver needs Linux")
        self.descriptor = os.memfd_create("emulated-gpu", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        shadow = os.memfd_create("emulated-gpu-shadow", os.MFD_CLOEXEC)
        try:
            for each in (self.descriptor, shadow):
                os.ftruncate(each, FILE_BYTES)
            fcntl.fcntl(self.descriptor, _F_ADD_SEALS, _SEAL_SHRINK | _SEAL_GROW | _SEAL_SEAL)
            self._data, self._shadow = _mapped(self.descriptor), _mapped(shadow)
        except OSError as error:
            for each in (self.descriptor, shadow):
                os.close(each)
            raise CannotRun(
                f"the emulated GPU's memory cannot be mapped ({error.strerror}); is the address space limited "
                "(ulimit -v)?"
            ) from error
        self._descriptors = (self.descriptor, shadow)
        self._unasked = 0
        self.data = np.frombuffer(self._data, np.uint8)
        self.shadow = np.frombuffer(self._shadow, np.uint8)

    def require(self, offset: int, nbytes: int) -> None:
        """Reserves host memory for bytes that are about to be touched, and for their shadow. Raises HostMemoryShort."""
        self._unasked += nbytes
        if self._unasked < UNASKED:
            return
        self._unasked = 0
        have = free_bytes() - SPARE
        if 2 * nbytes > have:
            needed = self.missing(offset, nbytes)
            if needed > have:
                raise HostMemoryShort(needed, have)

    def missing(self, offset: int, nbytes: int) -> int:
        """Returns how many bytes of host memory a range and its shadow still need."""
        return sum(_holes(each, offset, nbytes) for each in self._descriptors)

    def clear(self, offset: int, nbytes: int) -> None:
        """Returns the pages of a page-aligned range to the host; their contents are lost."""
        if nbytes:
            self._data.madvise(mmap.MADV_REMOVE, offset, nbytes)
            self._shadow.madvise(mmap.MADV_REMOVE, offset, nbytes)

    def close(self) -> None:
        """Drops the mappings, which end when nothing refers to them any more."""
        for each in self._descriptors:
            os.close(each)


def _mapped(descriptor: int) -> mmap.mmap:
    """Maps a whole file.

    A process has addresses for some twenty sessions. Those that have ended are in cycles of references, so they keep
    theirs until Python collects them.
    """
    try:
        return mmap.mmap(descriptor, FILE_BYTES)
    except OSError:
        gc.collect()
        return mmap.mmap(descriptor, FILE_BYTES)


def _holes(descriptor: int, offset: int, nbytes: int) -> int:
    """Returns how many bytes of a range of a file take no memory yet."""
    end, found = offset + nbytes, 0
    while offset < end:
        hole = os.lseek(descriptor, offset, os.SEEK_HOLE)
        if hole >= end:
            break
        try:
            offset = min(os.lseek(descriptor, hole, os.SEEK_DATA), end)
        except OSError:  # no data after the hole
            offset = end
        found += offset - hole
    return found


class WindowMemory(GlobalMemory):
    """Global memory in windows of a file: the emulator's allocations, at the places that programs ask for."""

    def __init__(self, file: MappedFile, home: Window, *others: Window) -> None:
        """``home`` is the window in which the emulator places its own allocations: a module's variables."""
        super().__init__(home.base)
        self._file = file
        self._home = home
        self._windows = (home, *others)
        self._count = 0
        self._next_in = {window.name: window.base for window in self._windows}
        self.reserved: dict[int, int] = {}
        """Ranges of addresses that are reserved for later mappings: their sizes by their first addresses."""

    def alloc(self, nbytes: int, name: str = "", at: int | None = None) -> int:
        assert at is None, "programs cannot choose"
        return self.alloc_in(self._home, nbytes, name)

    def alloc_in(self, window: Window, nbytes: int, name: str = "") -> int:
        """Allocates bytes in a window.

        Memory is poisoned. Pinned memory is not, because the program's writes to it are not seen.
        """
        if nbytes <= 0:
            raise DriverError("INVALID_VALUE", f"an allocation of {nbytes} bytes; at least one is needed")
        base = self.reserve(window, nbytes)
        self._count += 1
        self.put(window, base, nbytes, name or f"allocation {self._count}")
        return base

    def reserve(self, window: Window, nbytes: int, alignment: int = ALIGNMENT) -> int:
        """Returns addresses that no allocation has had before; if none are left, addresses that are free again."""
        base = round_up(self._next_in[window.name], max(alignment, ALIGNMENT))
        if not window.holds(base, nbytes):
            base = self._gap(window, nbytes, alignment)
        self._next_in[window.name] = max(self._next_in[window.name], round_up(base + nbytes + GUARD, GUARD))
        return base

    def _gap(self, window: Window, nbytes: int, alignment: int) -> int:
        taken = [(block.base, block.end) for block in self.allocations]
        taken += [(base, base + size) for base, size in self.reserved.items()]
        at = round_up(window.base, alignment)
        for base, end in sorted(taken):
            if window.holds(base):
                if at + nbytes + GUARD <= base:
                    return at
                at = max(at, round_up(end + GUARD, max(alignment, GUARD)))
        if not window.holds(at, nbytes):
            raise DriverError("OUT_OF_MEMORY", f"there are no {nbytes} addresses left in {window.name} memory")
        return at

    def put(self, window: Window, base: int, nbytes: int, name: str = "") -> Allocation:
        """Makes an allocation at an address of a window."""
        offset = window.offset + base - window.base
        padded = round_up(nbytes, CHUNK)
        block = Allocation.over(
            base, name, nbytes, self._file.data[offset : offset + padded], self._file.shadow[offset : offset + padded]
        )
        if window.name == PINNED.name:
            block.valid = None
        self.insert(block)
        return block

    def drop(self, block: Allocation) -> None:
        """Frees an allocation; the next allocation on its pages finds them poisoned."""
        self.remove(block)
        self._file.clear(self._place(block), round_up(block.data.size, PAGE))

    def require(self, block: Allocation, offset: int, nbytes: int) -> None:
        """Reserves host memory for a part of an allocation that is about to be touched. Raises HostMemoryShort."""
        self._file.require(self._place(block) + offset, nbytes)

    def _place(self, block: Allocation) -> int:
        """Returns the position in the file at which an allocation begins."""
        window = next(window for window in self._windows if window.holds(block.base))
        return window.offset + block.base - window.base

    def direct(self) -> list[Allocation]:
        """Returns the allocations that the host can back completely. The others get host memory as they are touched."""
        have = free_bytes() - SPARE
        found = []
        for block in self.allocations:
            needed = 2 * block.data.size
            if needed > have:
                needed = self._file.missing(self._place(block), block.data.size)
            if needed <= have:
                have -= needed
                found.append(block)
        return found

    def starting_at(self, address: int) -> Allocation | None:
        """Returns the allocation that begins at an address, or None."""
        block = self.holding(address)
        return block if block is not None and block.base == address else None
