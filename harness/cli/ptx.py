"""``harness ptx``: anyone's PTX on the emulated GPU."""

from __future__ import annotations

import json
from dataclasses import asdict
from os.path import relpath
from pathlib import Path

import click
from rich.console import Console

from emugpu.cli import ptx_output as output
from emugpu.cli.options import NamedPath, check_output, json_option, launch_timeout_option, write_output
from emugpu.cli.program import try_write
from emugpu.cli.render import progress_bar, show_line
from emugpu.emulator import LaunchError
from emugpu.emulator.names import find_name
from emugpu.errors import EXIT_CANNOT_RUN, EXIT_OK, CannotRun, UsageProblem
from emugpu.launch.corpus import exit_code, look_through
from emugpu.launch.coverage import coverage_page
from emugpu.launch.launching import EmulationOptions
from emugpu.launch.listing import ListedKernel, Listing, list_kernels
from emugpu.launch.spec import read_ptx
from emugpu.launch.template import launch_template
from harness.cli.check import check_command
from harness.cli.predict import predict_command
from harness.cli.run import run_command
from harness.cli.running import for_launch_files

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
        show_line(Console(), f"{target}: fill in what is marked, then run: harness run {target}")


@ptx.command()
@click.argument("folder", metavar="DIR", type=path_type)
@click.option("--jobs", type=click.IntRange(1), default=1, show_default=True, help="Files to process in parallel.")
@launch_timeout_option
@json_option
def corpus(folder: Path, jobs: int, timeout: float | None, json_path: str | None) -> int:
    """List every kernel below DIR, and run what has a launch file."""
    check_output(json_path, "--json")
    with progress_bar(f"looking through {folder}", "files") as progress:
        rows = look_through(folder, EmulationOptions(strict=False, timeout=timeout), jobs, progress)
    written = True
    if json_path:
        text = json.dumps([asdict(row) for row in rows], indent=2) + "\n"
        written &= try_write(lambda: write_output(text, json_path))
    if json_path != "-":
        written &= try_write(lambda: output.show_corpus(Console(), folder, rows))
    return exit_code(rows) or (EXIT_OK if written else EXIT_CANNOT_RUN)


@ptx.command()
@click.option("-o", "--output", "target", metavar="PATH|-", default="-", show_default=True, help="Where to write.")
def coverage(target: str) -> None:
    """Write what is and is not implemented, as Markdown.

    It is found by trying each form, from the emulator's own table.
    """
    check_output(target, "--output")
    write_output(coverage_page(), target)


for command in (
    for_launch_files(
        run_command,
        "Launch what LAUNCH.toml says, and check what it expects.\n\nThe same as harness run LAUNCH.toml.",
        without=("device", "seed", "no_save"),
    ),
    for_launch_files(
        check_command,
        "Check the synchronisation of what LAUNCH.toml launches.\n\nThe same as harness check LAUNCH.toml.",
        without=("seed",),
    ),
    for_launch_files(
        predict_command,
        "Predict the cycles of what LAUNCH.toml launches. The results are checked, too.\n\nThe same as harness predict "
        "LAUNCH.toml. Nothing is measured: a model runs the PTX on emulated multiprocessors with a clock.",
    ),
):
    ptx.add_command(command)


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
