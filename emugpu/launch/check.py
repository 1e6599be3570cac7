"""Checks the synchronisation of launchables: runs them on the emulated GPU with the checker, under several
schedules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from emugpu.check.checker import Checked, Checker, chosen, together
from emugpu.check.findings import Finding, Report, emulator_warnings
from emugpu.check.redundant import unneeded
from emugpu.check.verdict import Verdict, Word, fidelity, how_it_ended, races
from emugpu.emulator import EmulatorError, LimitExceeded, RuleWarning
from emugpu.emulator.device import some_start_later
from emugpu.emulator.machine.sinks import Sink
from emugpu.errors import CannotRun
from emugpu.launch.expectation import Comparison, Holds
from emugpu.launch.launching import TOLERANT, EmulationOptions, load_module, run, under_schedules
from emugpu.launch.memory import UndefinedResult
from emugpu.launch.overlap import footprints_of, races_of, unsaid
from emugpu.launch.spec import ExpectationResult, Launchable
from emugpu.processes.engine import in_order

MAX_STEPS = 5_000_000
"""A run may take this many warp instructions without a wait."""

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class CheckOptions:
    """How to run a check.

    ``schedules`` is their number. The first is fifo, and the others are random, with consecutive seeds from the
    emulation's on; a single one is the emulation's. Each schedule draws other integers for a launch file.
    ``redundant``: also look for redundant synchronisation. ``strict``: warnings count as errors. ``allow`` lists
    rules whose findings are dropped.

    The schedules are distributed over the processes of ``emulation``. If it sets no number of resident clusters, the
    last schedule of a persistent kernel has one. With several schedules, a kernel that uses cluster launch control
    gets an additional schedule, in which every other request fails. So does a launch whose CTAs may depend on one
    another and do not all have room: there CTAs start in the reverse order of their numbers.
    """

    schedules: int = 4
    emulation: EmulationOptions = TOLERANT
    redundant: bool = False
    strict: bool = False
    allow: tuple[str, ...] = ()


@dataclass(frozen=True)
class CheckJob:
    """One run of a launchable.

    ``more`` are sinks in addition to the checker. ``where`` names the run, if it has inputs of its own.
    """

    what: Launchable
    emulation: EmulationOptions
    more: tuple[Sink, ...] = field(default=())
    where: str = ""


def check(several: Sequence[Launchable], options: CheckOptions, progress: Progress | None = None) -> list[Checked]:
    """Returns the outcome of each launchable. ``progress`` is called with (schedules done, all that are to run).

    A launchable whose run has reached a limit does not run under its other schedules, where it would do so again.
    Raises UsageProblem for an error in a launch file.
    """
    work = [schedules_of(what, options) for what in several]
    count = sum(map(len, work))
    found: list[list[Checked]] = [[] for _ in work]
    asked: list[int] = []

    def is_limited(number: int) -> bool:
        return any(run.is_limited for run in found[number])

    def jobs() -> Iterator[CheckJob]:
        for number, each in enumerate(work):
            for one in each:
                if not is_limited(number):
                    asked.append(number)
                    yield one

    if progress:
        progress(0, count)
    for done, one in enumerate(in_order(check_once, jobs(), min(options.emulation.jobs, count)), 1):
        found[asked[done - 1]].append(one)
        if progress:
            progress(done, sum(len(found[n] if is_limited(n) else each) for n, each in enumerate(work)))
    checked = [_together(runs, each[: len(runs)]) for runs, each in zip(found, work, strict=True)]
    checked = [_with_left_out(one, len(each)) for one, each in zip(checked, work, strict=True)]
    if options.redundant:
        checked = [_with_redundant(*one, options) for one in zip(checked, several, strict=True)]
    return [chosen(one, options.strict, True, options.allow) for one in checked]


def _together(runs: list[Checked], work: Sequence[CheckJob]) -> Checked:
    """Joins the schedules of a launchable.

    A result that is right under fifo and wrong when requests fail gives a finding. So does a hang or a wrong result
    that shows only if CTAs start in the reverse order, as a warning: hardware is known to start them in order. Errors
    that such a run has besides stay errors, but for those of a hang, which follow from it.
    """
    last = runs[-1]
    if len(runs) > 1 and work[-1].emulation.schedule == "reversed" and not _is_right(last):
        others = _together(runs[:-1], work[:-1])
        found = others.report.findings
        if others.failure or others.correct is False:
            return replace(others, schedules=len(runs))
        if last.ended != "incomplete":
            how = "a result is wrong" if not last.failure else "it hangs" if last.ended == "hung" else "it fails"
            finding = Finding(
                "start-order", "warning",
                f"{how} if CTAs start in the reverse order of their numbers, and not all at once", None,
                missing="CUDA promises no order in which CTAs start; GPUs are known to start them in order",
                fix="let a CTA take its number from a counter in global memory (atomicAdd) when it starts",
            )  # fmt: skip
            more = () if last.ended == "hung" or others.report.errors else last.report.errors
            return replace(others, report=Report((*more, *found, finding)), schedules=len(runs))
    checked = together(runs)
    wrong = {one.emulation.schedule for one, run in zip(work, runs, strict=True) if not _is_right(run)}
    if "declining" not in wrong or "fifo" in wrong:
        return checked
    message = "the kernel relies on cluster launch control to hand out every cluster that has not started"
    finding = Finding(
        "clc-declined", "error", f"{message}: its result is wrong if a request fails while clusters are pending", None,
        missing="clusters that start later do the work that was not handed out",
        fix="let every cluster compute its own tile first; a failed request does not prove that all tiles are done",
    )  # fmt: skip
    return replace(checked, report=Report((finding, *checked.report.findings)))


def _with_left_out(checked: Checked, schedules: int) -> Checked:
    if checked.schedules == schedules:
        return checked
    left = schedules - checked.schedules
    text = f"{left} more schedules were not run" if left > 1 else "1 more schedule was not run"
    return replace(checked, failure=f"{checked.failure}\n    {text}, because a run has reached its limit")


def _is_right(run: Checked) -> bool:
    return not run.failure and run.correct is not False


def check_once(work: CheckJob) -> Checked:
    """Returns the outcome under one schedule."""
    what = work.what
    footprints = footprints_of(what.launches)
    checker = Checker(roles=what.roles, footprints=footprints)
    failure, correct, where, is_limited = "", None, work.where, False
    ended: Word = "clean"
    warnings: tuple[RuleWarning, ...] = ()
    try:
        outcome = run(what, replace(work.emulation, sinks=(checker, *work.more)), keep=())
        correct, warnings = outcome.passed, outcome.warnings
        where += "".join(
            f": {_mistake(expected.buffer, result)}"
            for expected, result in zip(what.expectations, outcome.verdicts, strict=True)
            if not result.passed
        )
    except UndefinedResult as error:
        correct, where = False, f"{where}: {error}"
    except CannotRun as error:
        failure, ended = str(error), how_it_ended(error.__cause__)
        is_limited = isinstance(error.__cause__, LimitExceeded)
        if isinstance(error.__cause__, Exception):
            checker.failed(error.__cause__)
    report = checker.report()
    early, unsure = races_of(what.launches, footprints, checker.name_of)
    report = replace(report, findings=(*early, *report.findings, *emulator_warnings(warnings)))
    return Checked(
        what.label, dict(what.about), str(what.ptx), report, failure, correct, ended=ended, where=where,
        is_limited=is_limited, unsure=tuple(unsure),
    )  # fmt: skip


def _mistake(buffer: str, result: ExpectationResult) -> str:
    """Returns how many elements of a buffer are wrong, with the first one."""
    text = f"{buffer} in {result.mismatches:,} of {result.elements:,} elements"
    if isinstance(result, Comparison) and result.mistakes:
        first = result.mistakes[0]
        index = ",".join(map(str, first.index))
        text += f"; {buffer}[{index}] is {first.got:g}, and must be {first.expected:g}"
    return text


def judge(what: Launchable, checked: Checked) -> Verdict:
    """Returns the verdict on a launchable from the outcome of its check."""
    reasons = races(checked.report.findings)
    if checked.failure:
        reasons.append((checked.ended, f"a run did not come to its end: {checked.failure}"))
    if checked.correct is False:
        reasons.append(("wrong", f"a result is wrong{checked.where}"))
    if not what.expectations:
        reasons.append(("incomplete", "no result is expected, so none was compared"))
    reasons += [("incomplete", text) for text in checked.unsure]
    module = load_module(what)
    if text := unsaid(what.launches, module):
        reasons.append(("incomplete", text))
    launched = (module.find(launch.kernel) for launch in what.launches)
    kernels = {kernel.name: (kernel, module.target) for kernel in launched}
    return Verdict(
        what.label,
        tuple(reasons),
        checked.report.findings,
        len(what.launches),
        checked.schedules,
        tuple(expectation.compared for expectation in what.expectations),
        fidelity(kernels.values()),
    )


def schedules_of(what: Launchable, options: CheckOptions) -> list[CheckJob]:
    """Returns the runs of one launchable under its schedules; see `CheckOptions`."""
    emulation = replace(options.emulation, jobs=1, strict=False, allow=())
    each = under_schedules(emulation, options.schedules)
    if emulation.resident_clusters is None and what.persistent and len(each) > 1:
        each[-1] = replace(each[-1], resident_clusters=1)
    if "clusterlaunchcontrol" in what.text and len(each) > 1:
        each.insert(1, replace(emulation, schedule="declining"))
    if len(each) > 1 and _may_rely_on_starts(what, emulation):
        each.append(replace(emulation, schedule="reversed"))
    return [CheckJob(what, one) if one.schedule != "random" else _random(what, one, n) for n, one in enumerate(each)]


def _may_rely_on_starts(what: Launchable, emulation: EmulationOptions) -> bool:
    """Returns whether CTAs of a launch may depend on one another, and some start later than others."""
    try:
        module = load_module(what)
        for launch in what.launches:
            code = module.code(launch.kernel)
            if code.between_clusters and not code.uses_launch_control and some_start_later(
                module, launch.kernel, grid=launch.grid, block=launch.block, cluster=launch.cluster,
                dynamic_smem=launch.dynamic_shared, resident_clusters=emulation.resident_clusters,
            ):  # fmt: skip
                return True
    except (CannotRun, EmulatorError):
        pass  # the runs say why
    return False


def _random(what: Launchable, emulation: EmulationOptions, number: int) -> CheckJob:
    """Returns random run ``number``, counted from 0.

    If the expectations are computed from drawn integers, each run draws others: one integer in nine is zero, and a
    kernel that leaves out an element that is zero gives a right result.
    """
    named: set[str] = set()
    for each in what.expectations:
        if not isinstance(each, Holds) or each.expression is None:
            named.clear()
            break
        named.update(each.expression.names)
    drawn = {
        name: replace(buffer, fill=replace(buffer.fill, seed=buffer.fill.seed + number))
        for name, buffer in what.buffers.items()
        if number and name in named and buffer.fill is not None and buffer.fill.kind == "integer"
    }
    if not drawn:
        return CheckJob(what, emulation)
    where = f", under the {emulation.schedule_name}, with {number} added to the seed of {', '.join(drawn)}"
    return CheckJob(replace(what, buffers={**what.buffers, **drawn}), emulation, where=where)


def _with_redundant(checked: Checked, what: Launchable, options: CheckOptions) -> Checked:
    """Adds notes on redundant synchronisation in a sound program, for its first and its last schedule."""
    if not checked.is_sound:
        return checked
    options = replace(options, emulation=replace(options.emulation, max_steps=options.emulation.max_steps or MAX_STEPS))

    def outcomes(ptx: str, sinks: tuple[Sink, ...]) -> object:
        found = []
        work = schedules_of(replace(what, text_given=ptx), options)
        for one in work[:1] + work[1:][-1:]:
            once = check_once(replace(one, more=sinks))
            found.append((once.failure, once.correct, {finding.rule for finding in once.report.findings}))
            if once.failure or not once.correct:
                break
        return found

    notes = tuple(unneeded(what.text, outcomes))
    return replace(checked, report=Report((*checked.report.findings, *notes)))
