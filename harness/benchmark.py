"""How fast the emulator is on this machine: ``python -m harness.benchmark [KERNEL] [--sizes 512,2048,4096]``.

``--jobs 2`` shares the clusters out to two processes; ``--events`` has a sink count every event. ``--json -``, or a
file, compares the two engines instead: a few works, each on both in turns, in CPU seconds of one process and core.

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
from collections.abc import Callable, Iterator
from functools import partial
from statistics import median
from typing import Any

import click
import numpy as np

from emugpu.cli.options import Parsed, as_json, check_output, given_options, write_output
from emugpu.cli.program import ClearErrors
from emugpu.emulator import Module
from emugpu.emulator.native.library import Engine, library_for
from emugpu.errors import CannotRun, UsageProblem
from emugpu.launch.launch_file import read_launch_file
from emugpu.launch.launching import EmulationOptions, run
from emugpu.launch.spec import Launchable
from harness import paths
from harness.compile.artifacts import build, build_with_notice, make_launchable
from harness.compile.config import KernelConfig, make_config
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


# ---- the two engines ----

LARGE = Shape(2048, 2048, 2048)
ROUNDS = 3
"""How often each engine has its turn; the fastest counts."""
ENGINES: tuple[Engine, ...] = ("python", "native")
_MODULE = """.version 8.8
.target sm_100a
.address_size 64
.visible .entry work(.param .u64 out, .param .u32 n)
{
.reg .pred %p<4>; .reg .b32 %r<16>; .reg .b64 %d<4>;
ld.param.u64 %d0, [out]; ld.param.u32 %r9, [n]; mov.u32 %r0, %tid.x; mov.u32 %r1, %ctaid.x; mov.b32 %r2, 0;
mad.lo.u32 %r3, %r1, 128, %r0;
BODY
mul.wide.u32 %d1, %r3, 4; add.s64 %d1, %d0, %d1; st.global.u32 [%d1], %r2;
ret;
}
"""
_ADDRESSES = """
LOOP: shl.b32 %r4, %r0, 3; mad.lo.u32 %r5, %r4, 17, %r2; shr.u32 %r6, %r5, 2; and.b32 %r6, %r6, 1023;
xor.b32 %r7, %r6, %r0; setp.lt.u32 %p1, %r7, 512; selp.b32 %r8, %r6, %r7, %p1; mul.wide.u32 %d2, %r8, 4;
add.s64 %d3, %d0, %d2; cvt.u32.u64 %r10, %d3; add.u32 %r2, %r2, %r10; sub.u32 %r9, %r9, 1;
setp.ne.u32 %p2, %r9, 0; @%p2 bra LOOP;
"""
_DIVERGENT = """
add.u32 %r4, %r3, 1;
LOOP: setp.le.u32 %p1, %r4, 1; @%p1 bra DONE; add.u32 %r2, %r2, 1; and.b32 %r5, %r4, 1; setp.eq.u32 %p2, %r5, 0;
@%p2 bra EVEN; mad.lo.u32 %r4, %r4, 3, 1; bra LOOP;
EVEN: shr.u32 %r4, %r4, 1; bra LOOP;
DONE:
"""


def _loop(body: str, ctas: int, count: int, engine: Engine) -> None:
    device = EmulationOptions(engine=engine).make_device()
    out = device.alloc(4 * 128 * ctas)
    device.launch(Module(_MODULE.replace("BODY", body)), grid=ctas, block=128, arguments=[out, count])


def _sgemm(text: str, size: int, engine: Engine) -> None:
    device = EmulationOptions(engine=engine).make_device()
    a, b, c = (device.upload(np.ones((size, size), np.float32)) for _ in range(3))
    grid = (size // 32, size // 32)
    device.launch(Module(text), "sgemm", grid=grid, block=(32, 32), arguments=[a, b, c, size, size])


def _launchable(what: Launchable, engine: Engine) -> None:
    run(what, EmulationOptions(engine=engine, strict=False), keep=())


def works() -> dict[str, Callable[[Engine], None]]:
    """What the engines are compared on, by name; the data of the tests among it, in a checkout."""
    found: dict[str, Callable[[Engine], None]] = {
        "addresses": partial(_loop, _ADDRESSES, 4, 3000),
        "divergent": partial(_loop, _DIVERGENT, 100, 0),
    }
    data = paths.ROOT / "tests" / "data"
    if (data / "cuda" / "sgemm.ptx").exists():
        text = (data / "cuda" / "sgemm.ptx").read_text(encoding="utf-8")
        found |= {f"nvcc sgemm {size}^3": partial(_sgemm, text, size) for size in (128, 256)}
    for path in sorted((data / "launches").glob("*.toml")):
        found[path.stem] = partial(_launchable, read_launch_file(path))
    what = make_launchable(build([make_config("kernel7")])[0], LARGE, "integer", seed=0)
    return {**found, "kernel7 2048^3": partial(_launchable, what)}


def compare_engines() -> Iterator[dict[str, Any]]:
    """Yields the CPU seconds of each work on both engines, the median of rounds in turns, and their ratio."""
    for name, work in works().items():
        seconds: dict[str, list[float]] = {engine: [] for engine in ENGINES}
        for engine in ENGINES * ROUNDS:
            began = time.process_time()
            work(engine)
            seconds[engine].append(time.process_time() - began)
        middle = {engine: round(median(found), 4) for engine, found in seconds.items()}
        row: dict[str, Any] = {"work": name, **middle, "ratio": round(middle["python"] / middle["native"], 2)}
        if name == "kernel7 2048^3":
            row["numpy"] = round(numpy_seconds(LARGE), 4)
        yield row


def show_engines(path: str) -> None:
    if library_for("native") is None:
        raise CannotRun("there is no native engine to compare with Python; install Mojo with `pip install max`")
    rows = []
    for row in compare_engines():
        rows.append(row)
        ratio = f"{row['python']:>9.3f} {row['native']:>9.3f} {row['ratio']:>7.1f} x"
        click.echo(f"{row['work']:<32} {ratio}", err=True)
    write_output(as_json(rows), path)


def parse_sizes(text: str) -> list[int]:
    """Reads sizes of cubes, separated by commas."""
    return [parse_shape(part).m for part in text.split(",")]


@click.command(cls=ClearErrors)
@click.argument("kernel", default="kernel6")
@click.option("--sizes", type=Parsed("N,N,...", parse_sizes), default=DEFAULT_SIZES, show_default=True)
@click.option("--repeat", type=click.IntRange(1), default=3, show_default=True, help="The fastest is shown.")
@click.option("--jobs", type=click.IntRange(1), default=1, show_default=True, help="Processes.")
@click.option("--events", is_flag=True, help="Have every event made and counted.")
@click.option("--json", "json_path", metavar="PATH|-", help="Compare the engines, and write that there.")
@click.option("--child", type=int, hidden=True)
def main(
    kernel: str, sizes: list[int], repeat: int, jobs: int, events: bool, json_path: str | None, child: int | None
) -> None:
    """Time the emulator on square problems."""
    if json_path is not None:
        check_output(json_path, "--json")
        if ignored := given_options("kernel", "sizes", "repeat", "jobs", "events"):
            raise UsageProblem(f"{', '.join(ignored)}: --json compares the engines on works of its own; leave it out")
        show_engines(json_path)
        return
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
    if not ONE_THREAD.items() <= os.environ.items():
        # Threads of BLAS that wait for work take CPU time, too.
        command = [sys.executable, "-m", "harness.benchmark", *sys.argv[1:]]
        os.execve(sys.executable, command, {**os.environ, **ONE_THREAD})
    main()
