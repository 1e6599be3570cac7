"""The messages of the Debug Adapter Protocol: JSON after a header, over two streams. Requests are served in order.

Source: microsoft.github.io/debug-adapter-protocol, "Base protocol".
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
from collections.abc import Iterator
from typing import IO, Any, TypeVar

from emugpu.errors import UsageProblem

T = TypeVar("T")
LARGEST_MESSAGE = 1 << 24
CONTENT_LENGTH = re.compile(rb"content-length: *(\d{1,18}(?=\s*$))?", re.IGNORECASE)
KINDS = {dict: "an object", list: "a list", str: "text", int: "a whole number", bool: "true or false"}


class Connection:
    """Reads requests, and writes responses and events with sequence numbers."""

    def __init__(self, incoming: IO[bytes], outgoing: IO[bytes]) -> None:
        self._incoming = incoming
        self._outgoing = outgoing
        self._last = 0
        self._begun = False

    def requests(self) -> Iterator[dict[str, Any]]:
        """Yields requests until the client disconnects. A malformed message gets an error response, as a failed
        request does.

        Raises UsageProblem if the first message is malformed, because then the client does not speak the protocol.
        """
        while (nbytes := self._header()) is not None:
            if nbytes > LARGEST_MESSAGE:
                self.respond({}, problem=f"Content-Length: must be a whole number up to {LARGEST_MESSAGE:,}")
                continue
            body = self._incoming.read(nbytes)
            try:
                message = json.loads(body)
            except (ValueError, RecursionError):
                message = None
            if not isinstance(message, dict):
                self.respond({}, problem=_no_message(body))
            elif message.get("type") == "request":
                yield message

    def _header(self) -> int | None:
        """Returns the bytes of the next message, or None if there is none. Skips a message of an invalid length."""
        nbytes = None
        while line := self._incoming.readline(LARGEST_MESSAGE):
            if found := CONTENT_LENGTH.search(line):
                nbytes, self._begun = int(found[1] or LARGEST_MESSAGE + 1), True
            elif not line.strip() and nbytes is not None:
                return nbytes
            elif not self._begun and b":" not in line:
                raise UsageProblem(_no_message(line))
        return None

    def respond(self, request: dict[str, Any], body: Any = None, problem: str = "") -> None:
        """Sends a response. ``problem`` says why the request failed, or is ""."""
        seq, command = request.get("seq"), str(request.get("command", ""))
        message = {"request_seq": seq if isinstance(seq, int) else 0, "command": command, "success": not problem}
        if problem:
            # In a format, braces enclose the names of variables.
            error = {"id": 1, "format": "{problem}", "variables": {"problem": problem}, "showUser": True}
            message |= {"message": problem, "body": {"error": error}}
        elif body is not None:
            message["body"] = body
        self._send({"type": "response", **message})

    def send_event(self, event: str, **body: Any) -> None:
        """Sends an event."""
        self._send({"type": "event", "event": event, "body": body})

    def _send(self, message: dict[str, Any]) -> None:
        self._last += 1
        text = json.dumps({"seq": self._last, **message}).encode()
        self._outgoing.write(b"Content-Length: %d\r\n\r\n%b" % (len(text), text))
        self._outgoing.flush()


@contextlib.contextmanager
def over_standard_streams() -> Iterator[Connection]:
    """Yields a connection over standard input and output.

    All other output, including a debugged program's, goes to standard error.
    """
    sys.stdout.flush()
    with os.fdopen(os.dup(0), "rb") as incoming, os.fdopen(os.dup(1), "wb") as outgoing:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(2, 1)
        yield Connection(incoming, outgoing)


def given(asked: dict[str, Any], name: str, kind: type[T], default: T | None = None) -> T:
    """Returns an argument of a request, of a type of `KINDS`.

    ``default`` is its value if it is left out; None: it is required.
    """
    value: Any = asked.get(name)
    value = default if value is None else value
    if type(value) is not kind or (isinstance(value, int) and value < 0):
        got = "and it is missing" if value is None else f"not {str(value)[:40]}"
        raise UsageProblem(f"{name}: must be {KINDS[kind]}, {got}")
    return value


def given_list(asked: dict[str, Any], name: str, kind: type[T]) -> list[T]:
    """Returns an argument that is a list of values of one type, or [] if it is left out."""
    return [given({name: value}, name, kind) for value in given(asked, name, list, [])]


def _no_message(found: bytes) -> str:
    return (
        f"{found[:40]!r} is not a message of the Debug Adapter Protocol (Content-Length: N, an empty line, JSON); "
        "--adapter is for editors: leave it out at a terminal"
    )
