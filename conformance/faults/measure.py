"""Runs all programs on a GPU, alone and under compute-sanitizer, several at a time, within a limit of time."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conformance.faults import sanitizer
from conformance.faults.programs import Fault, by_id
from conformance.gpu import ROOT
from emugpu.processes import program

UNDER_A_TOOL = 3
"""Launches of a program under a tool of compute-sanitizer."""
START = 30.0
"""Seconds that a process may take in addition to its launches."""
SAVE = 5.0
"""Seconds between two writings of the results."""


@dataclass(frozen=True)
class Job:
    """One process: a program on the GPU, alone if ``column`` is "gpu", or under a tool of that name."""

    id: str
    column: str
    number: int


@dataclass
class GpuRun:
    """What to measure, and how.

    ``seconds`` is the time after which a launch counts as a hang, ``budget`` that for everything. ``tool`` is
    compute-sanitizer, if there is one.
    """

    ids: tuple[str, ...]
    launches: int
    seconds: float
    budget: float
    processes: int
    tool: Path | None

    def __post_init__(self) -> None:
        self.end = time.monotonic() + self.budget

    def jobs(self) -> list[Job]:
        """Returns all processes in the order of their start: those that may hang are the last of each column, because
        they take the GPU's time from the others.
        """
        ids = sorted(self.ids, key=_may_hang)
        columns = ("gpu", *(sanitizer.TOOLS if self.tool else ()))
        return [Job(id, column, n) for n, (column, id) in enumerate((c, i) for c in columns for i in ids)]

    def one(self, job: Job) -> dict[str, Any] | None:
        """Returns the result of one process, or None if too little time is left for one that hangs."""
        limit = START + self.seconds
        if time.monotonic() + limit > self.end:
            return None
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))
        environment = {**os.environ, "PYTHONPATH": path}
        if job.column == "gpu":
            return _alone(sanitizer.worker(job.id, self.launches, self.seconds), limit, environment)
        assert self.tool
        words = sanitizer.worker(job.id, UNDER_A_TOOL, self.seconds)
        return sanitizer.run(sanitizer.command(self.tool, job.column, job.number, words), limit, environment)


def _may_hang(id: str) -> bool:
    one = by_id()[id]
    return isinstance(one, Fault) and "hangs" in one.finding


def _alone(words: list[str], limit: float, environment: dict[str, str]) -> dict[str, Any]:
    try:
        done = program.run(words, limit, env=environment)
    except subprocess.TimeoutExpired:
        return {"launches": 0, "wrong": 0, "hung": True, "error": f"stopped after {limit:.0f} s"}
    try:
        found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    except (IndexError, ValueError):
        last = (done.stderr.strip().splitlines() or ["nothing was printed"])[-1]
        return {"launches": 0, "wrong": 0, "error": f"exit code {done.returncode}: {last}"}
    return found


def run_all(how: GpuRun, keep: Callable[[Job, dict[str, Any]], None], save: Callable[[], None]) -> int:
    """Runs all processes and hands each result to ``keep``. Returns how many were not started in time."""
    missed, saved = 0, time.monotonic()
    with ThreadPoolExecutor(how.processes) as pool:
        running = {pool.submit(how.one, job): job for job in how.jobs()}
        for done in as_completed(running):
            result = done.result()
            if result is None:
                missed += 1
                continue
            keep(running[done], result)
            if time.monotonic() - saved > SAVE:
                save()
                saved = time.monotonic()
    save()
    return missed
