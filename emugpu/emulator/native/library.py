"""Finds the native engine's library: a wheel carries it compiled; elsewhere Mojo compiles it once per machine."""

from __future__ import annotations

import ctypes
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
from emugpu.errors import CannotRun
from emugpu.paths import COMPILED, find_mojo
from emugpu.processes.program import run

Engine = Literal["native", "python"]
QUERY_SECONDS = 60
BUILD_SECONDS = 600
BASELINE = "x86-64-v3"
"""The processor for which a wheel's library is compiled: 2013 or later."""
BASELINE_FLAGS = frozenset(("abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe", "xsave"))
"""Linux's names of the features that this processor has and the level below lacks."""

_log = logging.getLogger(__name__)


class Library:
    """The compiled interpreter."""

    def __init__(self, path: Path) -> None:
        library = ctypes.CDLL(str(path))
        self.run, self.run_turns = library.run, library.run_turns
        self.touch_living, self.filter_accesses = library.touch_living, library.filter_accesses
        for function, numbers in (
            (self.run, 4), (self.run_turns, 1), (self.touch_living, 2), (self.filter_accesses, 0)
        ):  # fmt: skip
            function.argtypes = [ctypes.c_void_p, *[ctypes.c_ssize_t] * numbers]
            function.restype = ctypes.c_ssize_t


def library_for(engine: Engine) -> Library | None:
    """Returns the library that an engine needs, or None if it needs none or there is none."""
    return _library() if engine == "native" else None


@functools.cache
def _library() -> Library | None:
    try:
        return Library(_library_path())
    except (CannotRun, OSError) as error:
        _log.warning("the emulator runs without its native engine, and slower: %s", error)
        return None


def _library_path() -> Path:
    """Returns the library in the package if this processor can run it, otherwise one that Mojo compiles here."""
    source = mojo_source()
    carried = COMPILED / carried_name(source)
    if not carried.exists():
        return shared_library(source, "the emulator's native engine")
    missing = sorted(BASELINE_FLAGS - set(_processor_flags().split()))
    if not missing:
        return carried
    try:
        return shared_library(source, "the emulator's native engine")
    except CannotRun as error:
        needs = f"the library in this package needs a processor with {', '.join(missing)} ({BASELINE})"
        raise CannotRun(f"{needs}, and none can be compiled here: {error}") from None


def carried_name(source: Mapping[str, str]) -> str:
    """Returns the file name of a wheel's library, which identifies the source from which it was compiled."""
    return f"native-{_digest(source)}.so"


def shared_library(source: Mapping[str, str], what: str) -> Path:
    """Returns the library compiled from `library.mojo`, from the cache if it is there.

    ``source`` holds that file and its imports, by name. ``what`` names the library in the message. The cache key is the
    source, the compiler's version and the processor. Raises CannotRun.
    """
    mojo = _compiler()
    version = _answer([mojo, "--version"], QUERY_SECONDS)
    key = _digest(source, version, platform.machine() + _processor_flags())
    place = cache.place("native", f"{key}.so")
    if not cache.is_whole(place):
        print(f"emugpu: compiling {what}, once on this machine", file=sys.stderr)
        with cache.temporary_folder() as folder:
            made = Path(folder) / "library.so"
            compile_library(source, made)
            cache.publish_file(made, place)
    return place


def compile_library(source: Mapping[str, str], to: Path, processor: str | None = None) -> None:
    """Compiles a library with Mojo, in the folder of its file. ``processor`` is None for this one. Raises CannotRun."""
    for name, text in source.items():
        path = to.parent / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    target = ("--target-cpu", processor) if processor else ()
    _answer(
        [_compiler(), "build", "--emit", "shared-lib", *target, to.parent / "library.mojo", "-o", to], BUILD_SECONDS
    )


def _compiler() -> Path:
    mojo = find_mojo()
    if mojo is None or not mojo.exists():
        raise CannotRun(f"the Mojo compiler was not found{f' at {mojo}' if mojo else ''}")
    return mojo


def _digest(source: Mapping[str, str], *more: str) -> str:
    return hashlib.sha256("\0".join((*more, *chain(*source.items()))).encode()).hexdigest()[:32]


def _answer(command: list[str | Path], seconds: float) -> str:
    try:
        done = run(command, seconds)
    except (OSError, subprocess.SubprocessError) as error:
        raise CannotRun(f"{command[0]} cannot be run ({error})") from None
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if "error" in line]
        raise CannotRun(f"{command[0]} ends with code {done.returncode}{f': {errors[0]}' if errors else ''}")
    return done.stdout


def _processor_flags() -> str:
    """Returns the features of this processor, which a compiler may use, or nothing if Linux does not list them."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")
