"""How fast the emulator is on this machine: ``python -m harness.benchmark [KERNEL] [--sizes 512,2048,4096]``.

Each size runs in a process of its own, on one core, with the kernel compiled beforehand. Reported are the seconds the launch
took, everything from PTX text to result included, and the process's peak memory. These are times of the emulator; they
say nothing about a GPU.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys

import click

ONE_THREAD = {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}
DEFAULT_SIZES = "512,2048,4096"


def measure(kernel: str, size: int) -> dict[str, float]:
    """Emulate one square problem in this process."""
    from harness.build import build
    from harness.config import make_config
    from harness.emulate import emulate
    from harness.inputs import make_inputs
    from harness.problem import Shape

    shape = Shape(size, size, size)
    artifact = build([make_config(kernel)])[0]
    result = emulate(artifact.ptx, artifact.plan(shape), make_inputs(shape, "bf16", "integer", seed=0))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    instructions = sum(result.counters["instructions"].values())
    return {"seconds": result.seconds, "peak_mib": peak, "instructions": instructions}


@click.command()
@click.argument("kernel", default="kernel6")
@click.option(
    "--sizes", default=DEFAULT_SIZES, show_default=True, help="Square problem sizes, separated by commas."
)
@click.option("--repeat", default=3, show_default=True, help="Runs of each size; the fastest is shown.")
@click.option("--child", type=int, hidden=True)
def main(kernel: str, sizes: str, repeat: int, child: int | None) -> None:
    """Time the emulator."""
    if child is not None:
        click.echo(json.dumps(measure(kernel, child)))
        return
    click.echo(f"{'problem':>10} {'seconds':>8} {'warp instructions':>18} {'peak memory':>12}")
    for size in (int(s) for s in sizes.split(",")):
        runs = []
        for _ in range(repeat):
            command = [sys.executable, "-m", "harness.benchmark", kernel, "--child", str(size)]
            done = subprocess.run(command, env={**os.environ, **ONE_THREAD}, capture_output=True, text=True)
            if done.returncode:
                raise click.ClickException(done.stderr.strip().splitlines()[-1])
            runs.append(json.loads(done.stdout))
        best = min(runs, key=lambda run: run["seconds"])
        click.echo(
            f"{size:>8}^3 {best['seconds']:>8.2f} {best['instructions']:>18,} {best['peak_mib']:>8.0f} MiB"
        )


if __name__ == "__main__":
    main()
