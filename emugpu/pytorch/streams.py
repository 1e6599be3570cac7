"""Streams and events of `torch.cuda`, by those of the emulated driver. Of PyTorch's own operators, only copies between
CPU and device are in one: the host waits for what is before them in the current stream. The memory that they touch is
not compared with that of launches.

Import this module after torch.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from functools import cache
from typing import Any, Self

from emugpu.pytorch.driver import call

torch: Any = sys.modules["torch"]
CUDA = 1
"""The number of the kind of device in PyTorch."""
NOT_MEASURED = float("inf")
"""The time between events: there is none. Code that divides by it finds a rate of zero."""


class Stream(torch.Stream):  # type: ignore[misc]
    """A stream. ``cuda_stream`` is its handle; 0 is the default stream."""

    cuda_stream: int
    priority = 0

    def __new__(cls, device: Any = None, priority: int = 0, *, handle: int | None = None) -> Self:
        if handle is None:
            made = ctypes.c_void_p()
            call("cuStreamCreate", ctypes.byref(made), 1)  # CU_STREAM_NON_BLOCKING
            handle = made.value or 0
        self: Self = super().__new__(cls, stream_id=handle, device_index=0, device_type=CUDA)
        self.cuda_stream = handle
        return self

    @property
    def _as_parameter_(self) -> ctypes.c_void_p:
        return ctypes.c_void_p(self.cuda_stream)

    def wait_event(self, event: Event) -> None:
        event.wait(self)

    def wait_stream(self, other: Stream) -> None:
        self.wait_event(other.record_event())

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.record(self)
        return event

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        call("cuStreamSynchronize", ctypes.c_void_p(self.cuda_stream))

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.cuda_stream

    def __enter__(self) -> Stream:
        self._before = current()
        make_current(self)
        return self

    def __exit__(self, *_: Any) -> None:
        make_current(self._before)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other.cuda_stream == self.cuda_stream

    def __hash__(self) -> int:
        return hash(self.cuda_stream)


class ExternalStream(Stream):
    def __new__(cls, stream_ptr: int, device: Any = None) -> Self:
        return super().__new__(cls, handle=stream_ptr)


class Event:
    """An event. All work has ended when a launch returns, so it is always complete."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> None:
        made = ctypes.c_void_p()
        call("cuEventCreate", ctypes.byref(made), 0)
        self.cuda_event = made.value or 0

    def record(self, stream: Stream | None = None) -> None:
        call("cuEventRecord", ctypes.c_void_p(self.cuda_event), ctypes.c_void_p((stream or current()).cuda_stream))

    def wait(self, stream: Stream | None = None) -> None:
        stream = stream or current()
        call("cuStreamWaitEvent", ctypes.c_void_p(stream.cuda_stream), ctypes.c_void_p(self.cuda_event), 0)

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        call("cuEventSynchronize", ctypes.c_void_p(self.cuda_event))

    def elapsed_time(self, end: Event) -> float:
        """Returns infinity, and says once: nothing is measured here."""
        _say_not_measured()
        return NOT_MEASURED

    def __del__(self) -> None:
        if getattr(self, "cuda_event", 0):
            call("cuEventDestroy_v2", ctypes.c_void_p(self.cuda_event), check=False)


@cache
def _say_not_measured() -> None:
    print("emulated GPU: the time between events is not measured; torch.cuda.Event says inf", file=sys.stderr)


_DEFAULT = Stream(handle=0)


class _Local(threading.local):
    stream = _DEFAULT


_local = _Local()


def default(device: Any = None) -> Stream:
    return _DEFAULT


def current(device: Any = None) -> Stream:
    """Returns the current stream of this thread."""
    return _local.stream


def make_current(stream: Stream | None) -> None:
    if stream is not None:
        _local.stream = stream
        _library.emulated_make_current(ctypes.c_void_p(stream.cuda_stream))


_library: ctypes.CDLL


def install(library: ctypes.CDLL) -> None:
    """Lets the device know the current stream: copies between the devices are in it."""
    global _library
    _library = library
