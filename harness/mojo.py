"""Finds the Mojo compiler, and compiles libraries for this machine with it, each once."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

from harness import cache

QUERY_SECONDS = 60
BUILD_SECONDS = 600


class NotBuilt(Exception):
    """There is no compiler, or it refuses. The message says why."""


def find_mojo() -> Path | None:
    """The Mojo compiler: HARNESS_MOJO, else the one installed next to this Python, else the one on PATH."""
    override = os.environ.get("HARNESS_MOJO")
    if override:
        return Path(override)
    neighbour = Path(sys.executable).with_name("mojo")
    if neighbour.exists():
        return neighbour
    found = shutil.which("mojo")
    return Path(found) if found else None


def shared_library(source: str, what: str) -> Path:
    """The library that a Mojo source is compiled to, from the cache if it is there. what: is said to be compiled.

    A library is known by its source, the compiler's version and the processor. Raises NotBuilt.
    """
    mojo = find_mojo()
    if mojo is None or not mojo.exists():
        raise NotBuilt(f"the Mojo compiler was not found{f' at {mojo}' if mojo else ''}")
    version = _run([mojo, "--version"], QUERY_SECONDS)
    key = hashlib.sha256("\0".join((version, _processor(), source)).encode()).hexdigest()[:32]
    place = cache.place("native", f"{key}.so")
    if not cache.is_whole(place):
        print(f"harness: compiling {what}, once on this machine", file=sys.stderr)
        with cache.temporary_folder() as folder:
            text, made = Path(folder) / "library.mojo", Path(folder) / "library.so"
            text.write_text(source, encoding="utf-8")
            _run([mojo, "build", "--emit", "shared-lib", text, "-o", made], BUILD_SECONDS)
            cache.publish_file(made, place)
    return place


def _run(command: list[str | Path], seconds: float) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, encoding="utf-8", errors="replace", timeout=seconds, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise NotBuilt(f"{command[0]} cannot be run ({error})") from None
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if "error" in line]
        raise NotBuilt(f"{command[0]} ends with code {done.returncode}{f': {errors[0]}' if errors else ''}")
    return done.stdout


def _processor() -> str:
    """What a compiler for this machine makes use of."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    return platform.machine() + next((line for line in lines if line.startswith(("flags", "Features"))), "")
