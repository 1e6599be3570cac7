"""Runs a launchable under several schedules: the same result must come out of each."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from functools import partial

from harness.errors import CannotRun
from harness.launch.launching import Outcome, run
from harness.launch.options import EmulationOptions, under_schedules
from harness.launch.spec import Launchable
from harness.processes.engine import in_order

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Tried:
    """Holds what one schedule gave: an outcome, or why there is none. options: with this schedule."""

    options: EmulationOptions
    outcome: Outcome | None
    error: str = ""

    @property
    def seed(self) -> int | None:
        """Of a random schedule."""
        return None if self.options.schedule == "fifo" else self.options.seed

    @property
    def name(self) -> str:
        return "fifo" if self.seed is None else f"seed {self.seed}"

    def require(self) -> Outcome:
        """Returns the outcome. Raises CannotRun if there is none."""
        if self.outcome is None:
            raise CannotRun(self.error)
        return self.outcome

    @property
    def passed(self) -> bool:
        return self.outcome is not None and self.outcome.passed


def run_schedules(
    what: Launchable,
    options: EmulationOptions,
    count: int,
    progress: Progress | None = None,
    keep: Collection[str] | None = None,
) -> Iterator[Tried]:
    """Yields one after the other as they are done, in the order of `under_schedules`. Processes share the clusters of a
    single run; several run side by side. keep: as of `harness.launch.launching.run`.

    progress is called with parts done, and all of them. Raises UsageProblem for what a launch file asks wrongly.
    """
    each = under_schedules(options if count == 1 else replace(options, jobs=1), count)
    if count == 1 or options.jobs == 1:
        for number, one in enumerate(each):
            yield _try(what, keep, one, _share(progress, number, count))
        return
    for number, tried in enumerate(in_order(partial(_try, what, keep), each, min(options.jobs, count)), 1):
        if progress:
            progress(number, count)
        yield tried


def _try(
    what: Launchable, keep: Collection[str] | None, options: EmulationOptions, progress: Progress | None = None
) -> Tried:
    try:
        return Tried(options, run(what, options, progress, keep=keep))
    except CannotRun as error:
        return Tried(options, None, str(error))


def _share(progress: Progress | None, before: int, count: int) -> Progress | None:
    """The progress of one of several runs, as a part of them all."""
    if progress is None:
        return None
    return lambda done, total: progress(before * total + done, count * total)
