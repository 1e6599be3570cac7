"""Files that say that a process is at work, there as long as it is. What a killed one leaves locks nobody out."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path


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
