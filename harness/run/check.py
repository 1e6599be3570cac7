"""Checks the synchronisation of a compiled kernel: runs it on the emulated GPU under several schedules, and watches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

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
    work = [Work(target, options, number) for target in targets for number in range(options.schedules)]
    found = list(in_order(_check_once, work, min(jobs, len(work))))
    count = options.schedules
    return [together(found[n * count : (n + 1) * count]) for n in range(len(targets))]


@dataclass(frozen=True)
class Work:
    """A target under one of its schedules."""

    target: Target
    options: CheckOptions
    number: int


def _check_once(work: Work) -> Checked:
    target, options, number = work.target, work.options, work.number
    plan, config = target.plan, target.config
    checker = Checker(roles=plan.roles)
    resident = options.resident_clusters
    if resident is None and plan.tiles is not None and 0 < number == options.schedules - 1:
        resident = 1
    emulation = EmulationOptions(
        accumulation=options.accumulation,
        schedule="random" if number else "fifo",
        seed=options.seed + number,
        resident_clusters=resident,
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
