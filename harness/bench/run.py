"""Runs the cases of a suite. Every result is in the history before the next case starts."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from harness.bench import history
from harness.bench.facts import static_facts
from harness.bench.soundness import check_soundness, is_checked
from harness.bench.suite import Case, Suite
from harness.compiler.build import Artifact, build_each
from harness.compiler.toolchain import versions
from harness.config.catalog import find_kernel
from harness.errors import CannotRun, HarnessError
from harness.jobs.processes import in_order
from harness.jobs.sources import sources
from harness.run import records
from harness.run.device import NoDevice, choose_device
from harness.run.emulate import EmulationOptions
from harness.run.runner import Request, ScheduleProblem, check_memory, run


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
    """

    job: Job
    record: dict[str, Any] | None
    reason: str = ""
    kept: bool = False
    failed: Request | None = None
    unsaved: str = ""


def prepare(
    suite: Suite, cases: Sequence[Case], *, processes: int = 1, schedules: int = 1, schedule_seed: int = 0
) -> list[Job]:
    """Finds the device and the configuration for every case. processes: how many time it on a GPU. schedules: how many
    it must be right under on the emulator, see `harness.run.runner.schedules_of`.
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
            if record["bench"].get("suite") == suite.name:
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
    processes: int = 1,
) -> list[Measured]:
    """Builds and runs what the run ``run_id`` lacks; report is called for each, in order.

    mark: the fingerprint. processes: cases that are emulated side by side.
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
            job, artifacts[job.request.config], dict(run=run_id, suite=suite.name, case=job.case.id, fingerprint=mark)
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
    """A job that is to be done. artifact: what it runs, or why there is none. bench: of its record."""

    job: Job
    artifact: Artifact | str
    bench: dict[str, str]


def _measure(work: _Work) -> Measured:
    job, artifact, bench = work.job, work.artifact, work.bench
    request = job.request
    assert request is not None
    if isinstance(artifact, str):
        return Measured(job, None, artifact)
    try:
        if request.gpu is None or job.case.check:
            check_memory(request.shape, request.config.dtype)
        outcome = run(request, artifact)
    except CannotRun as error:
        return Measured(job, None, str(error), failed=error.request if isinstance(error, ScheduleProblem) else request)
    record = {**outcome.record, "facts": static_facts(artifact, outcome.plan), "bench": bench}
    if job.case.check:
        record["soundness"] = check_soundness(request, artifact)
    failed = None if outcome.validation.passed else outcome.request
    try:
        records.append(records.record_file(request.device_kind), record)
    except CannotRun as error:
        return Measured(job, record, failed=failed, unsaved=str(error))
    return Measured(job, record, failed=failed)
