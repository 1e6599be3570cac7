"""Measures the speed of the emulated GPU on this machine: ``python -m emugpu.benchmark [LAUNCH.toml]... [-o
FILE.json]``.

It counts the million warp instructions that the emulator runs in a second of one core's CPU time: in a loop of each
class of instructions, and in the launches of launch files, where reading the file and judging the result takes part of
the time. Each is measured plain, with the checker, under a random schedule, and without the native engine. These are
times of the emulator; they say nothing about a GPU.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

import click

from emugpu.check.checker import Checker
from emugpu.cli.options import as_json
from emugpu.cli.outputs import Outputs, output_option
from emugpu.cli.program import ClearErrors
from emugpu.emulator import Module
from emugpu.emulator.native.library import library_for
from emugpu.errors import CannotRun
from emugpu.launch.launch_file import read_launch_file
from emugpu.launch.launching import EmulationOptions, run
from emugpu.launch.spec import Launchable

MODES: dict[str, Callable[[], EmulationOptions]] = {
    "plain": lambda: EmulationOptions(strict=False),
    "checked": lambda: EmulationOptions(strict=False, sinks=(Checker(),)),
    "random": lambda: EmulationOptions(strict=False, schedule="random"),
    "python": lambda: EmulationOptions(strict=False, engine="python"),
}
FIRST, ROUNDS, SHORTEST, LONGEST, TURNS = 64, 1024, 0.05, 0.3, 3
"""The rounds of the first run, which are multiplied by sixteen until a run has enough of them and of CPU seconds. The
median of several such runs counts, or the first one that takes long.
"""
CTAS, THREADS = 4, 128
ONE_THREAD = {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}
_MODULE = """.version 8.8
.target sm_100a
.address_size 64
.visible .entry work(.param .u64 out, .param .u32 n)
{
.reg .pred %p<4>; .reg .b32 %r<16>; .reg .b64 %d<8>;
.shared .align 16 .b8 words[512]; .local .align 16 .b8 frame[16];
ld.param.u64 %d0, [out]; ld.param.u32 %r9, [n]; mov.u32 %r0, %tid.x; mov.u32 %r1, %ctaid.x; mov.b32 %r2, 0;
mad.lo.u32 %r3, %r1, 128, %r0; mov.b32 %r4, 7; mov.b32 %r5, 0; mov.b32 %r6, 0; mov.b32 %r7, 0;
mul.wide.u32 %d1, %r3, 4; add.s64 %d1, %d0, %d1; st.global.u32 [%d1], %r2;
shl.b32 %r8, %r0, 2; mov.u32 %r10, words; add.u32 %r8, %r8, %r10; st.shared.u32 [%r8], %r2;
mov.u64 %d2, frame; st.local.u32 [%d2], %r2;
LOOP:
BODY
sub.u32 %r9, %r9, 1; setp.ne.u32 %p2, %r9, 0; @%p2 bra LOOP;
st.global.u32 [%d1], %r2;
ret;
}
"""
ADDRESSES = """
shl.b32 %r4, %r0, 3; mad.lo.u32 %r5, %r4, 17, %r2; shr.u32 %r6, %r5, 2; and.b32 %r6, %r6, 1023;
xor.b32 %r7, %r6, %r0; setp.lt.u32 %p1, %r7, 512; selp.b32 %r8, %r6, %r7, %p1; mul.wide.u32 %d2, %r8, 4;
add.s64 %d3, %d0, %d2; cvt.u32.u64 %r10, %d3; add.u32 %r2, %r2, %r10;
"""
LOOPS = {
    "integer": ADDRESSES,
    "f32": "fma.rn.f32 %r5, %r5, 0f3F000000, 0f3F800000; add.f32 %r6, %r5, %r6; mul.f32 %r6, %r6, 0f3F000000;" * 3,
    "shuffle": "shfl.sync.bfly.b32 %r5, %r0, 1, 31, -1; add.u32 %r2, %r2, %r5;" * 4,
    "shared": "ld.shared.u32 %r5, [%r8]; add.u32 %r5, %r5, 1; st.shared.u32 [%r8], %r5;" * 3,
    "global": "ld.global.u32 %r5, [%d1]; add.u32 %r5, %r5, 1; st.global.u32 [%d1], %r5;" * 3,
    "local": "ld.local.u32 %r5, [%d2]; add.u32 %r5, %r5, 1; st.local.u32 [%d2], %r5;" * 3,
    "generic": "ld.u32 %r5, [%d1]; add.u32 %r5, %r5, 1; st.u32 [%d1], %r5;" * 3,
    "strong": "ld.volatile.global.u32 %r5, [%d1]; add.u32 %r5, %r5, 1; st.volatile.global.u32 [%d1], %r5;" * 3,
    "divergent": "and.b32 %r5, %r0, 1; setp.eq.u32 %p1, %r5, 0; @%p1 bra EVEN; add.u32 %r2, %r2, 3; bra MEET;"
    "EVEN: add.u32 %r2, %r2, 1; MEET: xor.b32 %r2, %r2, %r9;",
    "barrier": "bar.sync 0; add.u32 %r2, %r2, 1;" * 3,
    "atomic": "atom.global.add.u32 %r5, [%d1], 1; red.shared.max.u32 [%r8], %r9;" * 3,
    "tensor core": "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"
    "{%r4, %r5, %r6, %r7}, {%r0, %r0, %r0, %r0}, {%r0, %r0}, {%r4, %r5, %r6, %r7};" * 3,
}
"""The rounds of the loops, by class of instructions."""


def loop_text(body: str) -> str:
    """Returns the PTX of a kernel ``work(out, n)`` of ``THREADS`` threads a CTA that runs ``body`` n times."""
    return _MODULE.replace("BODY", body)


def run_loop(module: Module, options: EmulationOptions, rounds: int) -> int:
    """Runs such a kernel. Returns the number of warp instructions."""
    device = options.make_device()
    arguments = [device.alloc(4 * THREADS * CTAS), rounds]
    result = device.launch(module, grid=CTAS, block=THREADS, arguments=arguments, sinks=options.sinks)
    return sum(result.counters.instructions.values())


def _run_launches(what: Launchable, options: EmulationOptions, rounds: int) -> int:
    return sum(sum(run(what, options, keep=()).counters["instructions"].values()) for _ in range(rounds))


def speed_of(work: Callable[[EmulationOptions, int], int], options: Callable[[], EmulationOptions]) -> float:
    """Returns the million warp instructions a second of CPU time, of a run with enough rounds."""
    rounds, found = FIRST, list[float]()
    while len(found) < TURNS:
        one, began = options(), time.process_time()
        instructions = work(one, rounds)
        seconds = time.process_time() - began
        speed = instructions / seconds / 1e6
        if seconds > LONGEST:
            return speed
        if found or (seconds > SHORTEST and rounds >= ROUNDS):
            found.append(speed)
        else:
            rounds *= 16
    return median(found)


@click.command("emugpu.benchmark", cls=ClearErrors)
@click.argument("files", metavar="[LAUNCH.toml]...", nargs=-1, type=click.Path(path_type=Path))
@output_option("json")
def main(files: tuple[Path, ...], outputs: Outputs) -> None:
    """Count the warp instructions a second of the emulated GPU, by class, and of launch files."""
    launches = {path.stem: partial(_run_launches, read_launch_file(path)) for path in files}
    if library_for("native") is None:
        raise CannotRun("there is no native engine to measure; install Mojo with `pip install mojo`")
    works = {name: partial(run_loop, Module(loop_text(body))) for name, body in LOOPS.items()} | launches
    rows = []
    click.echo(f"{'million warp instructions a second':<36}{''.join(f'{mode:>9}' for mode in MODES)}", err=True)
    for name, work in works.items():
        speeds = {mode: speed_of(work, options) for mode, options in MODES.items()}
        rows.append({"work": name, **{mode: round(speed, 4) for mode, speed in speeds.items()}})
        click.echo(f"{name:<36}{''.join(f'{speed:>9.3g}' for speed in speeds.values())}", err=True)
    outputs.write(json=lambda: as_json(rows))


if __name__ == "__main__":
    if not ONE_THREAD.items() <= os.environ.items():
        # Waiting BLAS threads use CPU time, too.
        command = [sys.executable, "-m", "emugpu.benchmark", *sys.argv[1:]]
        os.execve(sys.executable, command, {**os.environ, **ONE_THREAD})
    main()
