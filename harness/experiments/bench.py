"""Runs the cases of a suite, and compares them with a baseline. Every result is in the history before the next case
starts.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from emugpu.errors import CannotRun, ReportedError
from emugpu.launch.launching import EmulationOptions
from emugpu.processes.engine import in_order
from harness.compile.artifacts import Artifact, build_each
from harness.compile.compiler import versions
from harness.compile.config import KernelConfig, find_kernel
from harness.experiments.baseline_build import build_commit, can_build
from harness.experiments.facts import static_facts
from harness.experiments.history import (
    Baseline,
    History,
    NamedBaseline,
    append_baseline,
    case_of,
    is_right,
    load,
    load_baselines,
    platform_of,
    resolve,
)
from harness.experiments.job import Record, hash_of_sources
from harness.experiments.soundness import check_soundness, is_checked
from harness.experiments.suite import Suite, SuiteCase
from harness.experiments.verdict import Judgement, have_times, judge
from harness.run import records
from harness.run.case import Request
from harness.run.runner import NoDevice, Outcome, ScheduleProblem, check_memory, choose_device, run_in_turns


@dataclass(frozen=True)
class Planned:
    """A case and the request that measures it on this machine, or the reason why it cannot be measured."""

    case: SuiteCase
    request: Request | None
    reason: str = ""


@dataclass(frozen=True)
class Measured:
    """A finished case. ``record`` is None if it was not measured, for this ``reason``. ``kept`` marks a record of an
    interrupted run.

    ``failed`` is the run that went wrong, under its schedule. ``unsaved`` says why the record is not in the history.
    ``baseline`` is the record of the other commit, measured in turns with this one, or the reason why there is none, or
    None.
    """

    planned: Planned
    record: Record | None
    reason: str = ""
    kept: bool = False
    failed: Request | None = None
    unsaved: str = ""
    baseline: Record | str | None = None


@dataclass(frozen=True)
class BaselineBuild:
    """Builds of another commit that are measured in turns with those of this checkout. ``run`` is the name of
    its run.
    """

    commit: str
    run: str
    builds: Mapping[SuiteCase, Artifact | str]


def prepare(
    suite: Suite, cases: Sequence[SuiteCase], *, processes: int = 1, schedules: int = 1, schedule_seed: int = 0
) -> list[Planned]:
    """Finds the device and the configuration for every case.

    ``processes`` is the number of processes that time it on a GPU. ``schedules`` is the number of emulator schedules
    under which it must be right (`emugpu.launch.launching.under_schedules`).
    """
    emulation = EmulationOptions(seed=schedule_seed)
    planned = []
    for case in cases:
        try:
            gpu, arch = choose_device(suite.device, find_kernel(case.kernel), case.options.get("arch", "auto"))
            config = case.config(arch)
            request = Request(config, case.shape, case.inputs, case.seed, emulation, gpu=gpu)
            if gpu:
                request = replace(request, processes=processes, alone=suite.alone)
            else:
                request = replace(request, schedules=schedules)
            planned.append(Planned(case, request))
        except NoDevice as error:
            planned.append(Planned(case, None, f"{error}; use suite emulator"))
        except ReportedError as error:
            planned.append(Planned(case, None, str(error)))
    return planned


def choose_run(planned: Sequence[Planned], suite: Suite, mark: str, resume: bool, say: Callable[[str], None]) -> str:
    """Returns the run to which the results belong: the interrupted run that is resumed, or a new one."""
    if not resume:
        return new_run()
    found, why = find_interrupted(planned, suite, mark)
    say(why)
    return found or new_run()


def new_run() -> str:
    """Returns a unique name for a run. The names sort by time."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}"


def fingerprint(planned: Sequence[Planned], schedules: int = 1, schedule_seed: int = 0) -> str:
    """Hashes everything that can change a result: kernels, harness, compiler, schedules. Only a run with the same hash
    is continued.
    """
    roots = {one.request.config.sources.root for one in planned if one.request}
    about = repr((sorted(map(hash_of_sources, roots)), sorted(versions().items()), schedules, schedule_seed))
    return hashlib.sha256(about.encode()).hexdigest()[:16]


def find_interrupted(planned: Sequence[Planned], suite: Suite, fingerprint: str) -> tuple[str | None, str]:
    """Returns the newest run of this suite if it can be continued, or None and the reason."""
    runs: dict[str, str] = {}
    for kind in device_kinds(planned):
        for record in load(records.record_file(kind)).records:
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


