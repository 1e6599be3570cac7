"""A worker process: the parent submits jobs, reads results, and ends the worker if it gives no sign of life."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Literal

from emugpu import paths
from emugpu.errors import CannotRun
from emugpu.processes import program

GRACE = 5.0
"""Seconds after its limit in which a worker may end itself and report where it hung."""
LOG_BYTES = 8000
ONE_THREAD = {f"{library}_NUM_THREADS": "1" for library in ("OPENBLAS", "OMP", "MKL")}
"""There are as many workers as cores, so more threads in each would only compete."""
LEFT_OUT = ("MALLOC_TRIM_THRESHOLD_",)
"""Dask sets this for its workers, so that they return memory early. An emulating process needs it again at once, and
the kernel has to clear the pages each time, which took a sixth of an emulated job.
"""


class JobTimeout(CannotRun):
    """The time limit has ended a job."""


class WorkerCrashed(CannotRun):
    """The job has killed so many processes that it is not tried again."""

    def __init__(self, logs: list[str]) -> None:
        super().__init__(f"{len(logs)} processes died of it; of the last one: {logs[-1].strip().partition(chr(10))[0]}")


@dataclass(frozen=True)
class Reply:
    """The outcome of one attempt at a job: a value, an exception, the death of the process, or its time limit.

    log: the end of the process's standard error. ending: how the process died, if it did.
    """

    kind: Literal["value", "error", "died", "late"]
    value: Any = None
    log: str = ""
    ending: str = ""


def request(function: Callable[[Any], Any], item: Any, limit: float | None) -> bytes:
    """Pickles a request to a worker. limit: seconds without a result or an event after which the worker is ended."""
    return pickle.dumps((function, item, limit))


class WorkerProcess:
    """One worker, in a session of its own. environment: overrides the variables of this process."""

    def __init__(self, environment: Mapping[str, str] | None = None, one_thread: bool = True) -> None:
        self._log = tempfile.TemporaryFile("a+b")  # noqa: SIM115  # closed by `close`
        variables = {
            **(ONE_THREAD if one_thread else {}),
            **{name: value for name, value in os.environ.items() if name not in LEFT_OUT},
            **(environment or {}),
            "PYTHONPATH": os.pathsep.join([str(paths.ROOT), *filter(None, sys.path)]),
        }
        # -P: do not import an emugpu from the working directory
        command = [sys.executable, "-P", "-c", "from emugpu.processes.worker import main; main()"]
        pipe = subprocess.PIPE
        self._process = program.start(command, stdin=pipe, stdout=pipe, stderr=self._log, env=variables)
        assert self._process.stdin and self._process.stdout
        self._requests = Connection(os.dup(self._process.stdin.fileno()), readable=False)
        self.answers = Connection(os.dup(self._process.stdout.fileno()), writable=False)
        """Readable when there is a result or an event, or when the process has ended."""
        self._process.stdin.close()
        self._process.stdout.close()
        self._limit: float | None = None
        self._last_event = 0.0
        self._ended = False

    def __enter__(self) -> WorkerProcess:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    @property
    def seconds_left(self) -> float | None:
        """The time until the process is ended; None if there is no limit."""
        return None if self._limit is None else self._last_event + self._limit + GRACE - time.monotonic()

    def submit(self, request: bytes, limit: float | None) -> None:
        """Sends a `request` to the worker."""
        self._limit, self._last_event = limit, time.monotonic()
        with contextlib.suppress(OSError):
            self._log.truncate(0)
        with contextlib.suppress(OSError):  # the process has died; the result will say so
            self._requests.send_bytes(request)

    def result(self, on_event: Callable[[Any], None] = lambda event: None) -> Reply:
        """Waits for the result until the limit. on_event: called with each event before it."""
        try:
            while True:
                left = self.seconds_left
                if not self.answers.poll(None if left is None else max(left, 0)):
                    self.end()
                    return Reply("late", log=self._log_text)
                kind, value = _read(self.answers.recv_bytes())
                if kind != "event":
                    return Reply(kind, value, self._log_text if kind == "error" else "")
                self._last_event = time.monotonic()
                on_event(value)
        except (EOFError, OSError):
            self.end()
            late = self._limit is not None and time.monotonic() - self._last_event >= self._limit
            return Reply("late" if late else "died", log=self._log_text, ending=self._ending)

    def end(self) -> None:
        """Ends the process and all processes that it started."""
        if not self._ended:
            self._ended = True
            program.end(self._process)
            self._requests.close()

    def close(self) -> None:
        """Ends the process, and drops its log."""
        self.end()
        self.answers.close()
        self._log.close()

    @property
    def _log_text(self) -> str:
        size = os.fstat(self._log.fileno()).st_size
        return os.pread(self._log.fileno(), LOG_BYTES, max(0, size - LOG_BYTES)).decode(errors="replace").strip()

    @property
    def _ending(self) -> str:
        code = self._process.returncode
        if code is not None and code < 0:
            return f"the process was ended by {signal.Signals(-code).name}"
        return f"the process ended with code {code}"


def _read(answer: bytes) -> tuple[Any, Any]:
    try:
        kind, value = pickle.loads(answer)
        return kind, value
    except Exception as error:
        return "error", CannotRun(f"a worker's answer cannot be read ({type(error).__name__}: {error})")
