"""Checks the synchronisation of a compiled kernel: runs it on the emulated GPU under several schedules, and watches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace

from harness.build.config import KernelConfig
from harness.build.plan import Plan
from harness.check import Checker
from harness.check.checker import Checked, together
from harness.check.findings import Report
from harness.check.redundant import unneeded
from harness.emulator.machine.events import Sink
from harness.errors import CannotRun
from harness.problem.inputs import make_inputs
from harness.problem.shape import Shape
from harness.processes.engine import in_order
from harness.run.emulate import Accumulation, EmulationOptions, emulate
from harness.run.runner import validate_output

MAX_STEPS = 5_000_000
"""Warp instructions of a run without a wait that it may need."""

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Target:
    """A kernel to check. file: where its PTX lies, for reports."""

    config: KernelConfig
    shape: Shape
    plan: Plan
    ptx: str
    file: str


@dataclass(frozen=True)
class CheckOptions:
    """How to run it. schedules: the first is fifo, the others are random, from seed on. resident_clusters: at once;
    None: as many as the GPU holds, and one in the last schedule of a kernel that computes tile after tile. waste: look
    for what could be left out, too.
    """

    schedules: int = 4
    inputs: str = "integer"
    seed: int = 0
    accumulation: Accumulation = "f32"
    resident_clusters: int | None = None
    max_steps: int | None = None
    timeout: float | None = None
    waste: bool = False


def check(
    targets: Sequence[Target], options: CheckOptions, jobs: int = 1, progress: Progress | None = None
) -> list[Checked]:
    """One answer for each target. jobs: processes, among which the schedules of all targets are dealt out.

    progress is called with (schedules done, schedules in all).
    """
    work = [_work(target, options, number) for target in targets for number in range(options.schedules)]
    found = list(counted(in_order(check_once, work, min(jobs, len(work))), len(work), progress))
    count = options.schedules
    checked = [together(found[n * count : (n + 1) * count]) for n in range(len(targets))]
    return [_with_waste(*one, options) for one in zip(checked, targets, strict=True)] if options.waste else checked


def _with_waste(checked: Checked, target: Target, options: CheckOptions) -> Checked:
    """Notes on what a sound kernel could do without, in its first schedule and in its last one."""
    if not checked.is_sound:
        return checked

    options = replace(options, max_steps=options.max_steps or MAX_STEPS)

    def run(ptx: str, sinks: tuple[Sink, ...]) -> object:
        found = []
        for number in sorted({0, options.schedules - 1}):
            once = check_once(_work(replace(target, ptx=ptx), options, number), sinks)
            found.append((once.failure, once.correct, {finding.rule for finding in once.report.findings}))
            if once.failure or not once.correct:
                break
        return found

    notes = tuple(unneeded(target.ptx, run))
    return replace(checked, report=Report((*checked.report.findings, *notes)))


def counted(found: Iterable[Checked], total: int, progress: Progress | None) -> Iterator[Checked]:
    """The same, one after the other; progress is called before the first and after each."""
    if progress:
        progress(0, total)
    for number, one in enumerate(found, 1):
        if progress:
            progress(number, total)
        yield one


@dataclass(frozen=True)
class Work:
    """A target under one schedule: the order of issue (None), or the random one of a seed."""

    target: Target
    options: CheckOptions
    schedule_seed: int | None = None


def _work(target: Target, options: CheckOptions, number: int) -> Work:
    """One of the schedules; see `CheckOptions`."""
    if options.resident_clusters is None and target.plan.tiles is not None and 0 < number == options.schedules - 1:
        options = replace(options, resident_clusters=1)
    return Work(target, options, options.seed + number if number else None)


def check_once(work: Work, sinks: tuple[Sink, ...] = ()) -> Checked:
    """What is found under one schedule."""
    target, options, plan, config = work.target, work.options, work.target.plan, work.target.config
    checker = Checker(roles=plan.roles)
    emulation = EmulationOptions(
        accumulation=options.accumulation,
        schedule="fifo" if work.schedule_seed is None else "random",
        seed=options.seed if work.schedule_seed is None else work.schedule_seed,
        resident_clusters=options.resident_clusters,
        max_steps=options.max_steps,
        timeout=options.timeout,
        strict=False,
        sinks=(checker, *sinks),
    )
    inputs = make_inputs(target.shape, config.dtype, options.inputs, options.seed)
    failure, correct = "", None
    try:
        output = emulate(target.ptx, plan, inputs, emulation).output
        correct = validate_output(output, inputs, config.dtype, plan).passed
    except CannotRun as error:
        failure = str(error)
        if isinstance(error.__cause__, Exception):
            checker.failed(error.__cause__)
    about = {"kernel": config.kernel, "config": config.as_dict(), "problem": asdict(target.shape)}
    label = f"{config.label}, {target.shape}"
    return Checked(label, about, target.file, checker.report(), failure, correct)