def device_kinds(planned: Sequence[Planned]) -> list[str]:
    """Returns the kinds of device on which the cases run; each has its own file."""
    return list(dict.fromkeys(one.request.device_kind for one in planned if one.request))


def measure(
    planned: Sequence[Planned],
    suite: Suite,
    run_id: str,
    mark: str,
    report: Callable[[Measured], None] = lambda measured: None,
    baseline: BaselineBuild | None = None,
    processes: int = 1,
    after_build: Callable[[], None] = lambda: None,
) -> list[Measured]:
    """Builds and runs the cases that the run ``run_id`` lacks. Calls ``after_build`` once, and ``report`` for
    each case, in order.

    ``mark`` is the fingerprint. ``baseline`` is measured in turns with this checkout. ``processes`` is the number of
    cases that are emulated in parallel.
    """
    to_check = {one.case.id for one in planned if one.case.check}
    kept = {
        case_of(record): record
        for kind in device_kinds(planned)
        for record in load(records.record_file(kind)).of_run(run_id)
        if is_checked(record) or case_of(record) not in to_check
    }
    waiting = [one for one in planned if one.request and one.case.id not in kept]
    artifacts = build_each([one.request.config for one in waiting if one.request])
    after_build()
    work = [
        _Work(
            one,
            artifacts[one.request.config],
            dict(run=run_id, suite=suite.name, case=one.case.id, fingerprint=mark),
            baseline,
        )
        for one in waiting
        if one.request
    ]
    measured_now = in_order(_measure, work, max(1, min(processes, len(work))))
    done = []
    for one in planned:
        if one.case.id in kept:
            measured = Measured(one, kept[one.case.id], kept=True)
        elif one.request is None:
            measured = Measured(one, None, one.reason)
        else:
            measured = next(measured_now)
        report(measured)
        done.append(measured)
    return done


@dataclass(frozen=True)
class _Work:
    """A case to measure. ``artifact`` is its kernel, or the reason why there is none. ``bench`` is that field of its
    record. ``baseline`` is measured in turns with it.
    """

    planned: Planned
    artifact: Artifact | str
    bench: dict[str, str]
    baseline: BaselineBuild | None


def _measure(work: _Work) -> Measured:
    """Measures a case, in turns with the other commit if there is a build of it, and saves the records."""
    case, request, artifact = work.planned.case, work.planned.request, work.artifact
    assert request is not None
    if isinstance(artifact, str):
        return Measured(work.planned, None, artifact)
    other_build = work.baseline.builds.get(case) if work.baseline else None
    builds = [artifact, *([other_build] if isinstance(other_build, Artifact) else [])]
    outcome: Outcome | CannotRun
    try:
        if request.gpu is None or case.check:
            check_memory(request.shape, request.config.dtype)
        outcome, *other_outcomes = run_in_turns(request, builds)
    except CannotRun as error:
        outcome, other_outcomes = error, []
    baseline: Record | str | None = other_build if isinstance(other_build, str) else None
    unsaved: list[str] = []
    for other_outcome in other_outcomes:
        # The baseline is saved first: an interrupted run then lacks the case, and measures both again.
        baseline = _baseline_record(work, other_outcome)
        unsaved += _save(request, baseline) if isinstance(baseline, dict) else []
    if isinstance(outcome, CannotRun):
        failed = outcome.request if isinstance(outcome, ScheduleProblem) else request
        return Measured(work.planned, None, str(outcome), failed=failed, baseline=baseline)
    record = _record(outcome, work.bench)
    if case.check:
        record["soundness"] = check_soundness(request, artifact)
    unsaved += _save(request, record)
    wrong = None if outcome.validation.passed else outcome.request
    return Measured(work.planned, record, failed=wrong, unsaved="; ".join(dict.fromkeys(unsaved)), baseline=baseline)


def _baseline_record(work: _Work, outcome: Outcome | CannotRun) -> Record | str:
    """Returns the record of the other commit's build, or why there is none."""
    build = work.baseline
    assert build
    if isinstance(outcome, CannotRun):
        return f"commit {build.commit[:10]}: {outcome}"
    record = _record(outcome, {**work.bench, "run": build.run, "beside": work.bench["run"]})
    return record | {"git": {"commit": build.commit, "dirty": False}}


