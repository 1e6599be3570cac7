"""The file of a sweep: a record for each job that is done, also for one that failed, so what ``--resume`` leaves out.

Records are written by a thread of its own as they come, together where they come fast. A disk that is full is waited
for; what cannot be written in the end is an error, and what was written by then is kept.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from pathlib import Path
from queue import Empty, Full, Queue
from typing import Any

from harness import paths
from harness.errors import CannotRun
from harness.run import records
from harness.run.records import DamagedLine

Record = dict[str, Any]
WAITING = 1000
"""Records that wait to be written; when there are more, no more work is given."""
TOGETHER = 200
PATIENCE = 60.0
"""Seconds to wait for room on the disk."""


def folder() -> Path:
    """Returns the folder of the files of sweeps."""
    return paths.results_dir() / "sweeps"


class Journal:
    """Open for one sweep: no other process may add to it. say: is told of a disk that is waited for."""

    def __init__(
        self, path: Path, patience: float = PATIENCE, say: Callable[[str], None] = lambda message: None
    ) -> None:
        self.path, self.patience, self.say = path, patience, say
        self._queue: Queue[Record | None] = Queue(WAITING)
        self._error: CannotRun | None = None
        try:
            self._lock = records.lock_of(path, wait=False)
        except BlockingIOError:
            raise CannotRun(f"the sweep {path} is under way in another process; wait for it, or end it") from None
        self._thread = threading.Thread(target=self._write_all, daemon=True)
        self._thread.start()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, kind: object, *rest: object) -> None:
        with nullcontext() if kind is None else suppress(CannotRun):
            self.close()

    def done(self) -> dict[str, str]:
        """Returns the keys of the jobs that the file has, each with its verdict; of several records the last counts."""
        return {record["job"]["key"]: verdict_of(record) for record in read(self.path)}

    def set_aside(self) -> None:
        """Keeps what an earlier run left under another name, and begins anew."""
        with suppress(FileNotFoundError):
            stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(self.path.stat().st_mtime))
            self.path.rename(self.path.with_name(f"{self.path.stem}.{stamp}-{os.getpid()}.jsonl"))

    def add(self, record: Record) -> None:
        """Has a record written soon. Raises `CannotRun` if an earlier one could not be."""
        while self._error is None:
            with suppress(Full):
                self._queue.put(record, timeout=1)
                return
        raise self._error

    def close(self) -> None:
        """Returns when all is written, or raises `CannotRun`."""
        if self._thread.is_alive():
            self._queue.put(None)
        self._thread.join()
        self._lock.release()
        if self._error:
            raise self._error

    def _write_all(self) -> None:
        while (first := self._queue.get()) is not None:
            batch, last = [first], False
            with suppress(Empty):
                while len(batch) < TOGETHER and not last:
                    following = self._queue.get_nowait()
                    if following is None:
                        last = True
                    else:
                        batch.append(following)
            try:
                self._write(batch)
            except CannotRun as error:
                self._error = error
                return
            if last:
                return

    def _write(self, batch: list[Record]) -> None:
        deadline = time.monotonic() + self.patience
        said = False
        while True:
            try:
                return records.append(self.path, *batch)
            except CannotRun as error:
                if time.monotonic() > deadline:
                    raise
                if not said:
                    self.say(f"{error}; waiting up to {self.patience:g} s for room")
                    said = True
            time.sleep(0.5)


def verdict_of(record: Record) -> str:
    """One word for a record: failed (there is no result), wrong, unsound, right, or predicted."""
    soundness = record.get("soundness") or {}
    if "failure" in record:
        return "failed"
    if (record.get("validation") or {}).get("passed") is False or soundness.get("correct") is False:
        return "wrong"
    if is_unsound(record):
        return "unsound"
    return "right" if record.get("validation") or soundness else "predicted"


def is_unsound(record: Record) -> bool:
    """Tells whether a check has found errors of synchronisation, or did not come to its end."""
    soundness = record.get("soundness") or {}
    return bool(soundness.get("errors") or soundness.get("failure"))


def read(path: Path) -> Iterator[Record]:
    """Yields the records of a sweep, in the order in which they were written; lines that are none are left out."""
    if path.exists():
        for entry in records.read(path, _problem):
            if not isinstance(entry, DamagedLine):
                yield entry


def _problem(record: Record) -> str | None:
    job = record.get("job")
    return None if isinstance(job, dict) and isinstance(job.get("key"), str) else "a record of a sweep without job.key"
