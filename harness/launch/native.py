"""The native engine's library, compiled when it is first wanted; see `harness.emulator.native`."""

from __future__ import annotations

import logging
from functools import cache
from typing import Literal

from harness.emulator.native.engine import Library
from harness.emulator.native.source import mojo_source
from harness.errors import CannotRun
from harness.mojo import NotBuilt, shared_library

Engine = Literal["native", "python"]

_log = logging.getLogger(__name__)


def library_for(engine: Engine) -> Library | None:
    """The library that an engine needs; None if it needs none, or there is none to be had."""
    return _library() if engine == "native" else None


@cache
def _library() -> Library | None:
    try:
        return Library(shared_library(mojo_source(), "the emulator's native engine"))
    except (NotBuilt, CannotRun, OSError) as error:
        _log.warning("the emulator runs without its native engine, and slower: %s", error)
        return None
