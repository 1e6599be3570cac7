"""A process that does one piece of work after another: ``python -m harness.processes.worker``, started by `Hand`.

Requests come on standard input, answers go to standard output, both pickled. What the work prints goes to standard
error. If the other end goes away, however it ended, this process and all that it started end at once.
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

from harness.errors import CannotRun, UsageProblem


def main() -> None:
    """Entry of the process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what becomes of an interruption
    faulthandler.enable()
    requests, answers = Connection(os.dup(0), writable=False), Connection(os.dup(1), readable=False)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    waiting: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=_listen, args=(requests, waiting), daemon=True).start()
    while True:
        answers.send_bytes(_work(waiting.get()))


def _listen(requests: Connection, waiting: SimpleQueue[bytes]) -> None:
    with contextlib.suppress(EOFError, OSError):
        while True:
            waiting.put(requests.recv_bytes())
    os.killpg(0, signal.SIGKILL)  # with what it started; it is the leader of its group


def _work(request: bytes) -> bytes:
    limit = None
    try:
        function, item, limit = pickle.loads(request)
        if limit is not None:
            # Says where it hangs, and ends the process even where Python code no longer runs.
            faulthandler.dump_traceback_later(limit, exit=True)
        return pickle.dumps(("value", function(item)))
    except Exception as error:
        return _failed(error)
    finally:
        if limit is not None:
            faulthandler.cancel_dump_traceback_later()
        sys.stdout.flush()


def _failed(error: Exception) -> bytes:
    """The exception itself, if it survives being sent; else one of the same exit code that says the same."""
    try:
        data = pickle.dumps(("error", error))
        pickle.loads(data)
    except Exception:
        plain: Any = UsageProblem if isinstance(error, UsageProblem) else CannotRun
        words = str(error) if isinstance(error, plain) else f"{type(error).__name__}: {error}"
        return pickle.dumps(("error", plain(words)))
    return data


if __name__ == "__main__":
    main()
