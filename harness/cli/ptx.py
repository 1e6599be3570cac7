"""``harness ptx``: anyone's PTX on the emulated GPU."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from os.path import relpath
from pathlib import Path

import click
import numpy as np
from rich.console import Console

from harness.cli import ptx_output as output
from harness.cli.clear_errors import written_clearly
from harness.cli.options import (
    MOST_SCHEDULES,
    NamedPath,
    allow_option,
    check_folder,
    check_output,
    emulator_options,
    group,
    json_option,
    launch_timeout_option,
    schedule_option,
    seed_option,
    write_output,
)
from harness.cli.progress import progress_bar
from harness.cli.ptx_check import check_command
from harness.cli.ptx_predict import predict_command
from harness.cli.render import show_line
from harness.emulator import LaunchError
from harness.emulator.names import find_name
from harness.errors import EXIT_CANNOT_RUN, EXIT_OK, EXIT_WRONG_RESULT, CannotRun, UsageProblem
from harness.launch.corpus import exit_code, look_through
from harness.launch.coverage import coverage_page
from harness.launch.launch_file import read_launch_file
from harness.launch.launching import Outcome
from harness.launch.listing import ListedKernel, Listing, list_kernels
from harness.launch.options import EmulationOptions
from harness.launch.schedules import Tried, run_schedules
from harness.launch.spec import read_ptx
from harness.launch.template import launch_template
from harness.run import records

path_type = NamedPath(path_type=Path)


@click.group()
def ptx() -> None:
    """List, launch and check the kernels of any PTX file.

    They run on the emulated GPU, and what they compute is compared with what you say it should be.

    Exit codes: 0 ok, 1 check has found errors, 2 usage, 3 could not run or write, 4 wrong result, 130 interrupted.
    """


@ptx.command("list")
@click.argument("file", type=path_type)
@json_option
def list_command(file: Path, json_path: str | None) -> None:
    """List the kernels of FILE, and what is not implemented.

    With their parameters, shared memory, and the lines of what the emulator lacks.
    """
    check_output(json_path, "--json")
    listing = list_kernels(read_ptx(file))
    if json_path != "-":
        output.show_listing(Console(), file, listing)
    if json_path:
        write_output(json.dumps(listing.as_dict(), indent=2) + "\n", json_path)


@ptx.command()
@click.argument("file", type=path_type)
@click.option(
    "-o", "--output", "target", metavar="LAUNCH.toml|-", default="-", show_default=True, help="Where to write."
)
@click.option(
    "--kernel",
    metavar="NAME",
    help="The kernel to launch, or a part of its name.  [default: the first that can be launched]",
)
def init(file: Path, target: str, kernel: str | None) -> None:
    """Write a launch file for FILE to fill in."""
    check_output(target, "--output")
    if target != "-" and Path(target).exists():
        raise UsageProblem(f"--output {target} is there already, and may have been filled in; name another file")
    listing = list_kernels(read_ptx(file))
    chosen = _find_kernel(file, listing, kernel)
    if chosen.problem:
        raise CannotRun(f"{file}: kernel {chosen.readable} cannot be launched: {chosen.problem}")
    folder = Path.cwd() if target == "-" else Path(target).parent
    text = launch_template(Path(relpath(file, folder)), listing, chosen)
    write_output(text, target)
    if target != "-":
        show_line(Console(), f"{target}: fill in what is marked, then run: harness ptx run {target}")


@ptx.command()
@click.argument("file", metavar="LAUNCH.toml", type=path_type)
@click.option(
    "--schedules",
    type=click.IntRange(1, MOST_SCHEDULES),
    default=1,
    show_default=True,
    help="Schedules that the result must be right under: fifo, and random ones with seeds from --seed on; --jobs of "
    "them side by side.",
)
@group(
    "settings",
    EmulationOptions,
    seed_option,
    schedule_option,
    emulator_options,
    launch_timeout_option,
    click.option(
        "--strict/--no-strict",
        default=False,
        show_default=True,
        help="Whether breaches of rules that hardware is known to tolerate are errors.",
    ),
    allow_option,
)
@click.option("--dump", metavar="DIR", type=path_type, help="Write what buffers hold at the end there, as .npy files.")
@json_option
def run(file: Path, schedules: int, settings: EmulationOptions, dump: Path | None, json_path: str | None) -> int:
    """Launch what LAUNCH.toml says, and check what it expects."""
    check_output(json_path, "--json")
    check_folder(dump, "--dump")
    if schedules > 1 and settings.schedule == "random":
        raise UsageProblem(f"--schedules {schedules} runs fifo and {schedules - 1} random; leave --schedule random out")
    launch_file = read_launch_file(file)
    with progress_bar(f"emulating {file.name}", "clusters") as progress:
        tried = list(run_schedules(launch_file, settings, schedules, progress, None if dump else ()))
    outcome = _first_failure(tried)
    written = dump is None or written_clearly(partial(_dump, outcome, dump))
    place = json_path
    if json_path and not written_clearly(lambda: _write_record(outcome, tried, json_path)):
        written, place = False, None
    written &= written_clearly(lambda: _show(outcome, tried, json_path == "-", place))
    if not outcome.passed:
        return EXIT_WRONG_RESULT
    return EXIT_OK if written else EXIT_CANNOT_RUN


@ptx.command()
@click.argument("folder", metavar="DIR", type=path_type)
@click.option("--jobs", type=click.IntRange(1), default=1, show_default=True, help="Files looked through side by side.")
@launch_timeout_option
@json_option
def corpus(folder: Path, jobs: int, timeout: float | None, json_path: str | None) -> int:
    """List every kernel below DIR, and run what has a launch file."""
    check_output(json_path, "--json")
    with progress_bar(f"looking through {folder}", "files") as progress:
        rows = look_through(folder, EmulationOptions(strict=False, timeout=timeout), jobs, progress)
    written = True
    if json_path:
        text = json.dumps([row.as_dict() for row in rows], indent=2) + "\n"
        written &= written_clearly(lambda: write_output(text, json_path))
    if json_path != "-":
        written &= written_clearly(lambda: output.show_corpus(Console(), folder, rows))
    return exit_code(rows) or (EXIT_OK if written else EXIT_CANNOT_RUN)


@ptx.command()
@click.option("-o", "--output", "target", metavar="PATH|-", default="-", show_default=True, help="Where to write.")
def coverage(target: str) -> None:
    """Write what is and is not implemented, as Markdown.

    It is found by trying each form, from the emulator's own table.
    """
    check_output(target, "--output")
    write_output(coverage_page(), target)


ptx.add_command(check_command)
ptx.add_command(predict_command)


def _find_kernel(file: Path, listing: Listing, wanted: str | None) -> ListedKernel:
    if not listing.kernels:
        raise UsageProblem(f"{file} has no kernel (.entry)")
    if wanted is None:
        return next((kernel for kernel in listing.kernels if not kernel.problem), listing.kernels[0])
    try:
        found = find_name(wanted, [kernel.name for kernel in listing.kernels], "kernel")
    except LaunchError as error:
        raise UsageProblem(f"--kernel: {error}") from None
    return next(kernel for kernel in listing.kernels if kernel.name == found)


def _first_failure(tried: Sequence[Tried]) -> Outcome:
    """The first outcome that is wrong, else the first. A schedule without a result is an error, if it comes first."""
    for one in tried:
        if one.outcome is None and len(tried) == 1:
            raise CannotRun(one.error)
        if one.outcome is None:
            alone = "fifo" if one.seed is None else f"random --seed {one.seed}"
            raise CannotRun(f"{one.error}\nto see it alone: --schedule {alone}")
        if not one.passed:
            return one.outcome
    assert tried[0].outcome
    return tried[0].outcome


def _show(outcome: Outcome, tried: Sequence[Tried], as_json: bool, place: str | None) -> None:
    if not as_json:
        output.show_outcome(Console(), outcome, tried)
        if place:
            show_line(Console(), f"record written to {place}")
    elif not outcome.passed:
        output.show_mistakes(Console(stderr=True), outcome)


def _write_record(outcome: Outcome, tried: Sequence[Tried], json_path: str) -> None:
    record = {**records.new_record(), **outcome.as_dict()}
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
