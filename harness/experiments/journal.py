"""The file of a sweep: a record for each finished or failed job. ``--resume`` skips the jobs in it.

A record is in the file as soon as its job is done, and on the disk at most a second later, with the next record. The
journal waits for room on a full disk. If a record cannot be written in the end, that is an error, and the earlier ones
are kept.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

from emugpu.errors import CannotRun
from harness import paths
from harness.run import records
from harness.run.records import DamagedLine

Record = dict[str, Any]
TO_DISK = 1.0
"""Seconds between two writes to the disk, which take milliseconds each."""
PATIENCE = 60.0
"""Seconds to wait for room on the disk."""


def folder() -> Path:
    """Returns the folder of the files of sweeps."""
    return paths.results_dir() / "sweeps"


class Journal:
    """The open file of one sweep, to which no other process may write. ``say`` gets a message when the journal waits
    for a disk.
    """

    def __init__(
        self, path: Path, patience: float = PATIENCE, say: Callable[[str], None] = lambda message: None
    ) -> None:
        self.path, self.patience, self.say = path, patience, say
        self._on_disk = 0.0
        try:
            self._lock = paths.lock_of(path, wait=False)
        except BlockingIOError:
            raise CannotRun(f"the sweep {path} is under way in another process; wait for it, or end it") from None

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, kind: object, *rest: object) -> None:
        with nullcontext() if kind is None else suppress(CannotRun):
            self.close()

    def done(self) -> dict[str, str]:
        """Returns the keys of the jobs in the file, each with the verdict of its last record."""
        return {record["job"]["key"]: verdict_of(record) for record in read(self.path)}

    def set_aside(self) -> None:
        """Renames the file of an earlier run, and starts a new one."""
        with suppress(FileNotFoundError):
            stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(self.path.stat().st_mtime))
            self.path.rename(self.path.with_name(f"{self.path.stem}.{stamp}-{os.getpid()}.jsonl"))

    def add(self, record: Record) -> None:
        """Writes a record. Raises `CannotRun` if the disk stays full."""
        deadline = time.monotonic() + self.patience
        was_reported = False
        while True:
            now = time.monotonic()
            to_disk = now - self._on_disk > TO_DISK
            try:
                records.append(self.path, record, to_disk=to_disk)
            except CannotRun as error:
                if now > deadline:
                    raise
                if not was_reported:
                    self.say(f"{error}; waiting up to {self.patience:g} s for room")
                    was_reported = True
                time.sleep(0.5)
            else:
                self._on_disk = now if to_disk else self._on_disk
                return

    def close(self) -> None:
        """Waits until everything is on the disk. Raises `CannotRun` if that fails."""
        try:
            if self.path.exists():
                records.append(self.path)
        finally:
            self._lock.release()


def verdict_of(record: Record) -> str:
    """Returns a record's verdict in a word: failed (no result), wrong, unsound, right, or predicted."""
    soundness = record.get("soundness") or {}
    if "failure" in record:
        return "failed"
    if (record.get("validation") or {}).get("passed") is False or soundness.get("correct") is False:
        return "wrong"
    if is_unsound(record):
        return "unsound"
    return "right" if record.get("validation") or soundness else "predicted"


def is_unsound(record: Record) -> bool:
    """Returns whether a check found errors of synchronisation, or did not end."""
    soundness = record.get("soundness") or {}
    return bool(soundness.get("errors") or soundness.get("failure"))


def read(path: Path) -> Iterator[Record]:
    """Yields the records of a sweep in the order of writing. Other lines are left out."""
    if path.exists():
        for entry in records.read(path, _problem):
            if not isinstance(entry, DamagedLine):
                yield entry


def _problem(record: Record) -> str | None:
    job = record.get("job")
    return None if isinstance(job, dict) and isinstance(job.get("key"), str) else "a record of a sweep without job.key"
