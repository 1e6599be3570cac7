"""The parent of the GPU process: starts it, listens, and ends it when it takes too long."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from queue import Empty, Queue
from typing import Any

from harness import paths


@dataclass
class Outcome:
    """What came back. ``failure`` is None if the child finished; ``phase`` is the last event before a failure."""

    events: dict[str, dict[str, Any]] = field(default_factory=dict)
    failure: str | None = None
    phase: str = "starting"
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)


def supervise(request: dict[str, Any], timeout: float, command: list[str] | None = None) -> Outcome:
    """Run one request in a child. ``timeout``: seconds between two events, after which the child is killed.

    A child that crashes, hangs or prints nonsense makes a failure in the outcome; what it reported before is kept.
    """
    # Devices are numbered as nvidia-smi numbers them, so that CUDA_VISIBLE_DEVICES means the same everywhere.
    environment = {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(paths.ROOT), *filter(None, sys.path)]),
    }
    start = time.monotonic()
    child = subprocess.Popen(
        command or [sys.executable, "-m", "harness.run.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )
    assert child.stdin and child.stdout and child.stderr
    lines: Queue[str | None] = Queue()
    errors: list[str] = []
    threads = [
        threading.Thread(target=_forward, args=(child.stdout, lines), daemon=True),
        threading.Thread(target=lambda: errors.extend(child.stderr or ()), daemon=True),
    ]
    for thread in threads:
        thread.start()
    outcome = Outcome()
    try:
        with contextlib.suppress(BrokenPipeError):
            child.stdin.write(json.dumps(request) + "\n")
            child.stdin.close()
        _listen(lines, outcome, timeout)
        if outcome.failure is None and "finished" not in outcome.events:
            code = child.wait(timeout=10)
            threads[1].join(timeout=1)
            last = next((line.strip() for line in reversed(errors) if line.strip()), "no message")
            outcome.failure = f"the GPU process ended with code {code} while {_doing(outcome)}: {last}"
    finally:
        _end(child)
        outcome.seconds = time.monotonic() - start
    return outcome


def _forward(stream: Any, lines: Queue[str | None]) -> None:
    for line in stream:
        lines.put(line)
    lines.put(None)


def _listen(lines: Queue[str | None], outcome: Outcome, timeout: float) -> None:
    while True:
        try:
            line = lines.get(timeout=timeout)
        except Empty:
            outcome.failure = f"no sign of life for {timeout:g} s while {_doing(outcome)}; the GPU process was ended"
            return
        if line is None:
            return
        try:
            event = json.loads(line)
            name = event.pop("event")
        except (ValueError, KeyError, AttributeError):
            continue
        if name == "failed":
            outcome.failure = event["message"]
            return
        if name == "note":
            outcome.notes.append(event["message"])
            continue
        outcome.events[name] = event
        outcome.phase = name
        if name == "finished":
            return


_DOING = {
    "starting": "starting",
    "started": "loading the model",
    "loaded": "running the kernel for the first time",
    "launched": "being validated",
    "checked": "warming up",
    "sampled": "being timed",
}


def _doing(outcome: Outcome) -> str:
    return _DOING.get(outcome.phase, outcome.phase)


def _end(child: subprocess.Popen[str]) -> None:
    """End the child and everything it started. A GPU that hangs may keep the process for a while; do not wait for
    it.
    """
    if child.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(timeout=5)
