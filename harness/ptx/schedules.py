"""Runs a launch file under many random schedules: the same result must come out of each."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

from harness.errors import CannotRun
from harness.ptx.launch_file import LaunchFile
from harness.ptx.launching import Options, Outcome, run


@dataclass(frozen=True)
class Tried:
    """What one schedule gave: an outcome, or why there is none."""

    seed: int
    outcome: Outcome | None
    error: str = ""

    @property
    def passed(self) -> bool:
        return self.outcome is not None and self.outcome.passed


def run_schedules(
    file: LaunchFile, options: Options, count: int, progress: Callable[[int, int], None] | None = None
) -> list[Tried]:
    """Random schedules with seeds from ``options.seed`` on. ``options.jobs`` processes run them side by side.

    progress is called with (schedules done, count). Raises UsageProblem for what the file asks wrongly.
    """
    seeds = range(options.seed, options.seed + count)
    one = partial(_try, file, replace(options, schedule="random", jobs=1))
    if options.jobs == 1:
        return [_count(tried, n, count, progress) for n, tried in enumerate(map(one, seeds), 1)]
    with ProcessPoolExecutor(min(options.jobs, count), multiprocessing.get_context("fork")) as pool:
        return [_count(tried, n, count, progress) for n, tried in enumerate(pool.map(one, seeds), 1)]


def _try(file: LaunchFile, options: Options, seed: int) -> Tried:
    try:
        outcome = run(file, replace(options, seed=seed))
    except CannotRun as error:
        return Tried(seed, None, str(error))
    return Tried(seed, outcome)


def _count(tried: Tried, done: int, count: int, progress: Callable[[int, int], None] | None) -> Tried:
    if progress:
        progress(done, count)
    return tried