def _record(outcome: Outcome, bench: dict[str, str]) -> Record:
    return {**outcome.record, "facts": static_facts(outcome.artifact, outcome.plan), "bench": bench}


def _save(request: Request, record: Record) -> list[str]:
    """Adds a record to its file. Returns the error if that failed."""
    try:
        records.append(records.record_file(request.device_kind), record)
    except CannotRun as error:
        return [str(error)]
    return []


class Past:
    """The histories of the devices as they were before a run, and the baseline in each."""

    def __init__(self, planned: Sequence[Planned], baseline: str) -> None:
        self.histories: dict[str, History] = {}
        self.baselines: dict[str, Baseline] = {}
        self.damaged: list[records.DamagedLine] = []
        named: dict[str, list[NamedBaseline]] = {}
        for kind in device_kinds(planned):
            self.histories[kind] = load(records.record_file(kind))
            named[kind], damaged = load_baselines(kind)
            self.damaged += [*self.histories[kind].damaged, *damaged]
        self.damaged = list(dict.fromkeys(self.damaged))
        for kind, past in self.histories.items():
            self.baselines[kind] = resolve(baseline, past, named[kind])
        self.label = next((found.label for found in self.baselines.values()), baseline)

    def baseline_of(self, measured: Measured, run_id: str) -> tuple[Record | None, str]:
        """Returns the record with which a case is compared, or None and the reason."""
        if measured.record is None:
            return None, measured.reason
        if isinstance(measured.baseline, str):
            return None, measured.baseline
        if measured.baseline:
            return (measured.baseline, "") if is_right(measured.baseline) else (None, "the baseline has a wrong result")
        assert measured.planned.request
        kind = measured.planned.request.device_kind
        platform = platform_of(measured.record)
        return self.baselines[kind].find(self.histories[kind], case_of(measured.record), platform, run_id)

    def commit_to_build(self, one: Planned) -> str | None:
        """Returns the other commit if this case must be measured in turns with it.

        On a GPU that is always so, because conditions change from day to day. Emulator figures are exact, so they are
        measured only if the history lacks them.
        """
        if one.request is None:
            return None
        kind = one.request.device_kind
        baseline = self.baselines[kind]
        if baseline.commit is None or not can_build(baseline.commit):
            return None
        known = one.request.gpu is None and any(
            case_of(record) == one.case.id and baseline.holds(record, "") and is_right(record)
            for record in self.histories[kind].records
        )
        return None if known else baseline.commit

    def build_baseline(self, planned: Sequence[Planned], say: Callable[[str], None]) -> BaselineBuild | None:
        """Builds the commit to compare with, for the cases that are measured in turns with it."""
        cases: dict[SuiteCase, KernelConfig] = {}
        commit = ""
        for one in planned:
            found = self.commit_to_build(one)
            if found and one.request:
                commit = found
                cases[one.case] = one.request.config
        if not cases:
            return None
        say(f"building commit {commit[:10]}, to measure {len(cases)} cases with it in turns ...")
        return BaselineBuild(commit, new_run(), build_commit(commit, cases))

    def judge(self, measured: Sequence[Measured], run_id: str, threshold: float) -> tuple[Judgement, ...]:
        """Returns the verdict on each case. ``threshold`` is the smallest relevant relative difference of times."""
        found = [self.baseline_of(one, run_id) for one in measured]
        timed = sum(have_times(one.record, base) for one, (base, _) in zip(measured, found, strict=True))
        return tuple(
            judge(one.planned.case, one.record, base, reason=reason, cases=timed, threshold=threshold)
            for one, (base, reason) in zip(measured, found, strict=True)
        )


def save_baseline(name: str, judgements: Sequence[Judgement], run_id: str) -> str:
    """Names a run as a baseline, and returns a message about the result. A wrong result is not a baseline, and a run
    without a right result has none.
    """
    right = [j for j in judgements if j.record and j.verdict != "WRONG"]
    if not right:
        return f"baseline {name} not saved: nothing was measured"
    try:
        for kind in dict.fromkeys(j.record["device"]["kind"] for j in right if j.record):
            append_baseline(name, kind, run_id)
    except CannotRun as error:
        return f"baseline {name} not saved: {error}"
    return f"baseline {name} saved: {len(right)} cases"
