"""Does what a sweep plans: compilations first, then the jobs, each recorded as it ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import ceil
from typing import Any

from harness.build.artifacts import is_built
from harness.build.config import KernelConfig
from harness.experiments.job import Job
from harness.experiments.journal import Journal
from harness.experiments.perform import SourceMismatch, compile_together, failure, perform
from harness.experiments.sweep_plan import Plan
from harness.processes.engine import Done, Engine

Record = dict[str, Any]
MOST_TOGETHER = 16
"""Configurations of one compilation: what they have in common is compiled once, but another worker could do some."""
COMPILE_SECONDS = 1800.0


@dataclass
class Tally:
    """How far a sweep is. planned: jobs that can be; refused: that cannot. ran: with a result, of which some are wrong;
    failed: without one; reused: recorded by an earlier run, of which some have failed there.
    """

    planned: int = 0
    refused: int = 0
    ran: int = 0
    failed: int = 0
    reused: int = 0
    wrong: int = 0
    unsound: int = 0
    reasons: dict[str, int] = field(default_factory=dict)

    @property
    def done(self) -> int:
        return self.ran + self.failed + self.reused

    def as_dict(self) -> dict[str, int]:
        """What scripts are told."""
        names = ("planned", "refused", "ran", "failed", "reused", "wrong", "unsound")
        return {name: getattr(self, name) for name in names}


Report = Callable[[str, Tally], None]
"""Called with what is being done, and how far it is."""


def sweep(
    plan: Plan,
    engine: Engine,
    journal: Journal,
    *,
    workers: int = 1,
    limit: float | None = None,
    resume: bool = False,
    retry_failed: bool = False,
    report: Report = lambda what, tally: None,
    everywhere: bool = False,
    do: Callable[[Job], Record] = perform,
) -> Tally:
    """Does the jobs that the journal lacks. limit: seconds that one may take. everywhere: whether workers are on other
    machines, whose build caches are not known here. do: what is done of each job.
    """
    tally = Tally(plan.count, sum(plan.refused.values()))
    if not resume:
        journal.set_aside()
    known = {key for key, failed in journal.done().items() if not (failed and retry_failed)}
    needs = "GPU" if plan.sweep.device == "gpu" else "CPU"
    broken = _compile(plan, engine, workers, everywhere, report, tally)

    def waiting() -> Iterator[Job]:
        for job in plan.jobs():
            if job.key in known:
                tally.reused += 1
            elif job.config in broken:
                _keep(journal, tally, Done(job, error=broken[job.config]))
            else:
                yield job

    for done in engine.map(do, waiting(), limit, needs):
        if isinstance(done.error, SourceMismatch):
            raise done.error
        _keep(journal, tally, done)
        report("running", tally)
    report("running", tally)
    return tally


def _keep(journal: Journal, tally: Tally, done: Done[Job]) -> None:
    if done.error is None:
        tally.ran += 1
        record = done.value
        tally.wrong += (record.get("validation") or {}).get("passed") is False
        soundness = record.get("soundness") or {}
        tally.unsound += bool(soundness.get("errors") or soundness.get("failure"))
        tally.wrong += soundness.get("correct") is False
    else:
        tally.failed += 1
        reason = str(done.error) or type(done.error).__name__
        tally.reasons[reason.splitlines()[0]] = tally.reasons.get(reason.splitlines()[0], 0) + 1
        record = failure(done.item, reason, done.log, done.deaths)
    journal.add(record)


def _compile(
    plan: Plan, engine: Engine, workers: int, everywhere: bool, report: Report, tally: Tally
) -> dict[KernelConfig, Exception]:
    """Builds what is missing, several configurations in one compilation; what cannot be built, and why."""
    for_gpu = plan.sweep.device == "gpu"
    missing = [config for config in plan.configs if everywhere or for_gpu or not is_built(config)]
    if not missing:
        return {}
    size = max(1, min(MOST_TOGETHER, ceil(len(missing) / workers)))
    batches = [(tuple(missing[n : n + size]), for_gpu) for n in range(0, len(missing), size)]
    broken: dict[KernelConfig, Exception] = {}
    left = len(missing)
    report(f"compiling {left} configurations", tally)
    for done in engine.map(compile_together, batches, COMPILE_SECONDS):
        left -= len(done.item[0])
        if done.error:
            broken |= dict.fromkeys(done.item[0], done.error)
        else:
            broken |= {config: RuntimeError(reason) for config, reason in done.value}
        report(f"compiling {left} configurations", tally)
    return broken
