"""Which jobs a sweep has, and which of its combinations cannot be. Jobs are made as they are asked for."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import product
from math import prod
from typing import Any

from harness.build.catalog import find_kernel
from harness.build.config import KernelConfig, try_config
from harness.build.presets import chosen_options
from harness.build.toolchain import mojo_version, package_version
from harness.errors import CannotRun, UsageProblem
from harness.experiments.job import Job
from harness.experiments.ranges import parse_shapes
from harness.experiments.sweep_spec import Sweep
from harness.problem.shape import Shape
from harness.processes.sources import sources
from harness.run.device import choose_device
from harness.run.runner import check_memory

_ANY_NUMBER = re.compile(r"(?<![A-Za-z]{2})\d+(\.\d+)?")
"""Refusals that differ in their numbers alone have one reason. Those in names stay: ``kernel8``."""


@dataclass
class Plan:
    """What there is to do. configs: of all jobs, to be built. refused: jobs that cannot be, by reason, with an example
    of each in examples. Counted by `plan`; the jobs themselves are not kept.
    """

    sweep: Sweep
    made_by: str
    archs: dict[str, str]
    count: int = 0
    configs: dict[KernelConfig, None] = field(default_factory=dict)
    refused: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)

    def jobs(self) -> Iterator[Job]:
        """Each of them, in an order that is always the same; the same configuration twice on a problem is one."""
        sweep = self.sweep
        for config, shape in self._problems(lambda reason, example: None):
            for inputs, seed, schedule_seed in product(sweep.inputs, sweep.seeds, sweep.schedule_seeds or (None,)):
                yield Job(sweep.kind, config, shape, inputs, seed, schedule_seed, sweep.device, self.made_by)  # type: ignore[arg-type]  # checked by make_sweep

    def _problems(self, refuse: Any) -> Iterator[tuple[KernelConfig, Shape]]:
        sweep = self.sweep
        names = list(sweep.options)
        for text in sweep.shapes:
            shapes = parse_shapes(text)
            while True:
                try:
                    shape = next(shapes)
                except StopIteration:
                    break
                except UsageProblem as error:  # ends the generator: this range has sizes that cannot be
                    raise UsageProblem(f"--shape {text}: {error}") from None
                seen = set()
                for kernel, values in product(sweep.kernels, product(*sweep.options.values())):
                    asked = (*zip(names, values, strict=True), ("arch", self.archs[kernel]))
                    try:
                        config = self._config(kernel, asked, shape)
                        self._check_memory(shape, config)
                    except UsageProblem as error:  # of what cannot run at all, as without a compiler, nothing is made
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


def plan(sweep: Sweep) -> Plan:
    """Counts the jobs and the refusals. Raises `UsageProblem` for shapes that cannot be, `CannotRun` without device."""
    made = Plan(sweep, made_by(), {kernel: _arch(sweep, kernel) for kernel in sweep.kernels})
    each = prod(map(len, (sweep.inputs, sweep.seeds, sweep.schedule_seeds or (None,))))

    def refuse(reason: str, example: str) -> None:
        kind = _ANY_NUMBER.sub("N", reason)
        made.refused[kind] += each
        made.examples.setdefault(kind, f"{reason} ({example})")

    for config, _ in made._problems(refuse):
        made.count += each
        made.configs[config] = None
    return made


def made_by() -> str:
    """All that can change a result beside what its job says."""
    return f"{sources()} mojo {mojo_version()} max {package_version('max')}"


def _arch(sweep: Sweep, kernel: str) -> str:
    wanted = chosen_options(kernel, sweep.preset, {"arch": sweep.arch}).get("arch", "auto")
    if sweep.device != "gpu" or wanted != "auto":
        return find_kernel(kernel).archs[0] if wanted == "auto" else wanted
    try:
        return choose_device("gpu", find_kernel(kernel), wanted)[1]
    except CannotRun as error:
        raise CannotRun(
            f"{error}; where the workers have GPUs and this machine has none, say which: --arch sm_90a"
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


@lru_cache(maxsize=16384)
def _check_memory(shape: Shape, dtype: str) -> None:
    check_memory(shape, dtype)
