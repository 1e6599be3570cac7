"""The Debug Adapter Protocol's messages: JSON behind a header, over two streams; requests are answered in order.

Source: microsoft.github.io/debug-adapter-protocol, "Base protocol".
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from typing import IO, Any

from harness.errors import UsageProblem

LARGEST_MESSAGE = 1 << 24


class Connection:
    """Reads requests, and writes responses and events, which it numbers."""

    def __init__(self, incoming: IO[bytes], outgoing: IO[bytes]) -> None:
        self._incoming = incoming
        self._outgoing = outgoing
        self._last = 0

    def requests(self) -> Iterator[dict[str, Any]]:
        """Yields requests until the client is gone. Raises UsageProblem for what is no message of the protocol."""
        while (nbytes := self._header()) is not None:
            body = self._incoming.read(nbytes)
            if len(body) < nbytes:
                return
            try:
                message = json.loads(body)
            except ValueError:
                raise _no_message(body) from None
            if not isinstance(message, dict):
                raise _no_message(body)
            if message.get("type") == "request":
                yield message

    def _header(self) -> int | None:
        """The bytes of the next message; None: there is none."""
        nbytes = None
        while line := self._incoming.readline(LARGEST_MESSAGE):
            field, colon, value = line.decode("latin-1").strip().partition(":")
            if field.lower() == "content-length" and value.strip().isdecimal():
                nbytes = int(value)
            elif not field and nbytes is not None and nbytes <= LARGEST_MESSAGE:
                return nbytes
            elif not colon:
                break
        if not line:
            return None
        raise _no_message(line)

    def respond(self, request: dict[str, Any], body: Any = None, problem: str = "") -> None:
        """problem: why the request has failed; empty: it has not."""
        message = {"request_seq": request.get("seq", 0), "command": request.get("command", ""), "success": not problem}
        if problem:
            # Braces in a format are names of variables.
            error = {"id": 1, "format": "{problem}", "variables": {"problem": problem}, "showUser": True}
            message |= {"message": problem, "body": {"error": error}}
        elif body is not None:
            message["body"] = body
        self._send({"type": "response", **message})

    def tell(self, event: str, **body: Any) -> None:
        """Sends an event."""
        self._send({"type": "event", "event": event, "body": body})

    def _send(self, message: dict[str, Any]) -> None:
        self._last += 1
        text = json.dumps({"seq": self._last, **message}).encode()
        self._outgoing.write(b"Content-Length: %d\r\n\r\n%b" % (len(text), text))
        self._outgoing.flush()


@contextlib.contextmanager
def over_standard_streams() -> Iterator[Connection]:
    """A connection over standard input and output. What else is printed, also by a program that is debugged, goes to
    standard error.
    """
    sys.stdout.flush()
    with os.fdopen(os.dup(0), "rb") as incoming, os.fdopen(os.dup(1), "wb") as outgoing:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(2, 1)
        yield Connection(incoming, outgoing)


def _no_message(found: bytes) -> UsageProblem:
    return UsageProblem(
        f"{found[:40]!r} is no message of the Debug Adapter Protocol (Content-Length: N, an empty line, JSON); "
        "an editor starts this, a person leaves --adapter out"
    )
