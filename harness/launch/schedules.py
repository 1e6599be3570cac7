"""Runs a launch file under several schedules: the same result must come out of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from harness.errors import CannotRun
from harness.launch.launching import Options, Outcome, run
from harness.launch.spec import LaunchFile
from harness.processes.engine import in_order
from harness.run.emulate import under_schedules


@dataclass(frozen=True)
class Tried:
    """What one schedule gave: an outcome, or why there is none. seed: of a random one, else None."""

    seed: int | None
    outcome: Outcome | None
    error: str = ""

    @property
    def name(self) -> str:
        return "fifo" if self.seed is None else f"seed {self.seed}"

    @property
    def passed(self) -> bool:
        return self.outcome is not None and self.outcome.passed


def run_schedules(
    file: LaunchFile, options: Options, count: int, progress: Callable[[int, int], None] | None = None
) -> list[Tried]:
    """Fifo, and random schedules with seeds from ``options.seed`` on, count in all. ``options.jobs`` processes run them
    side by side.

    progress is called with (schedules done, count). Raises UsageProblem for what the file asks wrongly.
    """
    one = partial(_try, file)
    tried = in_order(one, under_schedules(replace(options, jobs=1), count), min(options.jobs, count))
    return [_count(each, n, count, progress) for n, each in enumerate(tried, 1)]


def _try(file: LaunchFile, options: Options) -> Tried:
    seed = None if options.schedule == "fifo" else options.seed
    try:
        outcome = run(file, options)
    except CannotRun as error:
        return Tried(seed, None, str(error))
    return Tried(seed, outcome)


def _count(tried: Tried, done: int, count: int, progress: Callable[[int, int], None] | None) -> Tried:
    if progress:
        progress(done, count)
    return tried
