"""Reads and appends result records: files with one JSON object per line.

A record is written completely or not at all: writers take turns by a lock on the file, and a record that could not be
written completely to the disk (fsync) is removed again. A machine that loses power can still leave an unfinished line;
readers report it, and it does not damage later records. The schema is described in results/README.md.
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
from emugpu.record import SCHEMA
from harness import paths

SAMPLES = "samples"
"""The field of raw samples in a timing and in each of its vendors, and the folder beside a record file that keeps them.
"""
BEST = "best_of_cublaslt"
VENDORS = ("cublas", BEST)
"""The vendors of GEMMs in a record: cuBLAS's own choice, and the best of cuBLASLt's algorithms (`harness.run.vendors`).
"""


@dataclass(frozen=True)
class DamagedLine:
    """A line of a record file that is not a record."""

    path: Path
    number: int
    reason: str

    def __str__(self) -> str:
        return f"{self.path}:{self.number}: skipped: {self.reason}"


def record_file(device_kind: str) -> Path:
    """Returns the file of a kind of device, such as ``emulated-sm_100a``. Raises an error if it cannot be written."""
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
    """Adds records to a file, all of them or none.

    The raw samples of their times go to a file of the same name in the folder ``samples``, one line for each record,
    before the record that has the key of this line. With ``to_disk`` the function waits until the records are on the
    disk; without it they are lost if the machine, not the process, stops at once.
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


def is_timed(record: Mapping[str, Any]) -> bool:
    """Returns whether the record has a measured time."""
    return isinstance((record.get("timing") or {}).get("seconds"), int | float)


def _without_samples(record: dict) -> tuple[dict, dict | None]:
    """Returns the record with a key instead of its raw samples, and the samples with the key, or None if there are
    none.
    """
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
    """Waits for other writers until the file is closed. Returns whether the lock works; some network file systems lack
    it.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    except OSError:
        return False
    return True


def _append_whole(descriptor: int, line: bytes, locked: bool, to_disk: bool) -> None:
    """Appends a whole line to a file, or leaves the file unchanged."""
    size = os.fstat(descriptor).st_size
    # Start a new line if another writer left the last one unfinished.
    data = b"\n" + line if size and os.pread(descriptor, 1, size - 1) != b"\n" else line
    try:
        while data:
            data = data[os.write(descriptor, data) :]
        if to_disk:
            os.fsync(descriptor)
    except BaseException:  # also on an interruption
        if locked:  # without a lock, another writer's data may follow
            with contextlib.suppress(OSError):
                os.ftruncate(descriptor, size)
        raise


def read(path: Path, problem: Callable[[dict], str | None] = lambda record: None) -> Iterator[dict | DamagedLine]:
    """Yields the records of a file in order, and a `DamagedLine` for each line that is not a record.

    ``problem`` returns what a record lacks for the reader's purpose, or None.
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
