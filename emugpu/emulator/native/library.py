"""The native engine's library: compiled by Mojo when it is first wanted, once on a machine."""

from __future__ import annotations

import functools
import hashlib
import logging
import platform
import subprocess
import sys
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Literal

from emugpu import cache
from emugpu.emulator.native.source import mojo_source
from emugpu.emulator.native.stretches import Library
from emugpu.errors import CannotRun
from emugpu.paths import find_mojo
from emugpu.processes.program import run

Engine = Literal["native", "python"]
QUERY_SECONDS = 60
BUILD_SECONDS = 600

_log = logging.getLogger(__name__)


def library_for(engine: Engine) -> Library | None:
    """The library that an engine needs; None if it needs none, or there is none to be had."""
    return _library() if engine == "native" else None


@functools.cache
def _library() -> Library | None:
    try:
        return Library(shared_library(mojo_source(), "the emulator's native engine"))
    except (CannotRun, OSError) as error:
        _log.warning("the emulator runs without its native engine, and slower: %s", error)
        return None


def shared_library(source: Mapping[str, str], what: str) -> Path:
    """The library that `library.mojo` is compiled to, from the cache if it is there. source: that file and those that
    it imports, by name. what: is said to be compiled.

    A library is known by its source, the compiler's version and the processor. Raises CannotRun.
    """
    mojo = find_mojo()
    if mojo is None or not mojo.exists():
        raise CannotRun(f"the Mojo compiler was not found{f' at {mojo}' if mojo else ''}")
    version = _answer([mojo, "--version"], QUERY_SECONDS)
    key = hashlib.sha256("\0".join((version, _processor(), *chain(*source.items()))).encode()).hexdigest()[:32]
    place = cache.place("native", f"{key}.so")
    if not cache.is_whole(place):
        print(f"harness: compiling {what}, once on this machine", file=sys.stderr)
        with cache.temporary_folder() as folder:
            for name, text in source.items():
                path = Path(folder) / name
                path.parent.mkdir(exist_ok=True)
                path.write_text(text, encoding="utf-8")
            made = Path(folder) / "library.so"
            _answer([mojo, "build", "--emit", "shared-lib", Path(folder) / "library.mojo", "-o", made], BUILD_SECONDS)
            cache.publish_file(made, place)
    return place


def _answer(command: list[str | Path], seconds: float) -> str:
    try:
        done = run(command, seconds)
    except (OSError, subprocess.SubprocessError) as error:
        raise CannotRun(f"{command[0]} cannot be run ({error})") from None
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if "error" in line]
        raise CannotRun(f"{command[0]} ends with code {done.returncode}{f': {errors[0]}' if errors else ''}")
    return done.stdout


def _processor() -> str:
    """What a compiler for this machine makes use of."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    return platform.machine() + next((line for line in lines if line.startswith(("flags", "Features"))), "")
