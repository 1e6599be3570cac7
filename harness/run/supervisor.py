"""Has the GPU process of `harness.run.worker` serve a request, listens to its events, and says how it ended."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from harness.processes.worker_process import WorkerProcess
from harness.processes.worker_process import request as pickled
from harness.run import worker

DOING = {
    "starting": "starting",
    "started": "loading the model",
    "loaded": "running the kernel for the first time",
    "launched": "being validated",
    "checked": "warming up",
    "sampled": "being timed",
}
"""What the process does after each event."""


@dataclass
class Outcome:
    """What came back. ``failure`` is None if the process finished; ``phase`` is the last event before a failure."""

    events: dict[str, dict[str, Any]] = field(default_factory=dict)
    failure: str | None = None
    phase: str = "starting"
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)

    @property
    def doing(self) -> str:
        return DOING.get(self.phase, self.phase)

    def take(self, event: tuple[str, dict[str, Any]]) -> None:
        """Keeps what the process has told."""
        name, fields = event
        if name == "note":
            self.notes.append(fields["message"])
        else:
            self.events[name] = fields
            self.phase = name


def supervise(
    request: dict[str, Any], timeout: float, serve: Callable[[dict[str, Any]], None] = worker.serve
) -> Outcome:
    """Serves one request in a process of its own. timeout: seconds between two events, after which it is ended.

    A process that crashes, hangs or raises makes a failure in the outcome; what it reported before is kept.
    """
    outcome = Outcome()
    start = time.monotonic()
    # Devices are numbered as nvidia-smi numbers them, so that CUDA_VISIBLE_DEVICES means the same everywhere.
    order = {"CUDA_DEVICE_ORDER": os.environ.get("CUDA_DEVICE_ORDER", "PCI_BUS_ID")}
    with WorkerProcess(order, one_thread=False) as process:
        process.submit(pickled(serve, request, timeout), timeout)
        reply = process.result(outcome.take)
    if reply.kind == "late":
        outcome.failure = f"no sign of life for {timeout:g} s while {outcome.doing}; the GPU process was ended"
    elif reply.kind == "died":
        last = next((line.strip() for line in reversed(reply.log.splitlines()) if line.strip()), "no message")
        outcome.failure = f"{reply.ending.replace('the process', 'the GPU process')} while {outcome.doing}: {last}"
    elif reply.kind == "error":
        outcome.failure = str(reply.value)
    outcome.seconds = time.monotonic() - start
    return outcome
