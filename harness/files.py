"""Files that are whole or not there at all."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from harness.errors import CannotRun


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
