"""Compares the timing model with what an H200 took: ``python -m metrology.validation``.

The recording (`results/nvidia-h200-timing.json`, made by `harness survey --read ARCHIVE --recording FILE`) says of each
run what it was for: ``fit``, some constants were fitted to it; ``seen``, it was looked at while the model got its form;
``judge`` and ``judge-far``, drawn at random near the defaults and from anything the rules allow, and measured after the
model had been frozen. The model is frozen: this shows whether a change left its predictions as they were.
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

import click

from harness.build.artifacts import build
from harness.cli.main import ClearErrors
from harness.errors import UsageProblem
from harness.paths import ROOT
from harness.processes.engine import in_order
from harness.timing.constants import Gpu, find_gpu
from harness.timing.measured import parse_run
from harness.timing.simulate import simulate

RECORDING = ROOT / "results" / "nvidia-h200-timing.json"
GPU = "h200"
WITHIN = 0.12
"""The error that the model was made to stay within."""


@dataclass(frozen=True)
class Measured:
    """A run of the recording. cycles: of a launch in a row of launches, on zeros; hertz: the clock then."""

    name: str
    use: str
    cycles: float
    hertz: float


@dataclass(frozen=True)
class Row:
    """A run, measured and predicted."""

    measured: Measured
    cycles: float

    @property
    def error(self) -> float:
        return self.cycles / self.measured.cycles - 1


def measured_runs(recording: dict[str, Any]) -> list[Measured]:
    """The runs of a recording."""
    return [Measured(run["name"], run["use"], run["cycles"], 1e6 * run["mhz"]) for run in recording["runs"]]


def read_recording(path: Path = RECORDING) -> list[Measured]:
    """The runs that are kept."""
    return measured_runs(json.loads(path.read_text(encoding="utf-8")))


def compare(runs: Sequence[Measured], gpu: Gpu, jobs: int = 1) -> Iterator[Row]:
    """Predicts the cycles of each run, at the clock it had; in order, as they are done. jobs: processes."""
    build([parse_run(run.name, gpu.arch)[0] for run in runs])
    yield from in_order(partial(_compare_one, gpu=gpu), runs, jobs)


def _compare_one(run: Measured, gpu: Gpu) -> Row:
    config, shape = parse_run(run.name, gpu.arch)
    [artifact] = build([config])
    with _no_garbage():
        return Row(run, simulate(artifact, artifact.plan(shape), gpu, run.hertz).cycles)


@contextlib.contextmanager
def _no_garbage() -> Iterator[None]:
    """Nothing is collected meanwhile: a simulation leaves little, and to look for it takes a seventh of the time."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def verdicts(rows: Sequence[Row]) -> list[str]:
    """A line for each use that several runs have: how far off the predictions are."""
    lines = []
    for use in dict.fromkeys(row.measured.use for row in rows):
        some = [row for row in rows if row.measured.use == use]
        if len(some) > 1:
            errors = [abs(row.error) for row in some]
            lines.append(
                f"{use}: {len(some)} runs, mean absolute error {100 * statistics.fmean(errors):.1f} %, largest "
                f"{100 * max(errors):.1f} %, {sum(error <= WITHIN for error in errors)} within {100 * WITHIN:.0f} %"
            )
    return lines


@click.command(cls=ClearErrors)
@click.option("--match", default="", help="Only runs whose name or use has this in it.")
@click.option("--jobs", type=click.IntRange(1), default=1, show_default=True, help="Worker processes.")
def main(match: str, jobs: int) -> None:
    """Compare the timing model with the runs that were measured on an H200."""
    runs = [run for run in read_recording() if match in f"{run.use}: {run.name}"]
    if not runs:
        raise UsageProblem(f"--match {match!r}: no run has that in its use or name; shorten it, or leave it out")
    rows = []
    for row in compare(runs, find_gpu(GPU), jobs):
        rows.append(row)
        click.echo(
            f"[{len(rows):3}/{len(runs)}] {row.measured.use:9} {row.measured.name:92} measured "
            f"{row.measured.cycles:11,.0f} predicted {row.cycles:11,.0f} {100 * row.error:+6.1f} %"
        )
    for line in verdicts(rows):
        click.echo(line)


if __name__ == "__main__":
    main()
