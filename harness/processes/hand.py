"""The parent's side of a worker process: it is given work, asked for answers, and ended when it takes too long."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, Literal

from harness import paths
from harness.errors import CannotRun
from harness.processes.outcome import Reply

GRACE = 5.0
"""Seconds after its limit in which a worker may end itself, and say where it hung."""
LOG_BYTES = 8000
ONE_THREAD = {f"{library}_NUM_THREADS": "1" for library in ("OPENBLAS", "OMP", "MKL")}
"""There are as many workers as cores: more threads in each would only get in the way."""
LEFT_OUT = ("MALLOC_TRIM_THRESHOLD_",)
"""Dask sets it for its workers, so that they give memory back early. A process that emulates asks for it again at once:
the pages that the kernel has to clear each time took a sixth of an emulated job."""


def request(function: Callable[[Any], Any], item: Any, limit: float | None) -> bytes:
    """What a worker is sent: function of item is wanted. limit: seconds it may take."""
    return pickle.dumps((function, item, limit))


def _read(answer: bytes) -> tuple[Literal["value", "error"], Any]:
    try:
        return pickle.loads(answer)
    except Exception as error:
        return "error", CannotRun(f"a worker's answer cannot be read ({type(error).__name__}: {error})")


class Hand:
    """One worker process."""

    def __init__(self) -> None:
        self._log = tempfile.TemporaryFile("a+b")  # noqa: SIM115  # closed by `end`
        environment = {
            **ONE_THREAD,
            **{name: value for name, value in os.environ.items() if name not in LEFT_OUT},
            "PYTHONPATH": os.pathsep.join([str(paths.ROOT), *filter(None, sys.path)]),
        }
        self._process = subprocess.Popen(
            # -P: not what the working directory calls harness
            [sys.executable, "-P", "-m", "harness.processes.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=environment,
            start_new_session=True,
        )
        assert self._process.stdin and self._process.stdout
        self._requests = Connection(os.dup(self._process.stdin.fileno()), readable=False)
        self.answers = Connection(os.dup(self._process.stdout.fileno()), writable=False)
        """Ready to be read when there is an answer, or the process has ended."""
        self._process.stdin.close()
        self._process.stdout.close()
        self._limit: float | None = None
        self._start = 0.0

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def seconds_left(self) -> float | None:
        """Until the process is ended; None: no limit."""
        return None if self._limit is None else self._start + self._limit + GRACE - time.monotonic()

    def give(self, request: bytes, limit: float | None) -> None:
        """Has a `request` worked out."""
        self._limit, self._start = limit, time.monotonic()
        with contextlib.suppress(OSError):
            self._log.truncate(0)
        with contextlib.suppress(OSError):  # it has died: the answer says so
            self._requests.send_bytes(request)

    def answer(self) -> Reply:
        """Waits for it, until the limit."""
        try:
            left = self.seconds_left
            if not self.answers.poll(None if left is None else max(left, 0)):
                self.end()
                return Reply("late", log=self._said)
            kind, value = _read(self.answers.recv_bytes())
        except (EOFError, OSError):
            self.end()
            late = self._limit is not None and time.monotonic() - self._start >= self._limit
            return Reply("late" if late else "died", log=f"{self._ending}\n{self._said}")
        return Reply(kind, value, self._said if kind == "error" else "")

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def end(self) -> None:
        """Ends the process and all that it started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._requests.close()

    def close(self) -> None:
        """Ends it, and forgets what it said."""
        self.end()
        self.answers.close()
        self._log.close()

    @property
    def _said(self) -> str:
        size = os.fstat(self._log.fileno()).st_size
        return os.pread(self._log.fileno(), LOG_BYTES, max(0, size - LOG_BYTES)).decode(errors="replace").strip()

    @property
    def _ending(self) -> str:
        code = self._process.returncode
        if code is not None and code < 0:
            return f"the process was ended by {signal.Signals(-code).name}"
        return f"the process ended with code {code}"
