"""Files: read and written whole, and locked."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from emugpu.errors import CannotRun

LARGEST_TEXT = 1 << 28
"""Bytes of a text file that is read whole: 256 MiB."""


def read_text_file(path: Path) -> str:
    """The text of a file that a user names. Raises OSError, also for what has no end (a device, a pipe) or is too
    large, and UnicodeDecodeError.
    """
    about = path.stat()
    if not stat.S_ISREG(about.st_mode) and not stat.S_ISDIR(about.st_mode):
        raise OSError(errno.EINVAL, "it is a device or a pipe, and no file", str(path))
    if about.st_size > LARGEST_TEXT:
        raise OSError(errno.EFBIG, f"it is larger than {LARGEST_TEXT >> 20} MiB", str(path))
    return path.read_text(encoding="utf-8")


def write_text(path: str | Path, text: str) -> None:
    """Writes a file in UTF-8: all of it, or nothing and what was there before stays.

    It is written beside its place and moved there when it is on the disk. A device, a pipe or a file of the system
    (``/dev/stdout``) is written to directly. Raises `CannotRun` with the reason.
    """
    try:
        if _is_plain(Path(path)):
            with whole_file(Path(path).resolve()) as whole:
                whole.write(text.encode())
        else:
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
    except OSError as error:
        raise CannotRun(f"cannot write {path}: {error.strerror or error}") from error


def _is_plain(path: Path) -> bool:
    if path.absolute().parts[1:2] in (("dev",), ("proc",)):
        return False
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except FileNotFoundError:
        return True


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """A file to be written, which takes its place when the block ends well; otherwise nothing changes."""
    descriptor, made = tempfile.mkstemp(prefix=f".{path.name[:100]}.", dir=path.parent)
    try:
        with open(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(descriptor)
        os.chmod(made, _mode(path))
        os.replace(made, path)
    except BaseException:
        os.unlink(made)
        raise


def _mode(path: Path) -> int:
    """That of the file that is replaced, or what a new file gets (which only setting it can tell)."""
    try:
        return stat.S_IMODE(path.stat().st_mode)
    except FileNotFoundError:
        mask = os.umask(0)
        os.umask(mask)
        return 0o666 & ~mask


class FileLock:
    """Held from its making to `release`, which takes the file away. wait: for another process that has it.

    Raises `BlockingIOError` if one has it and is not to be waited for, `OSError` if the file cannot be made. On file
    systems without locks it keeps nobody out.
    """

    def __init__(self, path: Path, wait: bool = True) -> None:
        self.path = path
        self._descriptor: int | None = _take(path, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))

    def release(self) -> None:
        """May be called twice."""
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                self.path.unlink()  # while it is locked: whoever opened it before sees that it has gone
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> FileLock:
        return self

    def __exit__(self, *exception: object) -> None:
        self.release()


def _take(path: Path, how: int) -> int:
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, how)
        except BlockingIOError:
            os.close(descriptor)
            raise
        except OSError:
            return descriptor
        if _is_at(path, descriptor):
            return descriptor
        os.close(descriptor)  # the one who had it took it away


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
