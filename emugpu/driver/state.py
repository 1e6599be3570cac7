"""The state of the emulated GPU: for all programs (Gpu), and for each process of a program (Session)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from emugpu.driver.gpu_model import GpuModel
from emugpu.driver.log import Log
from emugpu.driver.memory import (
    CONSTANT,
    DEVICE,
    FILE_BYTES,
    HostMemoryShort,
    MappedFile,
    Window,
    WindowMemory,
    halves,
)
from emugpu.driver.results import CODES, DriverError
from emugpu.driver.stream_order import StreamOrder
from emugpu.emulator.memory.global_memory import Allocation
from emugpu.host_memory import SPARE, free_bytes
from emugpu.launch.launching import EmulationOptions

T = TypeVar("T")

FIRST_HANDLE = 0x1000
HANDLE_STEP = 16


class Abandoned(Exception):
    """The process ended while its kernel ran."""


@dataclass
class SharedGpu:
    """The emulated GPU that all processes of a program share.

    The options ``strict`` and ``allow`` have no effect here: what hardware tolerates is a warning.
    """

    model: GpuModel
    options: EmulationOptions
    log: Log
    recorder: Any = None
    """The recorder of launches (`emugpu.driver.recording.LaunchRecorder`), if they are recorded."""
    check: bool = False
    """Whether to check the synchronisation of every launch."""
    kept_ptx: Path | None = None
    """The folder in which compilers in the program leave the PTX of the machine code that they load."""
    limit: float | None = None
    """The seconds that all launches may take together; None: no limit."""
    spent: float = 0.0
    """The seconds that launches have taken so far."""
    interrupted: bool = False
    """Whether the user wants the launch that runs to end."""

    def seconds_left(self) -> float | None:
        return None if self.limit is None else max(self.limit - self.spent, 1e-6)


@dataclass
class Session:
    """One process of a program.

    ``is_gone`` returns whether it has ended. ``pinned`` is its window of pinned memory. ``error`` is the code of a
    kernel's failure, which all later calls return, or 0. ``printed`` is the output of kernels that the program has not
    received yet. ``clock`` is the emulated time so far, in seconds.
    """

    gpu: SharedGpu
    number: int
    is_gone: Callable[[], bool]
    file: MappedFile
    pinned: Window
    error: int = 0
    printed: list[str] = field(default_factory=list)
    clock: float = 0.0

    def __post_init__(self) -> None:
        self.pinned, self.tensors = halves(self.pinned)
        self._start()

    def _start(self) -> None:
        options = self.gpu.options
        self.memory = WindowMemory(self.file, DEVICE, self.pinned, self.tensors)
        self.constants = WindowMemory(self.file, CONSTANT)
        self.device = options.make_device(self.memory, self.constants)
        self.order = StreamOrder(self.gpu.log)
        self.limits: dict[int, int] = {}
        self.mapped: dict[int, Any] = {}
        """Mappings of virtual memory management, by address."""
        self.default_pool: int | None = None
        self.used = 0
        """Bytes of device memory in use."""
        self._objects: dict[int, Any] = {}
        self._handles = count(FIRST_HANDLE, HANDLE_STEP)

    def reset(self) -> None:
        """Drops everything, including errors, as cuDevicePrimaryCtxReset does."""
        for memory in (self.memory, self.constants):
            for block in list(memory.allocations):
                memory.drop(block)
        self.error = 0
        handles = self._handles
        self._start()
        self._handles = handles

    def use(self, gpu: SharedGpu) -> None:
        """Continues with other options. A kernel's earlier error is dropped; memory, modules and handles stay."""
        self.gpu, self.error = gpu, 0
        self.order = self.order.renewed(gpu.log)
        before, self.device = self.device, gpu.options.make_device(self.memory, self.constants)
        self.device.take_over(before)

    def close(self) -> None:
        """Ends the session of a process. Its pages are freed now, its mappings when nothing refers to them any more."""
        self.file.clear(0, FILE_BYTES)
        self.file.close()

    # ---- handles ----

    def add(self, thing: Any) -> int:
        """Returns a new handle for an object."""
        handle = next(self._handles)
        self._objects[handle] = thing
        return handle

    def get(self, handle: int, kind: type[T]) -> T:
        """Returns the object of a handle. Raises DriverError if it is not of this kind."""
        thing = self._objects.get(handle)
        if not isinstance(thing, kind):
            raise DriverError("INVALID_HANDLE", f"{handle:#x} is not the handle of a {kind.__name__.lower()}")
        return thing

    def all(self, kind: type[T]) -> list[T]:
        """Returns all objects of a kind that have a handle."""
        return [thing for thing in self._objects.values() if isinstance(thing, kind)]

    def discard(self, handle: int) -> None:
        self._objects.pop(handle, None)

    # ---- memory ----

    def allocate(self, window: Window, nbytes: int, name: str) -> int:
        """Allocates memory in a window. All but device memory takes host memory at once."""
        if window is not DEVICE and nbytes > (have := free_bytes() - SPARE):
            raise HostMemoryShort(nbytes, have)
        if window is not self.pinned:
            self.take_memory(nbytes)
        return self.memory.alloc_in(window, nbytes, name)

    def take_memory(self, nbytes: int) -> None:
        """Adds to the device memory in use. Raises DriverError if the GPU does not have as much left."""
        left = self.gpu.model.memory_bytes - self.used
        if nbytes > left:
            raise DriverError("OUT_OF_MEMORY", f"{nbytes} bytes of device memory, of which {left} are left")
        self.used += nbytes

    def find(self, address: int, nbytes: int) -> tuple[Allocation, int] | None:
        """Returns the allocation with a range of generic addresses, and the offset in it; None if the program owns the
        memory.

        Raises DriverError if the range is device memory that is not allocated.
        """
        of_memory = [(window, self.memory) for window in (DEVICE, self.pinned, self.tensors)]
        for window, memory in (*of_memory, (CONSTANT, self.constants)):
            own = address - window.generic
            if window.holds(own):
                return self._find_in(memory, own, nbytes)
        return None

    def find_to_touch(self, address: int, nbytes: int) -> tuple[Allocation, int] | None:
        """Calls `find` for memory that is about to be read or written. Raises HostMemoryShort, too."""
        found = self.find(address, nbytes)
        if found is not None and not CONSTANT.holds(found[0].base):
            self.memory.require(*found, nbytes)
        return found

    @staticmethod
    def _find_in(memory: WindowMemory, address: int, nbytes: int) -> tuple[Allocation, int]:
        block = memory.holding(address)
        if block is None:
            raise DriverError("INVALID_VALUE", f"{address:#x} is not allocated device memory")
        if address + nbytes > block.end:
            raise DriverError(
                "INVALID_VALUE",
                f"{nbytes} bytes at {address:#x} do not fit '{block.name}' ({block.base:#x} .. {block.end - 1:#x})",
            )
        return block, address - block.base

    # ---- errors ----

    def fail(self, name: str) -> None:
        """Records that a kernel has failed: later calls return this error until the context is reset."""
        self.error = self.error or CODES[name]

    def take_printed(self) -> bytes:
        text = "".join(self.printed).encode()
        self.printed.clear()
        return text
