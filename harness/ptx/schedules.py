"""Runs a launch file under several schedules: the same result must come out of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from harness.errors import CannotRun
from harness.jobs.processes import in_order
from harness.ptx.launching import Options, Outcome, run
from harness.ptx.spec import LaunchFile


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
    seeds = [None, *range(options.seed, options.seed + count - 1)]
    one = partial(_try, file, replace(options, jobs=1))
    tried = in_order(one, seeds, min(options.jobs, count))
    return [_count(each, n, count, progress) for n, each in enumerate(tried, 1)]


def _try(file: LaunchFile, options: Options, seed: int | None) -> Tried:
    try:
        outcome = run(file, replace(options, schedule="fifo" if seed is None else "random", seed=seed or 0))
    except CannotRun as error:
        return Tried(seed, None, str(error))
    return Tried(seed, outcome)


def _count(tried: Tried, done: int, count: int, progress: Callable[[int, int], None] | None) -> Tried:
    if progress:
        progress(done, count)
    return tried
