"""Result records: one JSON object per line, only ever added to.

A record is written by a single write() of a whole line to a file opened with O_APPEND and is on the disk
(fsync) before the harness says so. An interrupted run therefore leaves no part of a record, and runs at the
same time do not mix their lines. The schema is described in results/README.md.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from harness import paths
from harness.errors import CannotRun

SCHEMA = 1


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


def new_record(**fields: object) -> dict:
    """A record with the fields that every record has: schema version, time and source."""
    return {
        "schema": SCHEMA,
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "git": source_version(),
        **fields,
    }


def append(path: Path, record: dict) -> None:
    """Adds a record to a file."""
    line = json.dumps(record, allow_nan=False, separators=(",", ":"))
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            # A line that someone else left unfinished must not swallow this one.
            size = os.fstat(descriptor).st_size
            start = "\n" if size and os.pread(descriptor, 1, size - 1) != b"\n" else ""
            data = f"{start}{line}\n".encode()
            if os.write(descriptor, data) != len(data):
                raise OSError(28, "the disk is full")
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise CannotRun(_not_writable(path, error)) from error


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


def source_version() -> dict | None:
    """The commit of the checkout and whether files other than results differ from it; None outside of git."""
    commit = _git("rev-parse", "HEAD")
    if commit is None:
        return None
    changed = _git("status", "--porcelain", "--", ".", ":!results")
    return {"commit": commit, "dirty": bool(changed)}


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", paths.ROOT, *arguments], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _not_writable(path: Path, error: OSError) -> str:
    way_out = "use --no-save, or set HARNESS_RESULTS_DIR to another folder"
    return f"cannot write the record to {path}: {error.strerror}; {way_out}"
