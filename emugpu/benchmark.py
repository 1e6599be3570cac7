"""Measures the speed of the emulated GPU on this machine: ``python -m emugpu.benchmark [LAUNCH.toml]... [-o
FILE.json]``.

It times each launch file, and two loops of its own, on both engines in turns, in CPU seconds of one process and core.
The time includes everything from PTX text to result, after one run of each engine that is not timed. NumPy's matmul is
a measure of the machine's speed. These are times of the emulator; they say nothing about a GPU.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import click
import numpy as np

from emugpu.cli.options import as_json
from emugpu.cli.outputs import Outputs, output_option
from emugpu.cli.program import ClearErrors
from emugpu.emulator import Module
from emugpu.emulator.native.library import Engine, library_for
from emugpu.errors import CannotRun
from emugpu.launch.launch_file import read_launch_file
from emugpu.launch.launching import EmulationOptions, run
from emugpu.launch.spec import Launchable

ENGINES: tuple[Engine, ...] = ("python", "native")
ROUNDS = 3
"""The number of turns of each engine; the median counts."""
MATMUL = 2048
"""The size of NumPy's matmul."""
ONE_THREAD = {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}
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
ADDRESSES = """
LOOP: shl.b32 %r4, %r0, 3; mad.lo.u32 %r5, %r4, 17, %r2; shr.u32 %r6, %r5, 2; and.b32 %r6, %r6, 1023;
xor.b32 %r7, %r6, %r0; setp.lt.u32 %p1, %r7, 512; selp.b32 %r8, %r6, %r7, %p1; mul.wide.u32 %d2, %r8, 4;
add.s64 %d3, %d0, %d2; cvt.u32.u64 %r10, %d3; add.u32 %r2, %r2, %r10; sub.u32 %r9, %r9, 1;
setp.ne.u32 %p2, %r9, 0; @%p2 bra LOOP;
"""
"""A loop with the address arithmetic of typical kernels."""
DIVERGENT = """
add.u32 %r4, %r3, 1;
LOOP: setp.le.u32 %p1, %r4, 1; @%p1 bra DONE; add.u32 %r2, %r2, 1; and.b32 %r5, %r4, 1; setp.eq.u32 %p2, %r5, 0;
@%p2 bra EVEN; mad.lo.u32 %r4, %r4, 3, 1; bra LOOP;
EVEN: shr.u32 %r4, %r4, 1; bra LOOP;
DONE:
"""
"""A loop that lanes leave one by one, with a branch at which they diverge."""


def loop_text(body: str) -> str:
    """Returns the PTX of a kernel ``work(out, n)`` with a loop and 128 threads per CTA."""
    return _MODULE.replace("BODY", body)


def _run_loop(body: str, ctas: int, count: int, engine: Engine) -> None:
    device = EmulationOptions(engine=engine).make_device()
    out = device.alloc(4 * 128 * ctas)
    device.launch(Module(loop_text(body)), grid=ctas, block=128, arguments=[out, count])


def _run_launches(what: Launchable, engine: Engine) -> None:
    run(what, EmulationOptions(engine=engine, strict=False), keep=())


def compare_engines(launches: dict[str, Launchable]) -> Iterator[dict[str, Any]]:
    """Yields the CPU seconds of each program on both engines (the median of several turns), and their ratio."""
    works: dict[str, Callable[[Engine], None]] = {
        "addresses": partial(_run_loop, ADDRESSES, 4, 3000),
        "divergent": partial(_run_loop, DIVERGENT, 100, 0),
        **{name: partial(_run_launches, what) for name, what in launches.items()},
    }
    for name, work in works.items():
        seconds: dict[str, list[float]] = {engine: [] for engine in ENGINES}
        for engine in ENGINES:
            work(engine)
        for engine in ENGINES * ROUNDS:
            seconds[engine].append(_seconds(partial(work, engine)))
        middle = {engine: median(found) for engine, found in seconds.items()}
        ratio = middle["python"] / middle["native"]
        yield {"work": name, **{e: round(s, 4) for e, s in middle.items()}, "ratio": round(ratio, 2)}


def _seconds(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


@click.command("emugpu.benchmark", cls=ClearErrors)
@click.argument("files", metavar="[LAUNCH.toml]...", nargs=-1, type=click.Path(path_type=Path))
@output_option("json")
def main(files: tuple[Path, ...], outputs: Outputs) -> None:
    """Time the emulated GPU on launch files and on two loops."""
    launches = {path.stem: read_launch_file(path) for path in files}
    if library_for("native") is None:
        raise CannotRun("there is no native engine to compare with Python; install Mojo with `pip install mojo`")
    ones = np.ones((MATMUL, MATMUL), np.float32)
    rows: list[dict[str, Any]] = [{"work": f"numpy {MATMUL}^3", "numpy": round(_seconds(lambda: ones @ ones), 4)}]
    click.echo(f"{'CPU seconds':<36} {'Python':>9} {'native':>9} {'ratio':>9}", err=True)
    click.echo(f"{rows[0]['work']:<36} {rows[0]['numpy']:>9.3f}", err=True)
    for row in compare_engines(launches):
        rows.append(row)
        ratio = f"{row['python']:>9.3f} {row['native']:>9.3f} {row['ratio']:>7.1f} x"
        click.echo(f"{row['work']:<36} {ratio}", err=True)
    outputs.write(json=lambda: as_json(rows))


if __name__ == "__main__":
    if not ONE_THREAD.items() <= os.environ.items():
        # Waiting BLAS threads use CPU time, too.
        command = [sys.executable, "-m", "emugpu.benchmark", *sys.argv[1:]]
        os.execve(sys.executable, command, {**os.environ, **ONE_THREAD})
    main()
