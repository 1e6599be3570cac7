"""Checks the synchronisation of a compiled kernel: runs it on the emulated GPU under several schedules, and watches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from harness.check import Checker
from harness.check.checked import Checked, together
from harness.compiler.plan import Plan
from harness.config.config import KernelConfig
from harness.errors import CannotRun
from harness.jobs.processes import in_order
from harness.problem.inputs import make_inputs
from harness.problem.shape import Shape
from harness.run.emulate import Accumulation, EmulationOptions, emulate
from harness.run.runner import validate_output


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
    None: as many as the GPU holds, and one in the last schedule of a kernel that computes tile after tile.
    """

    schedules: int = 4
    inputs: str = "integer"
    seed: int = 0
    accumulation: Accumulation = "f32"
    resident_clusters: int | None = None
    max_steps: int | None = None
    timeout: float | None = None


def check(targets: Sequence[Target], options: CheckOptions, jobs: int = 1) -> list[Checked]:
    """One answer for each target. jobs: processes, among which the schedules of all targets are dealt out."""
    work = [_work(target, options, number) for target in targets for number in range(options.schedules)]
    found = list(in_order(check_once, work, min(jobs, len(work))))
    count = options.schedules
    return [together(found[n * count : (n + 1) * count]) for n in range(len(targets))]


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


def check_once(work: Work) -> Checked:
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
        sinks=(checker,),
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
