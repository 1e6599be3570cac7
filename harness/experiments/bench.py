"""Runs the cases of a suite. Every result is in the history before the next case starts."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from harness.build.artifacts import Artifact, build_each
from harness.build.catalog import find_kernel
from harness.build.toolchain import versions
from harness.errors import CannotRun, HarnessError
from harness.experiments import history
from harness.experiments.facts import static_facts
from harness.experiments.job import sources
from harness.experiments.soundness import check_soundness, is_checked
from harness.experiments.suite import Case, Suite
from harness.launch.options import EmulationOptions
from harness.processes.engine import in_order
from harness.run import records
from harness.run.device import NoDevice, choose_device
from harness.run.runner import Outcome, Request, ScheduleProblem, check_memory, run_in_turns


@dataclass(frozen=True)
class Job:
    """A case and how it is measured on this machine; request None: it cannot be, and why."""

    case: Case
    request: Request | None
    reason: str = ""


@dataclass(frozen=True)
class Measured:
    """A job that is done. record None: not measured, and why. kept: taken over from an interrupted run.

    failed: the run that went wrong, of several schedules the one. unsaved: why the record is not in the history.
    baseline: the record of the other commit, measured in turns with this one; None if none was, or why it could not be.
    """

    job: Job
    record: dict[str, Any] | None
    reason: str = ""
    kept: bool = False
    failed: Request | None = None
    unsaved: str = ""
    baseline: dict[str, Any] | str | None = None


@dataclass(frozen=True)
class Beside:
    """Builds of another commit, to be measured in turns with those of this checkout. run: the name of its run."""

    commit: str
    run: str
    builds: Mapping[Case, Artifact | str]


def prepare(
    suite: Suite, cases: Sequence[Case], *, processes: int = 1, schedules: int = 1, schedule_seed: int = 0
) -> list[Job]:
    """Finds the device and the configuration for every case. processes: how many time it on a GPU. schedules: how many
    it must be right under on the emulator, see `harness.launch.options.under_schedules`.
    """
    emulation = EmulationOptions(seed=schedule_seed)
    jobs = []
    for case in cases:
        try:
            gpu, arch = choose_device(suite.device, find_kernel(case.kernel), case.arch or "auto")
            config = case.config(arch)
            request = Request(config, case.shape, case.inputs, case.seed, emulation, gpu=gpu)
            request = replace(request, processes=processes) if gpu else replace(request, schedules=schedules)
            jobs.append(Job(case, request))
        except NoDevice as error:
            jobs.append(Job(case, None, f"{error}; use suite emulator"))
        except HarnessError as error:
            jobs.append(Job(case, None, str(error)))
    return jobs


def new_run() -> str:
    """A name for a run that no other run has, and that sorts by time."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}"


def fingerprint(schedules: int = 1, schedule_seed: int = 0) -> str:
    """Hash of what can change a result: kernels, harness, compiler, schedules. Only the same run is continued."""
    about = repr((sources(), sorted(versions().items()), schedules, schedule_seed))
    return hashlib.sha256(about.encode()).hexdigest()[:16]


def find_interrupted(jobs: Sequence[Job], suite: Suite, fingerprint: str) -> tuple[str | None, str]:
    """The newest run of this suite, to be continued, or None and the reason."""
    runs: dict[str, str] = {}
    for kind in device_kinds(jobs):
        for record in history.load(records.record_file(kind)).records:
            if record["bench"].get("suite") == suite.name and "beside" not in record["bench"]:
                runs[record["bench"]["run"]] = record["bench"].get("fingerprint", "")
    if not runs:
        return None, "there is no earlier run of this suite to resume; starting one"
    newest = max(runs)
    if runs[newest] != fingerprint:
        return (
            None,
            f"run {newest} cannot be resumed: kernels, harness or compiler changed since; starting anew",
        )
    return newest, f"resuming run {newest}"


def device_kinds(jobs: Sequence[Job]) -> list[str]:
    """The kinds of device that the jobs run on; each has a file of its own."""
    return list(dict.fromkeys(job.request.device_kind for job in jobs if job.request))


