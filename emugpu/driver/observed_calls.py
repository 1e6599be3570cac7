"""What calls tell `stream_order`: waits of the host, events, and which memory copies, fills and frees touch.

When a call returns follows the CUDA Driver API, "API synchronization behavior". Where it says that a call may wait for
a copy, the host does not wait for it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from emugpu.check.footprint import READ, WRITE, TouchedMemory
from emugpu.driver.memory import Window
from emugpu.driver.stream_order import LEGACY, StreamOperation, StreamOrder
from emugpu.emulator.memory.global_memory import Allocation


class ObservedCall(NamedTuple):
    """A call of a process, with the process' clocks, its memory, and its window of pinned memory.

    ``find`` returns the allocation and the offset of bytes, or None for memory of the program itself.
    """

    name: str
    order: StreamOrder
    find: Callable[[int, int], tuple[Allocation, int] | None]
    pinned: Window

    def submit(self, stream: int, *touched: tuple[int, int, int]) -> None:
        """Submits an operation. ``touched`` has the address, the size and the kind of each access."""
        memory = TouchedMemory()
        for address, nbytes, kind in touched:
            found = self.find(address, nbytes) if nbytes else None
            if found is not None:
                block, start = found
                memory.add_range(self.order.key(block.base), block.data.size, start, start + nbytes, kind)
        self.order.submit(StreamOperation(self.name, stream, memory.close()))

    def is_pageable(self, address: int) -> bool:
        return self.find(address, 0) is None

    def is_on_host(self, address: int) -> bool:
        return self.pinned.holds(address) or self.is_pageable(address)


OBSERVERS: dict[str, Callable[..., None]] = {}
"""By function of the driver: gets the call and its inputs."""
BEFORE = ("cuMemFree_v2", "cuMemFreeHost", "cuMemFreeAsync", "cuMemUnmap")
"""These calls are observed before they are served, because the memory is gone afterwards."""


def observe(call: ObservedCall, inputs: Any) -> None:
    """Handles a call. Launches are submitted where they are made."""
    observer = OBSERVERS.get(call.name)
    if observer is not None:
        observer(call, *inputs)


def _observes(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    def register(observer: Callable[..., None]) -> Callable[..., None]:
        OBSERVERS.update(dict.fromkeys(names, observer))
        return observer

    return register


@_observes("cuCtxSynchronize", "cuCtxSynchronize_v2", "cuMemUnmap")
def _synchronized(call: ObservedCall, *_: int) -> None:
    call.order.host_waits()


@_observes("cuStreamSynchronize", "cuStreamQuery")
def _stream_synchronized(call: ObservedCall, stream: int) -> None:
    call.order.host_waits_for_stream(stream)


@_observes("cuEventSynchronize", "cuEventQuery")
def _event_synchronized(call: ObservedCall, event: int) -> None:
    call.order.host_waits_for_event(event)


@_observes("cuEventRecord", "cuEventRecordWithFlags")
def _recorded(call: ObservedCall, event: int, stream: int, *_flags: int) -> None:
    call.order.record(event, stream)


@_observes("cuStreamWaitEvent")
def _waited(call: ObservedCall, stream: int, event: int, _flags: int) -> None:
    call.order.wait(stream, event)


@_observes("emulatedGemm")
def _multiplied(call: ObservedCall, *_: Any) -> None:
    call.order.computed("a product of cuBLAS")


# ---- memory ----


@_observes("cuMemFree_v2", "cuMemFreeHost")
def _freed(call: ObservedCall, address: int) -> None:
    if address:
        call.order.host_waits()
        call.order.freed(address)


@_observes("cuMemFreeAsync")
def _freed_in_stream(call: ObservedCall, address: int, stream: int) -> None:
    found = call.find(address, 0)
    if found is not None and found[1] == 0:
        call.submit(stream, (address, found[0].data.size, WRITE))
        call.order.freed(address)


def _wrote(width: int, call: ObservedCall, stream: int, address: int, *_: int) -> None:
    call.submit(stream, (address, width, WRITE))


def _filled(width: int, call: ObservedCall, to: int, _value: int, count: int, stream: int = LEGACY) -> None:
    call.submit(stream, (to, width * count, WRITE))


def _filled_rows(
    width: int, call: ObservedCall, to: int, pitch: int, _value: int, row: int, rows: int, stream: int = LEGACY
) -> None:
    call.submit(stream, *((to + n * pitch, width * row, WRITE) for n in range(rows)))


for _bits in (32, 64):
    _observes(f"cuStreamWriteValue{_bits}_v2")(partial(_wrote, _bits // 8))
for _bits in (8, 16, 32):
    _observes(f"cuMemsetD{_bits}_v2", f"cuMemsetD{_bits}Async")(partial(_filled, _bits // 8))
    _observes(f"cuMemsetD2D{_bits}_v2", f"cuMemsetD2D{_bits}Async")(partial(_filled_rows, _bits // 8))


@_observes("cuMemcpy", "cuMemcpyHtoD_v2", "cuMemcpyDtoH_v2", "cuMemcpyDtoD_v2")
def _copied(call: ObservedCall, to: int, frm: int, nbytes: int) -> None:
    call.submit(LEGACY, (to, nbytes, WRITE), (frm, nbytes, READ))
    if call.is_on_host(to) or call.is_on_host(frm):
        call.order.host_waits_for_stream(LEGACY)


@_observes("cuMemcpyAsync", "cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2", "cuMemcpyDtoDAsync_v2")
def _copied_in_stream(call: ObservedCall, to: int, frm: int, nbytes: int, stream: int) -> None:
    """The host waits for a copy to pageable memory, and for one between two places in its memory."""
    call.submit(stream, (to, nbytes, WRITE), (frm, nbytes, READ))
    if call.is_pageable(to) or (call.is_on_host(to) and call.is_on_host(frm)):
        call.order.host_waits_for_stream(stream)


@_observes("cuMemcpy2D_v2", "cuMemcpy2DUnaligned_v2", "cuMemcpy3D_v2")
def _copied_rows(call: ObservedCall, *_: Any) -> None:
    call.order.host_waits_for_stream(LEGACY)


@_observes("cuMemcpy2DAsync_v2", "cuMemcpy3DAsync_v2", "cuMemcpyBatchAsync", "cuMemcpyBatchAsync_v2")
def _copied_unseen(call: ObservedCall, *_: Any) -> None:
    call.order.computed(call.name)
