"""``harness run LAUNCH.toml``: runs what a launch file launches, and says whether the result is as expected."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from rich.console import Console

from emugpu.cli.options import check_output, given_options, write_output
from emugpu.cli.program import try_write
from emugpu.cli.ptx_output import show_mistakes, show_outcome
from emugpu.cli.render import progress_bar, show_line
from emugpu.cuda.launch import run_on_gpu
from emugpu.errors import EXIT_CANNOT_RUN, EXIT_OK, EXIT_WRONG_RESULT, CannotRun, UsageProblem
from emugpu.launch.launch_file import read_launch_file
from emugpu.launch.launching import EmulationOptions, Outcome, Tried, run_schedules
from emugpu.launch.ptxas import require_accepted
from emugpu.launch.spec import Launchable
from emugpu.processes.engine import Processes
from emugpu.record import new_record
from harness.cli.options import GPU_SILENCE, OutputOptions, RunOptions
from harness.cli.running import check_schedules, refuse_what_kernels_have


def run_file(path: Path, run: RunOptions, output: OutputOptions, dump: Path | None) -> int:
    """Runs a launch file on the emulated GPU, or on the one of this machine if that is asked for. Options say how; a
    breach of a rule that hardware tolerates is an error only if --strict is given, as other compilers rely on it.
    """
    refuse_what_kernels_have(path, "seed")
    check_output(output.json_path, "--json")
    check_schedules(run.schedules, run.emulation.schedule, run.emulation.uninitialised)
    if run.device not in ("auto", "emulator", "gpu"):
        raise UsageProblem(f"--device {run.device} is for kernels that MAX launches; take emulator or gpu")
    what = read_launch_file(path)
    if run.ptxas:
        require_accepted(what)
    keep = None if dump else ()
    if run.device == "gpu":
        tried = [_on_gpu(what, run, keep)]
    else:
        options = replace(run.emulation, strict=run.emulation.strict and bool(given_options("strict")))
        with progress_bar(f"emulating {path.name}", "clusters") as progress:
            tried = list(run_schedules(what, options, run.schedules, progress, keep))
    outcome = _first_failure(tried)
    written = dump is None or try_write(partial(_dump, outcome, dump))
    place = output.json_path
    if place and not try_write(partial(_write_record, outcome, tried, place)):
        written, place = False, None
    written &= try_write(lambda: _show(outcome, tried, output.json_path == "-", place))
    if not outcome.passed:
        return EXIT_WRONG_RESULT
    return EXIT_OK if written else EXIT_CANNOT_RUN


def _on_gpu(what: Launchable, run: RunOptions, keep: Sequence[str] | None) -> Tried:
    """Runs it in a process of its own, as a GPU may hang."""
    emulators = ("schedules", "schedule", "accumulation", "resident_clusters", "max_steps", "strict", "allow")
    given = given_options(*emulators, "uninitialised")
    if given:
        raise UsageProblem(f"{', '.join(given)} is for the emulator; leave it out, or take --device emulator")
    with Processes(1) as engine:
        [done] = engine.map(partial(run_on_gpu, keep=keep), [what], run.emulation.timeout or GPU_SILENCE, needs="GPU")
    return Tried(EmulationOptions(), done.result())


def _first_failure(tried: Sequence[Tried]) -> Outcome:
    """The first outcome that is wrong, else the first. A schedule without a result is an error, if it comes first."""
    for one in tried:
        if one.outcome is None and len(tried) == 1:
            raise CannotRun(one.error)
        if one.outcome is None:
            alone = one.options.schedule if one.seed is None else f"random --schedule-seed {one.seed}"
            raise CannotRun(f"{one.error}\nto see it alone: --schedule {alone}")
        if not one.passed:
            return one.outcome
    return tried[0].require()


def _show(outcome: Outcome, tried: Sequence[Tried], as_json: bool, place: str | None) -> None:
    if not as_json:
        show_outcome(Console(), outcome, tried)
        if place:
            show_line(Console(), f"record written to {place}")
    elif not outcome.passed:
        show_mistakes(Console(stderr=True), outcome)


def _write_record(outcome: Outcome, tried: Sequence[Tried], json_path: str) -> None:
    record = {**new_record(), **outcome.as_dict()}
    if len(tried) > 1:
        record["schedules"] = [{"seed": t.seed, "passed": t.passed, "error": t.error or None} for t in tried]
    write_output(json.dumps(record, indent=2, allow_nan=False) + "\n", json_path)


def _dump(outcome: Outcome, folder: Path) -> None:
    """Types that NumPy lacks are written as float32, which holds all their values."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, values in outcome.contents.items():
            known = values.dtype.kind in "fiu" and values.dtype.isbuiltin == 1
            np.save(folder / f"{name}.npy", values if known else values.astype(np.float32))
    except OSError as error:
        raise CannotRun(f"cannot write to {folder}: {error.strerror}") from error
