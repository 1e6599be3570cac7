"""The worker's side of a `WorkerProcess`: it does one job after another.

Requests arrive on standard input. Events and results go to standard output. All of them are pickled. What a job prints
goes to standard error. If the parent ends in any way, this process and all processes that it started end at once.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import pickle
import signal
import sys
import threading
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any

from emugpu.errors import CannotRun, UsageProblem

_answers: Connection | None = None
_limit: float | None = None


def main() -> None:
    """Serves requests until the parent ends."""
    global _answers
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles interruptions
    faulthandler.enable()
    requests, _answers = Connection(os.dup(0), writable=False), Connection(os.dup(1), readable=False)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    waiting: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=_listen, args=(requests, waiting), daemon=True).start()
    while True:
        _answers.send_bytes(_work(waiting.get()))


def send_event(event: Any) -> None:
    """Sends the parent an event of the current job. The time limit starts again."""
    assert _answers is not None, "only a worker process has a parent to send events to"
    _watch(_limit)
    _answers.send_bytes(pickle.dumps(("event", event)))


def _listen(requests: Connection, waiting: SimpleQueue[bytes]) -> None:
    """Receives requests until the parent is gone, then kills the process group: this process and all it started."""
    with contextlib.suppress(EOFError, OSError):
        while True:
            waiting.put(requests.recv_bytes())
    os.killpg(0, signal.SIGKILL)  # this process leads its group


def _work(request: bytes) -> bytes:
    global _limit
    try:
        function, item, _limit = pickle.loads(request)
        _watch(_limit)
        return pickle.dumps(("value", function(item)))
    except Exception as error:
        return _failed(error)
    finally:
        faulthandler.cancel_dump_traceback_later()
        sys.stdout.flush()


def _watch(limit: float | None) -> None:
    """Makes the process print where it hangs after so many seconds, and end, even if Python code no longer runs."""
    if limit is not None:
        faulthandler.dump_traceback_later(limit, exit=True)


def _failed(error: Exception) -> bytes:
    """Pickles the exception if it can be unpickled, or else one with the same exit code and message."""
    try:
        data = pickle.dumps(("error", error))
        pickle.loads(data)
    except Exception:
        plain: Any = UsageProblem if isinstance(error, UsageProblem) else CannotRun
        words = str(error) if isinstance(error, plain) else f"{type(error).__name__}: {error}"
        return pickle.dumps(("error", plain(words)))
    return data
