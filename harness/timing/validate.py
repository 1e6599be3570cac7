"""Compares the model with what an H200 took: ``python -m harness.timing.validate``.

The recording says of each run whether it was there to fit constants or only to judge; that was drawn before anything
was measured. ``--write FOLDER`` makes the tables and the picture of docs/timing.md.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from harness.compiler.build import build
from harness.config.config import KernelConfig
from harness.config.presets import configure
from harness.errors import HarnessError, UsageProblem
from harness.paths import ROOT
from harness.problem.shape import Shape, parse_shape
from harness.timing.constants import Gpu, find_gpu
from harness.timing.limits import TENSOR, limits
from harness.timing.simulate import simulate
from harness.timing.what_if import OPTIONS, parse_changes

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
    """A run, measured and predicted. tensor: the part of all SM cycles in which the tensor cores multiply."""

    measured: Measured
    cycles: float
    tensor: float
    dram: float
    l2: float

    @property
    def error(self) -> float:
        return self.cycles / self.measured.cycles - 1


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


def parse_name(name: str) -> tuple[KernelConfig, Shape]:
    """``kernel7 stages=3 cluster=1x1 at 4096x4096x4096``."""
    words, _, size = name.partition(" at ")
    kernel, *asked = words.split()
    shape = parse_shape(size.replace("x", ","))
    options: dict[str, Any] = {}
    for word in asked:
        option, _, value = word.partition("=")
        options[option] = value == "True" if value in ("True", "False") else OPTIONS[option](value)
    return configure(kernel, arch=find_gpu(GPU).arch, shape=shape, **options), shape


def compare(runs: Sequence[Measured], gpu: Gpu, detail: int | None = None) -> list[Row]:
    """Predicts the cycles of each run, at the clock it had."""
    named = [parse_name(run.name) for run in runs]
    rows = []
    for run, (_, shape), artifact in zip(runs, named, build([config for config, _ in named]), strict=True):
        found = simulate(artifact, artifact.plan(shape), gpu, run.hertz, detail=detail)
        parts = {limit.name: limit.share for limit in limits(found.machine, found.used)}
        rows.append(Row(run, found.cycles, parts[TENSOR], found.hits.dram, found.hits.requested + found.hits.written))
    return rows


def judge(rows: Sequence[Row]) -> Judgement:
    """Over rows that share nothing with the fit."""
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


@click.command()
@click.option("--use", type=click.Choice(["fit", "judge", "all"]), default="all", show_default=True)
@click.option("--constant", "changes", multiple=True, metavar="NAME=VALUE", help="Try another value.")
@click.option("--match", default="", help="Only runs whose name has this in it.")
@click.option("--detail", type=click.IntRange(1), help="CTA K-steps that are simulated.")
def main(use: str, changes: tuple[str, ...], match: str, detail: int | None) -> None:
    """Compare the timing model with the recording of an H200."""
    console = Console(width=140)
    gpu = find_gpu(GPU)
    try:
        for change in parse_changes(changes, gpu):
            gpu = gpu.with_values(change.constants)
        runs = [run for run in read_recording() if use in ("all", run.use) and match in run.name]
        if not runs:
            raise UsageProblem(f"--match '{match}': no run of the recording has that in its name")
        rows = compare(runs, gpu, detail)
    except HarnessError as error:
        raise click.ClickException(str(error)) from None
    for row in rows:
        console.print(
            f"{row.measured.use:5} {row.measured.name:75} {row.measured.cycles:11,.0f} {row.cycles:11,.0f} "
            f"{100 * row.error:+6.1f} %",
            highlight=False,
        )
    for kind in ("fit", "judge"):
        some = [row for row in rows if row.measured.use == kind]
        if len(some) > 1:
            found = judge(some)
            console.print(
                f"{kind}: {found.runs} runs, mean absolute error {100 * found.mean:.1f} %, largest "
                f"{100 * found.largest:.1f} %, rank correlation {found.rank:.3f}",
                highlight=False,
            )


if __name__ == "__main__":
    main()
