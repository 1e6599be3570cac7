"""The command ``emugpu run`` runs launch files, and compares their results with the expected ones."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import click
import numpy as np
from rich.console import Console

from emugpu.cli.emulation import GPU_SILENCE, SETTINGS, Emulation, emulation_options
from emugpu.cli.options import NamedPath, as_json
from emugpu.cli.outputs import FOLDER, Outputs, output_option
from emugpu.cli.profile import profile_option
from emugpu.cli.program import print_error
from emugpu.cli.ptx_output import show_mistakes, show_outcome
from emugpu.cli.render import progress_bar
from emugpu.cuda.launch import run_on_gpu
from emugpu.errors import EXIT_CANNOT_RUN, EXIT_OK, EXIT_WRONG_RESULT, CannotRun
from emugpu.files import whole_file
from emugpu.launch.launch_file import read_launch_file
from emugpu.launch.launching import EmulationOptions, LaunchOutcome, ScheduleOutcome, run_schedules
from emugpu.launch.ptxas import require_accepted
from emugpu.launch.spec import Launchable
from emugpu.processes.engine import Processes
from emugpu.record import new_record


@click.command("run")
@profile_option
@click.argument("files", nargs=-1, required=True, type=NamedPath(path_type=Path), metavar="LAUNCH.toml...")
@click.option(
    "--device",
    type=click.Choice(["emulator", "gpu"]),
    default="emulator",
    show_default=True,
    help="Where to run: emulator, or gpu for this machine's GPU, through the CUDA driver.",
)
@emulation_options(*SETTINGS, gpu=True, strict=False)
@output_option("json", folder="final contents of the buffers, as .npy")
def run_command(files: tuple[Path, ...], device: str, emulation: Emulation, outputs: Outputs) -> int:
    """Run each LAUNCH.toml and check its results.

    With several schedules, each must give the right result.
    """
    if device == "gpu":
        emulation.refuse_on_gpu()
    several = [read_launch_file(file) for file in files]
    for what in several if emulation.ptxas else ():
        require_accepted(what)
    keep = None if outputs.asks_for(FOLDER) else ()
    runs: list[list[ScheduleOutcome]] = []
    for what in several:
        try:
            runs.append(_tried(what, device, emulation, keep))
        except CannotRun as error:
            if len(several) == 1:
                raise
            print_error(str(error), EXIT_CANNOT_RUN)
    return _report(runs, outputs, files) or (EXIT_OK if len(runs) == len(several) else EXIT_CANNOT_RUN)


def _tried(what: Launchable, device: str, emulation: Emulation, keep: Sequence[str] | None) -> list[ScheduleOutcome]:
    """Runs a launch file under all schedules. Raises CannotRun if the first failure has no result."""
    if device == "gpu":
        # In its own process, because a GPU may hang.
        with Processes(1) as engine:
            limit = emulation.options.timeout or GPU_SILENCE
            [done] = engine.map(partial(run_on_gpu, keep=keep), [what], limit, needs="GPU")
        return [ScheduleOutcome(EmulationOptions(), done.result())]
    with progress_bar(f"emulating {what.file.name if what.file else what.label}", "clusters") as progress:
        tried = list(run_schedules(what, emulation.options, emulation.schedules, progress, keep))
    first = _first_failure(tried)
    if first.outcome is None and len(tried) > 1:
        alone = first.options.schedule if first.seed is None else f"random:{first.seed}"
        raise CannotRun(f"{first.error}\nto run only this schedule: --schedules {alone}")
    first.require()
    return tried


def _first_failure(tried: Sequence[ScheduleOutcome]) -> ScheduleOutcome:
    """The first schedule whose result is wrong or missing, else the first."""
    return next((one for one in tried if not one.passed), tried[0])


def _report(runs: Sequence[Sequence[ScheduleOutcome]], outputs: Outputs, files: Sequence[Path]) -> int:
    """Writes and shows the result of each launch file. Returns the exit code."""
    outcomes = [_first_failure(tried).require() for tried in runs]
    records = [_record(outcome, tried) for outcome, tried in zip(outcomes, runs, strict=True)]
    written = outputs.write(
        folder=lambda folder: _dump(outcomes, folder, files),
        **({"json": lambda: as_json(records if len(files) > 1 else records[0])} if records else {}),
    )
    for outcome, tried in zip(outcomes, runs, strict=True):
        if outputs.shows_report:
            show_outcome(Console(), outcome, tried)
        elif not outcome.passed:
            show_mistakes(Console(stderr=True), outcome)
    if outputs.shows_report:
        written.show(Console())
    return written.exit_code if all(outcome.passed for outcome in outcomes) else EXIT_WRONG_RESULT


def _record(outcome: LaunchOutcome, tried: Sequence[ScheduleOutcome]) -> dict[str, object]:
    record = {**new_record(), **outcome.as_dict()}
    if len(tried) > 1:
        record["schedules"] = [{"seed": t.seed, "passed": t.passed, "error": t.error or None} for t in tried]
    return record


def _dump(outcomes: Sequence[LaunchOutcome], folder: Path, files: Sequence[Path]) -> None:
    """Writes a file for each buffer. If several launch files are named, each has a folder of its name, below the folder
    that holds all of them.

    Types that NumPy lacks are written as float32, which represents all their values.
    """
    above = os.path.commonpath([file.resolve().parent for file in files])
    for outcome in outcomes:
        place = folder
        if len(files) > 1 and outcome.what.file:
            place /= outcome.what.file.resolve().relative_to(above).with_suffix("")
        try:
            place.mkdir(parents=True, exist_ok=True)
            for name, values in outcome.contents.items():
                known = values.dtype.kind in "fiu" and values.dtype.isbuiltin == 1
                with whole_file(place / f"{name}.npy") as file:
                    np.save(file, values if known else values.astype(np.float32))
        except OSError as error:
            raise CannotRun(f"cannot write to {place}: {error.strerror}") from error
