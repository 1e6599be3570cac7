"""Result records: one JSON object per line, only ever added to.

A record is there whole or not at all: writers take turns by a lock on the file, and what could not be written to its
end, and to the disk (fsync), is taken away again. A line that was left unfinished all the same, by a machine that lost
power, is reported by readers and swallows nothing. The schema is described in results/README.md.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from emugpu.errors import CannotRun
from emugpu.files import FileLock
from emugpu.record import SCHEMA
from harness import paths

SAMPLES = "samples"
"""The field of a timing, and of each vendor's in it, that has its raw samples; the folder beside a record file where
they are kept."""
VENDORS = ("cublas", "max")
"""Whose GEMMs a record compares with: cuBLAS, and MAX's own matmul, which each process compiles anew."""


@dataclass(frozen=True)
class DamagedLine:
    """A line of a record file that is not a record."""

    path: Path
    number: int
    reason: str

    def __str__(self) -> str:
        return f"{self.path}:{self.number}: skipped: {self.reason}"


def record_file(device_kind: str) -> Path:
    """The file of a kind of device, for example ``emulated-sm_100a``; an error if it cannot be written."""
    path = paths.results_dir() / f"{device_kind}.jsonl"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CannotRun(_not_writable(path, error)) from error
    existing = path if path.exists() else path.parent
    if not os.access(existing, os.W_OK):
        raise CannotRun(_not_writable(path, PermissionError(13, "Permission denied")))
    return path


def append(path: Path, *several: dict, to_disk: bool = True) -> None:
    """Adds records to a file, all of them or none. The raw samples of their times go to a file of the same name in the
    folder ``samples`` beside it, one line for each record, before the record that has the key of this line. to_disk:
    whether to wait until the disk has them; if not, they are lost if the machine, not the process, ends at once.
    """
    pairs = [_without_samples(record) for record in several]
    samples = [line for _, line in pairs if line]
    if samples:
        beside = path.parent / SAMPLES / path.name
        try:
            beside.parent.mkdir(exist_ok=True)
        except OSError as error:
            raise CannotRun(_not_writable(beside, error)) from error
        _append(beside, samples, to_disk)
    _append(path, [record for record, _ in pairs], to_disk)


def lock_of(path: Path, wait: bool = True) -> FileLock:
    """Returns the lock of a file that is changed, and not only added to. wait: for another process that has it; else
    `BlockingIOError` is raised."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return FileLock(path.with_suffix(".lock"), wait)
    except BlockingIOError:
        raise
    except OSError as error:
        raise CannotRun(
            f"cannot write to {path.parent}: {error.strerror}; set HARNESS_RESULTS_DIR to another folder"
        ) from None


def is_timed(record: Mapping[str, Any]) -> bool:
    """Whether the record has a time that was measured."""
    return isinstance((record.get("timing") or {}).get("seconds"), int | float)


def _without_samples(record: dict) -> tuple[dict, dict | None]:
    """The record with a key in the place of its raw samples, and these with the key; None: it has none."""
    timing = record.get("timing") or {}
    if not isinstance(timing.get(SAMPLES), list):
        return record, None
    vendors = timing.get("vendor") or {}
    raw = {"kernel": timing[SAMPLES], **{name: vendor.get(SAMPLES, []) for name, vendor in vendors.items()}}
    key = hashlib.blake2b(json.dumps(raw).encode(), digest_size=8).hexdigest()
    slim = {name: {k: v for k, v in vendor.items() if k != SAMPLES} for name, vendor in vendors.items()}
    kept = {**timing, SAMPLES: key, **({"vendor": slim} if vendors else {})}
    return {**record, "timing": kept}, {"schema": SCHEMA, "key": key, "seconds": raw}


def _append(path: Path, lines: Sequence[dict], to_disk: bool) -> None:
    text = "".join(json.dumps(line, allow_nan=False, separators=(",", ":")) + "\n" for line in lines)
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            _append_whole(descriptor, text.encode(), _lock(descriptor), to_disk)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise CannotRun(_not_writable(path, error)) from error


def _lock(descriptor: int) -> bool:
    """Waits for other writers until the file is closed. Whether that can be had: some network file systems lack it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    except OSError:
        return False
    return True


def _append_whole(descriptor: int, line: bytes, locked: bool, to_disk: bool) -> None:
    """All of a line at the end of a file, or the file as it was."""
    size = os.fstat(descriptor).st_size
    # A line that someone else left unfinished must not swallow this one.
    data = b"\n" + line if size and os.pread(descriptor, 1, size - 1) != b"\n" else line
    try:
        while data:
            data = data[os.write(descriptor, data) :]
        if to_disk:
            os.fsync(descriptor)
    except BaseException:  # an interruption, too
        if locked:  # else what follows may be another's
            with contextlib.suppress(OSError):
                os.ftruncate(descriptor, size)
        raise


def read(path: Path, problem: Callable[[dict], str | None] = lambda record: None) -> Iterator[dict | DamagedLine]:
    """The records of a file in order, with a `DamagedLine` in the place of a line that is not a record.

    problem: says what a record lacks for the reader's purpose; None: nothing.
    """
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
            except ValueError as error:
                yield DamagedLine(path, number, f"not JSON ({error})")
                continue
            if not isinstance(record, dict) or record.get("schema") != SCHEMA:
                yield DamagedLine(path, number, f"not a record of schema {SCHEMA}")
                continue
            found = problem(record)
            yield DamagedLine(path, number, found) if found else record


def _not_writable(path: Path, error: OSError) -> str:
    return f"cannot write the record to {path}: {error.strerror}; set HARNESS_RESULTS_DIR to another folder"
