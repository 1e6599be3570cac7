"""Reading and writing of whole files, and file locks."""

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
"""The largest text file that is read, in bytes: 256 MiB."""


def read_text_file(path: Path) -> str:
    """Returns the text of a file that a user names, without the byte-order mark that some editors put in front.

    Raises OSError, also for a device or a pipe, which have no end, and for a file that is too large. Raises
    UnicodeDecodeError if the file is not UTF-8.
    """
    about = path.stat()
    if not stat.S_ISREG(about.st_mode) and not stat.S_ISDIR(about.st_mode):
        raise OSError(errno.EINVAL, "it is a device or a pipe, and no file", str(path))
    if about.st_size > LARGEST_TEXT:
        raise OSError(errno.EFBIG, f"it is larger than {LARGEST_TEXT >> 20} MiB", str(path))
    return path.read_text(encoding="utf-8-sig")


def write_text(path: str | Path, text: str) -> None:
    """Writes a file in UTF-8. If that fails, the old file remains unchanged.

    The text is written to a file in the same folder, which then replaces the old file. A device, a pipe or a file of
    the system (``/dev/stdout``) is written directly. Raises `CannotRun` with the reason.
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
    """Yields a file to write. It replaces ``path`` if the block ends without an exception; else nothing changes."""
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
    """Returns the mode of the file that is replaced, or else of a new file. Reading the umask requires setting it."""
    try:
        return stat.S_IMODE(path.stat().st_mode)
    except FileNotFoundError:
        mask = os.umask(0)
        os.umask(mask)
        return 0o666 & ~mask


class FileLock:
    """A file lock, held from its construction to `release`, which removes the file. wait: for another process's lock.

    Raises `BlockingIOError` if another process holds it and wait is false, and `OSError` if the file cannot be made. On
    file systems without locks it excludes no other process.
    """

    def __init__(self, path: Path, wait: bool = True) -> None:
        self.path = path
        self._descriptor: int | None = _take(path, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))

    def release(self) -> None:
        """Releases the lock. It may be called twice."""
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                self.path.unlink()  # while it is locked: a process that opened it before sees that it is gone
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
        os.close(descriptor)  # the previous holder has removed the file


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
