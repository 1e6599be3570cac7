"""Runs a sweep: finds its jobs and its impossible combinations, compiles, then runs the jobs and records each when it
ends. Jobs are made one by one.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import product
from math import prod
from typing import Any

from emugpu.errors import CannotRun, UsageProblem
from emugpu.processes.engine import Done, Engine
from harness.compile.artifacts import is_built
from harness.compile.config import KernelConfig, find_kernel, try_config
from harness.compile.presets import chosen_options
from harness.experiments.job import Job, Record, SourceMismatch, compile_all, failure, made_by, perform
from harness.experiments.journal import Journal, is_unsound, verdict_of
from harness.experiments.ranges import parse_shapes
from harness.experiments.sweep_spec import Sweep
from harness.problem import Shape
from harness.run.runner import check_memory, choose_device

_ANY_NUMBER = re.compile(r"(?<![A-Za-z]{2})\d+(\.\d+)?")
"""Matches numbers. Refusals that differ only in numbers have the same reason. Numbers in names stay: ``kernel8``."""


@dataclass
class SweepPlan:
    """The work of a sweep. ``configs`` are the configurations to build. ``refused`` counts impossible jobs by reason,
    with an example of each in ``examples``. `plan` counts the jobs but does not keep them.
    """

    sweep: Sweep
    archs: dict[str, str]
    count: int = 0
    configs: dict[KernelConfig, None] = field(default_factory=dict)
    refused: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)

    def jobs(self) -> Iterator[Job]:
        """Yields each job, always in the same order, and equal jobs once."""
        sweep = self.sweep
        for config, shape in self._problems(lambda reason, example: None):
            for inputs, seed, schedule_seed in product(sweep.inputs, sweep.seeds, sweep.schedule_seeds or (None,)):
                yield Job(
                    config,
                    shape,
                    inputs,
                    seed,
                    kind=sweep.kind,
                    device=sweep.device,
                    made_by=made_by(config.sources.root),
                    schedule_seed=schedule_seed,
                )

    def _problems(self, refuse: Any) -> Iterator[tuple[KernelConfig, Shape]]:
        sweep = self.sweep
        names = list(sweep.options)
        for text in sweep.shapes:
            for shape in _shapes(text):
                seen = set()
                for kernel, values in product(sweep.kernels, product(*sweep.options.values())):
                    asked = (*zip(names, values, strict=True), ("arch", self.archs[kernel]))
                    try:
                        config = self._config(kernel, asked, shape)
                        self._check_memory(shape, config)
                    except UsageProblem as error:  # no configuration is possible, for example without a compiler
                        refuse(str(error), f"{kernel} {', '.join(map(_shown, asked))}, {shape}")
                        continue
                    if config not in seen:
                        seen.add(config)
                        yield config, shape

    def _check_memory(self, shape: Shape, config: KernelConfig) -> None:
        try:
            if self.sweep.device == "emulator":
                _check_memory(shape, config.dtype)
        except CannotRun as error:
            raise UsageProblem(str(error)) from None

    def _config(self, kernel: str, asked: tuple[tuple[str, Any], ...], shape: Shape) -> KernelConfig:
        chooses = find_kernel(kernel).tilings.get(self.archs[kernel])
        return _configured(kernel, self.sweep.preset, asked, shape if chooses else None)


def _shapes(text: str) -> Iterator[Shape]:
    try:
        yield from parse_shapes(text)
    except UsageProblem as error:  # this range has impossible sizes
        raise UsageProblem(f"--shape {text}: {error}") from None


def plan(sweep: Sweep) -> SweepPlan:
    """Counts the jobs and the refusals.

    Raises `UsageProblem` for impossible shapes, and if every job is refused, because an empty sweep must not look
    successful. Raises `CannotRun` without a device.
    """
    made = SweepPlan(sweep, {kernel: _arch(sweep, kernel) for kernel in sweep.kernels})
    each = prod(map(len, (sweep.inputs, sweep.seeds, sweep.schedule_seeds or (None,))))

    def refuse(reason: str, example: str) -> None:
        kind = _ANY_NUMBER.sub("N", reason)
        made.refused[kind] += each
        made.examples.setdefault(kind, f"{reason} ({example})")

    for config, _ in made._problems(refuse):
        made.count += each
        made.configs[config] = None
    if not made.count:
        refused, reasons = sum(made.refused.values()), [*made.examples.values()]
        raise UsageProblem(
            f"every combination is refused ({refused:,} {'job' if refused == 1 else 'jobs'}, {len(reasons)} "
            f"{'reason' if len(reasons) == 1 else 'reasons'}); the first: {reasons[0]}; change an option or the shapes"
        )
    return made


def _arch(sweep: Sweep, kernel: str) -> str:
    wanted = chosen_options(kernel, sweep.preset, {"arch": sweep.arch}).get("arch", "auto")
    if sweep.device != "gpu" or wanted != "auto":
        return find_kernel(kernel).archs[0] if wanted == "auto" else wanted
    try:
        return choose_device("gpu", find_kernel(kernel), wanted)[1]
    except CannotRun as error:
        raise CannotRun(
            f"{error}; where the workers have GPUs and this machine has none, say which: -c arch=sm_90a"
        ) from None


def _shown(setting: tuple[str, Any]) -> str:
    name, value = setting
    return f"{name.replace('_', ' ')} {'x'.join(map(str, value)) if isinstance(value, tuple) else value}"


@lru_cache(maxsize=16384)
def _configured(
    kernel: str, preset: str | None, asked: tuple[tuple[str, Any], ...], shape: Shape | None
) -> KernelConfig:
    options = {name: value for name, value in chosen_options(kernel, preset, dict(asked)).items() if value is not None}
    return try_config(kernel, shape=shape, **options)


_check_memory = lru_cache(maxsize=16384)(check_memory)


@dataclass
class Tally:
    """The progress of a sweep.

    ``planned``: possible jobs; ``refused``: impossible ones. ``ran``: jobs with a result, some of which are right,
    wrong or unsound; ``failed``: jobs without one; ``reused``: jobs recorded by an earlier run, counted by verdict in
    ``earlier``.
    """

    planned: int = 0
    refused: int = 0
    ran: int = 0
    failed: int = 0
    reused: int = 0
    wrong: int = 0
    unsound: int = 0
    right: int = 0
    reasons: dict[str, int] = field(default_factory=dict)
    earlier: Counter[str] = field(default_factory=Counter)

    @property
    def verdict(self) -> str:
        """Returns whether the results are right, in words."""
        bad = [f"{self.wrong:,} WRONG"] * bool(self.wrong) + [f"{self.unsound:,} unsound"] * bool(self.unsound)
        if bad or not self.ran:
            return ", ".join(bad)
        return "all are right" if self.right == self.ran else "none was validated"

    @property
    def done(self) -> int:
        return self.ran + self.failed + self.reused

    def as_dict(self) -> dict[str, int]:
        """Returns plain data for scripts."""
        names = ("planned", "refused", "ran", "failed", "reused", "wrong", "unsound")
        return {name: getattr(self, name) for name in names}


Report = Callable[[str, Tally], None]
"""Called with the current activity and the progress."""


def sweep(
    plan: SweepPlan,
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
    """Runs the jobs that the journal lacks.

    ``limit`` is the time limit of one job in seconds. ``everywhere`` says whether workers are on other machines, whose
    build caches are unknown. ``do`` executes a job.
    """
    tally = Tally(plan.count, sum(plan.refused.values()))
    if not resume:
        journal.set_aside()
    known = {key: verdict for key, verdict in journal.done().items() if not (verdict == "failed" and retry_failed)}
    needs = "GPU" if plan.sweep.device == "gpu" else "CPU"
    broken = _compile(plan, engine, workers, everywhere, report, tally)

    def waiting() -> Iterator[Job]:
        for job in plan.jobs():
            if job.key in known:
                tally.reused += 1
                tally.earlier[known[job.key]] += 1
            elif job.config in broken:
                _keep(journal, tally, Done(job, error=CannotRun(broken[job.config])))
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
        verdict = verdict_of(record)
        tally.right += verdict == "right"
        tally.wrong += verdict == "wrong"
        tally.unsound += is_unsound(record)
    else:
        tally.failed += 1
        reason = str(done.error) or type(done.error).__name__
        tally.reasons[reason.splitlines()[0]] = tally.reasons.get(reason.splitlines()[0], 0) + 1
        record = failure(done.item, reason, done.log, done.deaths)
    journal.add(record)


def _compile(
    plan: SweepPlan, engine: Engine, workers: int, everywhere: bool, report: Report, tally: Tally
) -> dict[KernelConfig, str]:
    """Builds what is missing. Returns what failed, and why."""
    missing = [config for config in plan.configs if everywhere or not is_built(config)]
    broken: dict[KernelConfig, str] = {}
    left = len(missing)
    if missing:
        report(f"compiling {left} configurations", tally)
    for done, failed in compile_all(engine, missing, workers):
        left -= len(done)
        broken |= failed
        report(f"compiling {left} configurations", tally)
    return broken