def measure(
    jobs: Sequence[Job],
    suite: Suite,
    run_id: str,
    mark: str,
    report: Callable[[Measured, int], None] = lambda measured, number: None,
    beside: Beside | None = None,
    processes: int = 1,
) -> list[Measured]:
    """Builds and runs what the run ``run_id`` lacks; report is called for each, in order.

    mark: the fingerprint. beside: what to measure in turns with it. processes: cases that are emulated side by side.
    """
    to_check = {job.case.id for job in jobs if job.case.check}
    kept = {
        history.case_of(record): record
        for kind in device_kinds(jobs)
        for record in history.load(records.record_file(kind)).of_run(run_id)
        if is_checked(record) or history.case_of(record) not in to_check
    }
    waiting = [job for job in jobs if job.request and job.case.id not in kept]
    artifacts = build_each([job.request.config for job in waiting if job.request])
    work = [
        _Work(
            job,
            artifacts[job.request.config],
            dict(run=run_id, suite=suite.name, case=job.case.id, fingerprint=mark),
            beside,
        )
        for job in waiting
        if job.request
    ]
    measured_now = in_order(_measure, work, max(1, min(processes, len(work))))
    done = []
    for number, job in enumerate(jobs, start=1):
        if job.case.id in kept:
            measured = Measured(job, kept[job.case.id], kept=True)
        elif job.request is None:
            measured = Measured(job, None, job.reason)
        else:
            measured = next(measured_now)
        report(measured, number)
        done.append(measured)
    return done


@dataclass(frozen=True)
class _Work:
    """A job that is to be done. artifact: what it runs, or why there is none. bench: of its record. beside: what is
    measured in turns with it.
    """

    job: Job
    artifact: Artifact | str
    bench: dict[str, str]
    beside: Beside | None


def _measure(work: _Work) -> Measured:
    job, artifact, bench, beside = work.job, work.artifact, work.bench, work.beside
    request = job.request
    assert request is not None
    if isinstance(artifact, str):
        return Measured(job, None, artifact)
    other = beside.builds.get(job.case) if beside else None
    outcome: Outcome | CannotRun
    try:
        if request.gpu is None or job.case.check:
            check_memory(request.shape, request.config.dtype)
        outcome, *others = run_in_turns(request, [artifact, *([other] if isinstance(other, Artifact) else [])])
    except CannotRun as error:
        outcome, others = error, []
    unsaved: list[str] = []
    baseline: dict[str, Any] | str | None = other if isinstance(other, str) else None
    # First what came before: an interrupted run then lacks the case, and measures both again.
    for theirs in others:
        assert beside
        if isinstance(theirs, CannotRun):
            baseline = f"commit {beside.commit[:10]}: {theirs}"
        else:
            about = {**bench, "run": beside.run, "beside": bench["run"]}
            baseline = _record(theirs, about) | {"git": {"commit": beside.commit, "dirty": False}}
            unsaved += _save(request, baseline)
    if isinstance(outcome, CannotRun):
        failed = outcome.request if isinstance(outcome, ScheduleProblem) else request
        return Measured(job, None, str(outcome), failed=failed, baseline=baseline)
    record = _record(outcome, bench)
    if job.case.check:
        record["soundness"] = check_soundness(request, artifact)
    unsaved += _save(request, record)
    wrong = None if outcome.validation.passed else outcome.request
    return Measured(job, record, failed=wrong, unsaved="; ".join(dict.fromkeys(unsaved)), baseline=baseline)


def _record(outcome: Outcome, bench: dict[str, str]) -> dict[str, Any]:
    return {**outcome.record, "facts": static_facts(outcome.artifact, outcome.plan), "bench": bench}


def _save(request: Request, record: dict[str, Any]) -> list[str]:
    """Why it could not be saved, if so."""
    try:
        records.append(records.record_file(request.device_kind), record)
    except CannotRun as error:
        return [str(error)]
    return []
