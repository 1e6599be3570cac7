"""The messages between library and server, in the machine's byte order, as both run on the same machine.

    request   u32 size of the rest, u32 number of the function, then its parameters in order:
              a scalar: 8 bytes; text, input, image: u64 size and the bytes; an output: u64 its size, 0 for null
    reply     i32 result, u32 bytes of text, u32 bytes of outputs, u32 copies; then these:
              text for standard output; for each output u64 size and the bytes; for each copy 6 x u64
    hello     8 bytes of `api.checksum`; the reply is u32 number of windows with the memory's file descriptor, then
              4 x u64 for each window; then u64 the address at which the process has mapped pinned memory

Any process may connect and send anything, so this module checks all sizes; a malformed message ends its connection.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from emugpu.driver.api import ApiFunction, ApiParameter, functions

MOST_BYTES = 1 << 30
"""The largest message, which is that with the largest module."""
_FRAME = struct.Struct("=II")
_ANSWER = struct.Struct("=iIII")
_U64 = struct.Struct("=Q")
_OUTPUTS = {"i32": "=i", "u32": "=I", "u64": "=Q", "f32": "=f"}

Output = int | float | bytes | None


class BadMessage(Exception):
    """The received bytes are no message of this protocol."""


@dataclass(frozen=True)
class HostCopy:
    """Rows that the library copies. ``to`` and ``frm`` are addresses in program or device; pitches are in bytes."""

    to: int
    frm: int
    width: int
    rows: int = 1
    to_pitch: int = 0
    from_pitch: int = 0

    def pack(self) -> bytes:
        return struct.pack("=6Q", self.to, self.frm, self.width, self.rows, self.to_pitch, self.from_pitch)


@dataclass(frozen=True)
class ApiCall:
    """A call. ``inputs`` holds scalars, bytes and texts in order, ``room`` each output's size, or 0 if it is null."""

    function: ApiFunction
    inputs: tuple[int | float | bytes | str, ...]
    room: tuple[int, ...]


def receive(connection: socket.socket, size: int) -> bytes | None:
    """Receives exactly ``size`` bytes, or returns None if the other side has closed the connection."""
    data = bytearray(size)
    view = memoryview(data)
    got = 0
    while got < size:
        now = connection.recv_into(view[got:])
        if not now:
            return None
        got += now
    return bytes(data)


def receive_request(connection: socket.socket) -> ApiCall | None:
    """Receives the next call, or returns None if the other side has closed the connection. Raises BadMessage."""
    frame = receive(connection, _FRAME.size)
    if frame is None:
        return None
    size, number = _FRAME.unpack(frame)
    if size > MOST_BYTES or number >= len(functions()):
        raise BadMessage(f"function {number} with {size} bytes")
    payload = receive(connection, size)
    return None if payload is None else decode(functions()[number], payload)


def decode(function: ApiFunction, payload: bytes) -> ApiCall:
    """Reads a call of a function from the content of its message. Raises BadMessage."""
    if function.disposition == "refused":
        return ApiCall(function, (), ())
    if not function.is_asked:
        raise BadMessage(f"{function.name}, which is not asked for")
    inputs: list[int | float | bytes | str] = []
    room: list[int] = []
    at = 0
    for parameter in function.parameters:
        if at + 8 > len(payload):
            raise BadMessage(f"{function.name} with {len(payload)} bytes")
        raw, at = payload[at : at + 8], at + 8
        if parameter.kind == "scalar":
            inputs.append(_scalar(parameter, raw))
            continue
        size = _U64.unpack(raw)[0]
        if parameter.kind == "out":
            room.append(size)
            continue
        if at + size > len(payload):
            raise BadMessage(f"{function.name} with {len(payload)} bytes, of which {parameter.name} has {size}")
        data, at = payload[at : at + size], at + size
        inputs.append(data.decode(errors="replace") if parameter.kind == "text" else data)
    return ApiCall(function, tuple(inputs), tuple(room))


def _scalar(parameter: ApiParameter, raw: bytes) -> int | float:
    if parameter.type == "f32":
        return float(struct.unpack_from("=f", raw)[0])
    value = int(_U64.unpack(raw)[0])
    if parameter.type == "u64":
        return value
    value &= 0xFFFFFFFF
    return value - (1 << 32) if parameter.type == "i32" and value >> 31 else value


def encode_reply(
    request: ApiCall, result: int, outputs: Sequence[Output], copies: Sequence[HostCopy] = (), text: bytes = b""
) -> bytes:
    """Returns a reply message.

    ``outputs`` are in order, and are cut to the room that the caller has. A failed call has no outputs.
    """
    parts = []
    if outputs:
        declared = [p for p in request.function.parameters if p.kind == "out"]
        for parameter, room, value in zip(declared, request.room, outputs, strict=True):
            data = _output(parameter, value)[:room]
            parts.append(_U64.pack(len(data)) + data)
    body = b"".join(parts)
    return b"".join(
        [_ANSWER.pack(result, len(text), len(body), len(copies)), text, body, *(copy.pack() for copy in copies)]
    )


def _output(parameter: ApiParameter, value: Output) -> bytes:
    if value is None:
        return b""
    if isinstance(value, bytes):
        return value
    return struct.pack(_OUTPUTS[parameter.type], value)
