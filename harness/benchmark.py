"""How fast the emulator is on this machine: ``python -m harness.benchmark [KERNEL] [--sizes 512,2048,4096]``.

``--jobs 2`` shares the clusters out to two processes; ``--events`` has a sink count every event.

Each size runs in a process of its own, on one core, with the kernel compiled beforehand. Reported are the
seconds the launch took, everything from PTX text to result included, how many times the seconds of NumPy's
matmul of such matrices in float32 that is, and the process's peak memory. These are times of the emulator; they
say nothing about a GPU.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from typing import Any

import click
import numpy as np

from harness.build.artifacts import build, build_with_notice, make_launchable
from harness.build.config import KernelConfig, make_config
from harness.cli.main import ClearErrors
from harness.cli.options import Parsed
from harness.errors import CannotRun
from harness.launch.launching import EmulationOptions, run
from harness.problem import Shape, parse_shape

ONE_THREAD = {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}
DEFAULT_SIZES = "512,2048,4096"


def measure(config: KernelConfig, shape: Shape, jobs: int, events: bool) -> dict[str, float]:
    """Emulates one problem in this process, or shared out to some. events: whether they are made, and counted."""
    artifact = build([config])[0]
    counted = 0

    def count(event: Any) -> None:
        nonlocal counted
        counted += 1

    what = make_launchable(artifact, shape, "integer", seed=0)
    result = run(what, EmulationOptions(jobs=jobs, sinks=(count,) if events else ()), keep=())
    peak = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)) / 1024
    instructions = sum(result.counters["instructions"].values())
    seconds = {"seconds": result.results[0].seconds, "peak_mib": peak, "instructions": instructions}
    return {**seconds, "events": counted, "numpy_seconds": numpy_seconds(shape)}


def numpy_seconds(shape: Shape) -> float:
    """The time of NumPy's matmul in this process: what one machine has to do with another."""
    a, b = np.ones((shape.m, shape.k), np.float32), np.ones((shape.n, shape.k), np.float32)
    began = time.perf_counter()
    a @ b.T
    return time.perf_counter() - began


def measure_apart(kernel: str, size: int, jobs: int, events: bool) -> dict[str, float]:
    """The same in a process of its own."""
    options = ["--jobs", str(jobs), *(["--events"] if events else [])]
    command = [sys.executable, "-m", "harness.benchmark", kernel, "--child", str(size), *options]
    done = subprocess.run(command, env={**os.environ, **ONE_THREAD}, capture_output=True, text=True)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise CannotRun(f"{kernel} at {size}^3: {last.removeprefix('harness: error: ')}")
    return json.loads(done.stdout)


def parse_sizes(text: str) -> list[int]:
    """Reads sizes of cubes, separated by commas."""
    return [parse_shape(part).m for part in text.split(",")]


@click.command(cls=ClearErrors)
@click.argument("kernel", default="kernel6")
@click.option("--sizes", type=Parsed("N,N,...", parse_sizes), default=DEFAULT_SIZES, show_default=True)
@click.option("--repeat", type=click.IntRange(1), default=3, show_default=True, help="The fastest is shown.")
@click.option("--jobs", type=click.IntRange(1), default=1, show_default=True, help="Processes.")
@click.option("--events", is_flag=True, help="Have every event made and counted.")
@click.option("--child", type=int, hidden=True)
def main(kernel: str, sizes: list[int], repeat: int, jobs: int, events: bool, child: int | None) -> None:
    """Time the emulator on square problems."""
    config = make_config(kernel)
    if child is not None:
        click.echo(json.dumps(measure(config, Shape(child, child, child), jobs, events)))
        return
    build_with_notice([config])
    made = f" {'events':>12}" if events else ""
    click.echo(f"{'problem':>10} {'seconds':>8} {'of NumPy':>9} {'warp instructions':>18} {'peak memory':>12}{made}")
    for size in sizes:
        best = min((measure_apart(kernel, size, jobs, events) for _ in range(repeat)), key=lambda run: run["seconds"])
        seconds, instructions, peak = best["seconds"], best["instructions"], best["peak_mib"]
        made = f" {best['events']:>12,}" if events else ""
        of_numpy = f"{seconds / best['numpy_seconds']:.1f} x"
        click.echo(f"{size:>8}^3 {seconds:>8.2f} {of_numpy:>9} {instructions:>18,} {peak:>8.0f} MiB{made}")


if __name__ == "__main__":
    main()
