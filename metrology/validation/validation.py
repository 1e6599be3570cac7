"""Compares the model with what an H200 took.

The recording says of each run whether it was there to fit constants, was seen while the model got its form, or judges
it; that was settled before it was measured.
"""

from __future__ import annotations

import contextlib
import gc
import json
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from harness.build.artifacts import build
from harness.build.config import KernelConfig
from harness.build.presets import configure
from harness.paths import ROOT
from harness.problem.shape import Shape, parse_shape
from harness.processes.engine import in_order
from harness.timing.constants import Gpu, find_gpu
from harness.timing.limits import TENSOR, limits
from harness.timing.simulate import simulate
from harness.timing.what_if import OPTIONS

RECORDING = ROOT / "results" / "nvidia-h200-timing.json"
GPU = "h200"


@dataclass(frozen=True)
class Measured:
    """A run of the recording. cycles: of a launch in a row, on zeros; hertz: the clock then; ncu: counters or {}."""

    name: str
    use: str
    cycles: float
    hertz: float
    ncu: dict[str, float]


@dataclass(frozen=True)
class Row:
    """A run, measured and predicted. tensor: cycles in which an average SM's tensor core works; dram, l2: bytes;
    whole: whether no box that is loaded lies partly outside of A or B.
    """

    measured: Measured
    cycles: float
    tensor: float
    dram: float
    l2: float
    whole: bool = True

    @property
    def error(self) -> float:
        return self.cycles / self.measured.cycles - 1

    @property
    def counted_tensor(self) -> float:
        """Cycles in which an average SM's tensor core has worked. Their part of the launch is another one, cold, than
        in a row of launches; they themselves are the same."""
        return self.measured.ncu["tensor_percent"] / 100 * self.measured.ncu["cycles"]


@dataclass(frozen=True)
class Judgement:
    """Of several rows: mean and largest absolute error, and the rank correlation of the cycles."""

    runs: int
    mean: float
    largest: float
    rank: float


def read_recording(path: Path = RECORDING) -> list[Measured]:
    """What was measured."""
    data = json.loads(path.read_text(encoding="utf-8"))
    return [
        Measured(run["name"], run["use"], run["cycles"], run["mhz"] * 1e6, run.get("ncu", {})) for run in data["runs"]
    ]


def parse_name(name: str, arch: str | None = None) -> tuple[KernelConfig, Shape]:
    """``kernel7 stages=3 cluster=1x1 at 4096x4096x4096``. arch: that of the H200 unless another is named."""
    words, _, size = name.partition(" at ")
    kernel, *asked = words.split()
    shape = parse_shape(size.replace("x", ","))
    options: dict[str, Any] = {}
    for word in asked:
        option, _, value = word.partition("=")
        options[option] = OPTIONS[option](value)
    return configure(kernel, arch=arch or find_gpu(GPU).arch, shape=shape, **options), shape


def compare(runs: Sequence[Measured], gpu: Gpu, detail: int | None = None, jobs: int = 1) -> Iterator[Row]:
    """Predicts the cycles of each run, at the clock it had; one after the other, as they are done. jobs: processes."""
    build([parse_name(run.name)[0] for run in runs])
    yield from in_order(partial(_compare_one, gpu=gpu, detail=detail), runs, jobs)


def _compare_one(run: Measured, gpu: Gpu, detail: int | None) -> Row:
    config, shape = parse_name(run.name)
    [artifact] = build([config])
    with no_garbage():
        found = simulate(artifact, artifact.plan(shape), gpu, run.hertz, detail=detail)
    parts = {limit.name: limit.cycles for limit in limits(found.machine, found.used)}
    asked = found.hits.requested + found.hits.written
    return Row(run, found.cycles, parts[TENSOR], found.hits.dram, asked, found.gemm.whole)


@contextlib.contextmanager
def no_garbage() -> Iterator[None]:
    """Nothing is collected meanwhile: a simulation leaves little, and to look for it takes a seventh of the time."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def judge(rows: Sequence[Row]) -> Judgement:
    """Over rows of one use."""
    errors = [abs(row.error) for row in rows]
    return Judgement(
        len(rows),
        statistics.fmean(errors),
        max(errors),
        _rank_correlation([row.measured.cycles for row in rows], [row.cycles for row in rows]),
    )


def _rank_correlation(a: Sequence[float], b: Sequence[float]) -> float:
    """Spearman's."""
    return statistics.correlation(_ranks(a), _ranks(b))


def _ranks(values: Sequence[float]) -> list[float]:
    """Equal values share the mean of their ranks."""
    ordered = sorted(values)
    return [ordered.index(value) + (ordered.count(value) - 1) / 2 for value in values]
