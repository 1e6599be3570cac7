"""Checks the synchronisation of a compiled kernel: runs it on the emulated GPU under several schedules, and watches."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context

from harness.check import Checker, Report
from harness.check.findings import merged
from harness.compiler.plan import Plan
from harness.config.config import KernelConfig
from harness.errors import CannotRun
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


@dataclass(frozen=True)
class Checked:
    """What has been found. failure: why a run did not come to its end, or nothing. correct: whether the result is
    right, None without one.
    """

    target: Target
    report: Report
    failure: str
    correct: bool | None


def check(targets: Sequence[Target], options: CheckOptions, jobs: int = 1) -> list[Checked]:
    """One answer for each target. jobs: processes, among which the schedules of all targets are dealt out."""
    work = [(target, options, number) for target in targets for number in range(options.schedules)]
    jobs = min(jobs, len(work))
    if jobs > 1 and hasattr(os, "fork"):
        with ProcessPoolExecutor(jobs, mp_context=get_context("fork")) as pool:
            found = list(pool.map(_check_once, *zip(*work, strict=True)))
    else:
        found = [_check_once(*one) for one in work]
    count = options.schedules
    return [_together(target, found[n * count : (n + 1) * count]) for n, target in enumerate(targets)]


def _together(target: Target, runs: Sequence[Checked]) -> Checked:
    verdicts = {run.correct for run in runs}
    return Checked(
        target,
        merged([run.report for run in runs]),
        next((run.failure for run in runs if run.failure), ""),
        False if False in verdicts else None if None in verdicts else True,
    )


def _check_once(target: Target, options: CheckOptions, number: int) -> Checked:
    """One schedule."""
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
    return Checked(target, checker.report(), failure, correct)


def chosen(checked: Checked, strict: bool, notes: bool, allow: Sequence[str]) -> Checked:
    """The same with warnings as errors and with notes, if asked for, and without the rules that are allowed."""
    findings = tuple(
        replace(finding, severity="error") if strict and finding.severity == "warning" else finding
        for finding in checked.report.findings
        if finding.rule not in allow and (notes or finding.severity != "note")
    )
    return replace(checked, report=Report(findings))
