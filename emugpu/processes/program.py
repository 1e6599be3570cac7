"""Programs that run in a session of their own with a time limit, and that end when this process ends in any way."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import re
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG = 1
"""The option of Linux's prctl(2)."""
PATIENCE = 5.0
"""Seconds to wait for a killed process. A process that a GPU holds may stay for a while, and is then left behind."""

QUERY_SECONDS = 60
"""The time limit for a program that is asked about itself."""
MOST_SHOWN = 200
"""The most characters of a command in the log."""

_log = logging.getLogger(__name__)
_prctl = getattr(ctypes.CDLL(None), "prctl", None)


def end_with_parent() -> None:
    """Makes the kernel end this process with the thread that started it. Other systems than Linux ignore this."""
    if _prctl is not None:
        _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def start(command: Sequence[Any], **streams: Any) -> subprocess.Popen[Any]:
    """Starts a program in a new session, so that Ctrl-C does not reach it. It must end when its standard input does."""
    process = subprocess.Popen(command, start_new_session=True, **streams)
    _log.debug("process %d: %s", process.pid, " ".join(map(str, command))[:MOST_SHOWN])
    return process


def end(process: subprocess.Popen[Any]) -> None:
    """Ends a process that leads its session, and all processes that it started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(PATIENCE)


def tree(pid: int) -> list[int]:
    """Returns a process and all that it and those below it have started (on Linux; elsewhere the process alone)."""
    parents = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents[int(status.parent.name)] = int(status.read_text("utf-8", "replace").rpartition(")")[2].split()[1])
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found


def end_all(pids: Sequence[int], patience: float = 0.0) -> None:
    """Asks processes to end, and kills those that have not ended after so many seconds."""
    _send(signal.SIGTERM, pids)
    end = time.monotonic() + patience
    while any(map(_runs, pids)) and time.monotonic() < end:
        time.sleep(0.02)
    _send(signal.SIGKILL, pids)


def _send(number: signal.Signals, pids: Sequence[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _runs(pid: int) -> bool:
    """Returns whether a process has not ended; one that waits to be collected has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def run(command: Sequence[Any], limit: float, input: str | None = None, **how: Any) -> subprocess.CompletedProcess[str]:
    """Runs a program to its end, and returns what it printed.

    Raises `OSError` if it cannot be started, and `subprocess.TimeoutExpired` after so many seconds. In both cases no
    process of it is left.
    """
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    pipes |= {"stdin": subprocess.DEVNULL if input is None else subprocess.PIPE}
    process = start(command, preexec_fn=end_with_parent, **{**pipes, "encoding": "utf-8", "errors": "replace", **how})
    try:
        output, errors = process.communicate(input, limit)
    finally:
        end(process)
        _log.debug("process %d ended with code %s", process.pid, process.returncode)
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                stream.close()
    return subprocess.CompletedProcess(command, process.returncode, output, errors)


def output_of(program: Path, *arguments: str) -> str:
    """Returns what a program prints. Raises OSError if it cannot be run, SubprocessError if it fails."""
    return subprocess.run(
        [program, *arguments],
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        timeout=QUERY_SECONDS,
        stdin=subprocess.DEVNULL,
        check=True,
    ).stdout


def ask_version(program: Path) -> tuple[str | None, str | None]:
    """Returns (the version, None) from ``--version``, or (None, why there is none)."""
    try:
        text = output_of(program, "--version").strip()
    except (OSError, subprocess.SubprocessError) as error:
        return None, _reason(error)
    if not text:
        return None, "it says nothing about its version"
    # NVIDIA's tools print several lines, the version as V13.0.88; Mojo prints "Mojo 1.2.0 (2016d0cd)".
    release = re.findall(r"\bV(\d[\w.]*)", text)
    return (release[-1] if release else text.splitlines()[-1].removeprefix("Mojo").strip()), None


def _reason(error: Exception) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        last = (error.stderr or error.stdout or "").strip().splitlines()
        return f"it ends with code {error.returncode}{f': {last[-1]}' if last else ''}"
    if isinstance(error, subprocess.TimeoutExpired):
        return f"it does not answer in {QUERY_SECONDS} s"
    return f"it cannot be run ({error.strerror if isinstance(error, OSError) else error})"
