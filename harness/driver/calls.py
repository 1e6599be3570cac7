"""Which function answers which call. The files ``*_calls.py`` register theirs here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Handler = Callable[..., Any]
"""Takes the session and the call's inputs in their order. Returns one output, a tuple of outputs, or a list of copies;
raises DriverError."""

HANDLERS: dict[str, Handler] = {}


def handles(*names: str) -> Callable[[Handler], Handler]:
    """The decorated function answers the calls of these names."""

    def register(handler: Handler) -> Handler:
        for name in names:
            assert name not in HANDLERS, name
            HANDLERS[name] = handler
        return handler

    return register
