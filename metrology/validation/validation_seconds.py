"""Compares seconds, which need the power model, with what an H200 took for long rows of launches.

The constants of the power model come from kernel 7 at 4096 cubed alone; these two of the rows are no test of it.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from harness.build.artifacts import build
from harness.build.config import KernelConfig
from harness.build.presets import configure
from harness.paths import ROOT
from harness.problem.shape import Shape
from harness.processes.engine import in_order
from harness.timing.constants import Gpu, find_gpu
from harness.timing.predict import predict
from metrology.validation.validation import GPU, no_garbage

RECORDING = ROOT / "results" / "nvidia-h200-kernel8.json"
KERNELS = ("kernel7", "kernel8")
INPUTS = {"normal": "normal", "-1, 0, 1": "integer"}
"""What the recording calls them, and what the power model does."""
FROM = ("kernel7", Shape(4096, 4096, 4096))
"""What the power model's constants are from."""


@dataclass(frozen=True)
class MeasuredSeconds:
    """inputs: as the power model calls them. seconds: median of all samples of all processes."""

    kernel: str
    shape: Shape
    inputs: str
    seconds: float

    @property
    def name(self) -> str:
        return f"{self.kernel} at {self.shape}, {self.inputs}"

    @property
    def fitted(self) -> bool:
        return (self.kernel, self.shape) == FROM

    def config(self) -> KernelConfig:
        """What was launched: what the kernel chooses for the problem."""
        return configure(self.kernel, arch=find_gpu(GPU).arch, shape=self.shape)


@dataclass(frozen=True)
class SecondsRow:
    """hertz: the clock that the power model gives it."""

    measured: MeasuredSeconds
    seconds: float
    hertz: float

    @property
    def error(self) -> float:
        return self.seconds / self.measured.seconds - 1


def read_seconds(path: Path = RECORDING) -> list[MeasuredSeconds]:
    """What was measured, each kernel, problem and kind of inputs once."""
    samples: dict[tuple[str, Shape, str], list[float]] = {}
    for run in json.loads(path.read_text(encoding="utf-8"))["runs"]:
        for kernel in KERNELS:
            key = (kernel, Shape(*run["shape"]), INPUTS[run["inputs"]])
            samples.setdefault(key, []).extend(run["seconds"].get(kernel, ()))
    return [MeasuredSeconds(*key, statistics.median(each)) for key, each in samples.items() if each]


def compare_seconds(runs: Sequence[MeasuredSeconds], gpu: Gpu, jobs: int = 1) -> Iterator[SecondsRow]:
    """Predicts each, one after the other, as they are done. jobs: processes."""
    build([run.config() for run in runs])
    yield from in_order(partial(_compare_one, gpu=gpu), runs, jobs)


def _compare_one(run: MeasuredSeconds, gpu: Gpu) -> SecondsRow:
    [artifact] = build([run.config()])
    with no_garbage():
        found = predict(artifact, run.shape, gpu, run.inputs)
    return SecondsRow(run, found.seconds, found.clock.hertz)
