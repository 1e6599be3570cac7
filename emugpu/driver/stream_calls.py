"""Streams and events. All streams are the same: the server handles calls in the order of their arrival, and everything
before a reply has ended. CUDA promises no more: `stream_order` looks at the other orders.
"""

from __future__ import annotations

from dataclasses import dataclass

from emugpu.driver.api import handles
from emugpu.driver.results import DriverError
from emugpu.driver.state import Session

DEFAULT_STREAMS = (0, 1, 2)
"""The null stream, the legacy stream, and the per-thread stream."""
_DISABLE_TIMING = 2


@dataclass
class Stream:
    flags: int
    priority: int = 0


@dataclass
class StreamEvent:
    """An event. ``time`` is the emulated time before it in seconds, or None before it is recorded."""

    flags: int
    time: float | None = None


def _stream(session: Session, handle: int) -> Stream:
    return Stream(0) if handle in DEFAULT_STREAMS else session.get(handle, Stream)


@handles("cuCtxSynchronize", "cuCtxSynchronize_v2")
def synchronize(session: Session, *_context: int) -> None:
    return None


@handles("cuStreamCreate", "cuStreamCreateWithPriority")
def create_stream(session: Session, flags: int, priority: int = 0) -> int:
    handle = session.add(Stream(flags, priority))
    session.order.stream(handle, flags)
    return handle


@handles("cuStreamDestroy_v2")
def destroy_stream(session: Session, stream: int) -> None:
    session.get(stream, Stream)
    session.discard(stream)


@handles("cuStreamSynchronize", "cuStreamQuery")
def synchronize_stream(session: Session, stream: int) -> None:
    _stream(session, stream)


@handles("cuStreamWaitEvent")
def wait(session: Session, stream: int, event: int, flags: int) -> None:
    _stream(session, stream)
    session.get(event, StreamEvent)


@handles("cuStreamGetPriority")
def priority(session: Session, stream: int) -> int:
    return _stream(session, stream).priority


@handles("cuStreamGetFlags")
def flags(session: Session, stream: int) -> int:
    return _stream(session, stream).flags


@handles("cuStreamGetId")
def stream_id(session: Session, stream: int) -> int:
    _stream(session, stream)
    return stream


@handles("cuEventCreate")
def create_event(session: Session, flags: int) -> int:
    return session.add(StreamEvent(flags))


@handles("cuEventDestroy_v2")
def destroy_event(session: Session, event: int) -> None:
    session.get(event, StreamEvent)
    session.discard(event)


@handles("cuEventRecord", "cuEventRecordWithFlags")
def record(session: Session, event: int, stream: int, *_flags: int) -> None:
    _stream(session, stream)
    session.get(event, StreamEvent).time = session.clock


@handles("cuEventSynchronize", "cuEventQuery")
def synchronize_event(session: Session, event: int) -> None:
    session.get(event, StreamEvent)


@handles("cuEventElapsedTime", "cuEventElapsedTime_v2")
def elapsed(session: Session, start: int, end: int) -> float:
    first, second = session.get(start, StreamEvent), session.get(end, StreamEvent)
    if first.time is None or second.time is None or (first.flags | second.flags) & _DISABLE_TIMING:
        raise DriverError("INVALID_HANDLE", "an event without a time")
    session.gpu.log.elapsed_asked = True
    session.gpu.log.note("cuEventElapsedTime: the seconds of the emulation, which say nothing about any GPU")
    return (second.time - first.time) * 1e3


@handles("cuStreamWriteValue32_v2")
def write_32(session: Session, stream: int, address: int, value: int, flags: int) -> None:
    _write(session, stream, address, 4, value)


@handles("cuStreamWriteValue64_v2")
def write_64(session: Session, stream: int, address: int, value: int, flags: int) -> None:
    _write(session, stream, address, 8, value)


def _write(session: Session, stream: int, address: int, nbytes: int, value: int) -> None:
    _stream(session, stream)
    if session.find(address, nbytes) is None or address % nbytes:
        raise DriverError("INVALID_VALUE", f"{address:#x} is not device memory, or not aligned to {nbytes} bytes")
    session.memory.store_int(address, nbytes, value)
