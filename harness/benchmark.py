"""How fast the emulator is on this machine: ``python -m harness.benchmark [KERNEL] [--sizes 512,2048,4096]``.

Each size runs in a process of its own, on one core, with the kernel compiled beforehand. Reported are the
seconds the launch took, everything from PTX text to result included, and the process's peak memory. These are
times of the emulator; they say nothing about a GPU.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys

import click

from harness.build import build, build_with_notice
from harness.clear_errors import ClearErrors
from harness.config import KernelConfig, make_config
from harness.emulate import emulate
from harness.errors import CannotRun
from harness.inputs import make_inputs
from harness.options import Parsed
from harness.problem import Shape, parse_shape

ONE_THREAD = {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}
DEFAULT_SIZES = "512,2048,4096"


def measure(config: KernelConfig, shape: Shape) -> dict[str, float]:
    """Emulates one problem in this process."""
    artifact = build([config])[0]
    result = emulate(artifact.ptx, artifact.plan(shape), make_inputs(shape, config.dtype, "integer", seed=0))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    instructions = sum(result.counters["instructions"].values())
    return {"seconds": result.seconds, "peak_mib": peak, "instructions": instructions}


def measure_apart(kernel: str, size: int) -> dict[str, float]:
    """The same in a process of its own."""
    command = [sys.executable, "-m", "harness.benchmark", kernel, "--child", str(size)]
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
@click.option("--child", type=int, hidden=True)
def main(kernel: str, sizes: list[int], repeat: int, child: int | None) -> None:
    """Time the emulator on square problems."""
    config = make_config(kernel)
    if child is not None:
        click.echo(json.dumps(measure(config, Shape(child, child, child))))
        return
    build_with_notice([config])
    click.echo(f"{'problem':>10} {'seconds':>8} {'warp instructions':>18} {'peak memory':>12}")
    for size in sizes:
        best = min((measure_apart(kernel, size) for _ in range(repeat)), key=lambda run: run["seconds"])
        seconds, instructions, peak = best["seconds"], best["instructions"], best["peak_mib"]
        click.echo(f"{size:>8}^3 {seconds:>8.2f} {instructions:>18,} {peak:>8.0f} MiB")


if __name__ == "__main__":
    main()
