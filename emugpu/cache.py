"""The build cache: compiled files, each with a checksum.

    builds/programs/<key>/program            the planner
    builds/kernels/<key>/kernel.ptx, ...     configurations
    builds/models/<key>.mef                  MAX models
    builds/native/<key>.so                   the emulator's native engine
    builds/tmp/                              builds in progress

A key is a hash of everything that can change the result. FILE.sha256 holds the SHA-256 of FILE in hexadecimal. A file
without it, or with another content (a full disk, a manual edit), counts as missing: a line on standard error says so
once, and the file is built again.

A folder is built under a temporary name and then renamed. So another process sees either the whole folder or nothing,
two processes that build the same thing do not disturb each other, and an interrupted build leaves nothing. The next
build removes what a killed process has left.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from emugpu import paths
from emugpu.errors import CannotRun

SUFFIX = ".sha256"
OLD_SECONDS = 3600.0
"""The age at which a temporary folder is no longer in use: no compiler takes that long."""


def root() -> Path:
    """Returns the folder of all cached files. It holds nothing else, so it can be deleted as a whole."""
    return paths.cache_dir() / "builds"


def place(kind: str, name: str) -> Path:
    """Returns the path of a cached item, which may not exist. kind: kernels, models, native, drivers and others."""
    return root() / kind / name


@contextmanager
def temporary_folder() -> Iterator[str]:
    """Makes a temporary folder on the disk of the cache, and removes it at the end.

    It also removes the folders of killed processes: those that are old and that no process has locked.
    """
    everything = ensure(root() / "tmp")
    for folder in everything.iterdir():
        _remove_if_left(folder)
    with tempfile.TemporaryDirectory(dir=everything) as made:
        descriptor = os.open(made, os.O_RDONLY | os.O_CLOEXEC)
        try:
            with suppress(OSError):  # file systems without locks
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield made
        finally:
            os.close(descriptor)


def _remove_if_left(folder: Path) -> None:
    with suppress(OSError):
        if time.time() - folder.stat().st_mtime < OLD_SECONDS:
            return
        descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder)
        finally:
            os.close(descriptor)


def ensure(folder: Path) -> Path:
    """Makes a folder and its parents, and returns it. Raises CannotRun if that fails."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CannotRun(
            f"cannot write to {folder} ({error.strerror}); set EMUGPU_CACHE_DIR to another folder"
        ) from error
    return folder


def publish(made: Path, place: Path, is_good: Callable[[], bool]) -> None:
    """Moves a finished folder to its place, unless another process was faster. A damaged one is replaced."""
    for path in [path for path in made.iterdir() if path.suffix != SUFFIX]:
        _write_checksum(path)
    ensure(place.parent)
    try:
        os.rename(made, place)
    except OSError:
        if not is_good():
            shutil.rmtree(place, ignore_errors=True)
            os.rename(made, place)


def publish_file(made: Path, place: Path) -> None:
    """Moves a finished file to its place, with its checksum."""
    _write_checksum(made)
    ensure(place.parent)
    os.replace(made, place)
    os.replace(_checksum_of(made), _checksum_of(place))


def is_whole(*files: Path) -> bool:
    """Returns whether these files exist, each as it was written. Reports a damaged file, but not a missing one."""
    return all(path.exists() for path in files) and all(map(_is_as_written, files))


def _is_as_written(path: Path) -> bool:
    try:
        state = path.stat()
        written = _checksum_of(path).read_text(encoding="ascii").strip()
        found = _digest(path, state.st_ino, state.st_size, state.st_mtime_ns)
    except (OSError, ValueError):
        written, found = "", "?"
    if written != found:
        _report_damaged(path)
    return written == found


@cache
def _digest(path: Path, *state: int) -> str:
    """Returns the SHA-256 of a file. state: changes with the content, so that a process reads each content once."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


@cache
def _report_damaged(path: Path) -> None:
    print(f"emugpu: {path} is not what was compiled (its checksum differs); it is made again", file=sys.stderr)


def _write_checksum(path: Path) -> None:
    _checksum_of(path).write_text(hashlib.sha256(path.read_bytes()).hexdigest() + "\n", encoding="ascii")


def _checksum_of(path: Path) -> Path:
    return path.with_name(path.name + SUFFIX)
