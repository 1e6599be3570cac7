"""The command ``emugpu ptx`` lists the contents of a PTX file, and writes a launch file for it."""

from __future__ import annotations

from os.path import relpath
from pathlib import Path

import click
from rich.console import Console

from emugpu.cli.options import NamedPath, as_json
from emugpu.cli.outputs import Outputs, output_option
from emugpu.cli.ptx_output import show_coverage, show_listing
from emugpu.cli.render import show_line
from emugpu.emulator import LaunchError
from emugpu.emulator.names import find_name
from emugpu.errors import CannotRun, UsageProblem
from emugpu.launch.coverage import ISA_COLUMNS, isa_rows
from emugpu.launch.launching import require_whole
from emugpu.launch.listing import ListedKernel, Listing, list_kernels
from emugpu.launch.spec import read_ptx
from emugpu.launch.template import launch_template

file_argument = click.argument("file", type=NamedPath(path_type=Path), metavar="FILE.ptx")


@click.group()
def ptx() -> None:
    """List the kernels of PTX files, and write launch files."""


@ptx.command("list")
@file_argument
@output_option("json")
def list_command(file: Path, outputs: Outputs) -> int:
    """List the kernels of a file, and what the emulator lacks.

    Shows their parameters, shared memory, and the lines that are not implemented.
    """
    listing = list_kernels(read_ptx(file))
    written = outputs.write(json=lambda: as_json(listing.as_dict()))
    if outputs.shows_report:
        show_listing(Console(), file, listing)
        written.show(Console())
    return written.exit_code


@ptx.command()
@output_option("json")
def coverage(outputs: Outputs) -> int:
    """List the instructions of the PTX ISA, and whether they run.

    Shows for each the ISA version and the targets that have it.
    """
    rows = isa_rows()
    written = outputs.write(json=lambda: as_json([dict(zip(ISA_COLUMNS, row, strict=True)) for row in rows]))
    if outputs.shows_report:
        show_coverage(Console(), rows)
        written.show(Console())
    return written.exit_code


@ptx.command()
@file_argument
@output_option("toml")
@click.option(
    "--kernel",
    metavar="NAME",
    help="Kernel to launch, or a part of its name.  [default: the first that can be launched]",
)
def init(file: Path, kernel: str | None, outputs: Outputs) -> int:
    """Write a launch file to fill in: LAUNCH.toml, or standard output."""
    target = outputs.places[-1][1] if outputs.places else "-"
    if len(outputs.places) > 1:
        raise UsageProblem(f"-o {target}: the command writes one launch file; give -o once")
    if target != "-" and Path(target).exists():
        raise UsageProblem(f"-o {target} exists, and may have been filled in; name another file")
    ptx_text = read_ptx(file)
    listing = list_kernels(ptx_text)
    chosen = _find_kernel(file, listing, kernel)
    require_whole(file, ptx_text, {chosen.name})
    if chosen.problem:
        raise CannotRun(f"{file}: kernel {chosen.readable} cannot be launched: {chosen.problem}")
    folder = Path.cwd() if target == "-" else Path(target).parent
    text = launch_template(Path(relpath(file, folder)), listing, chosen)
    written = Outputs((("toml", target),)).write(toml=lambda: text)
    if target != "-" and written.complete:
        show_line(Console(), f"{target}: fill in the marked values, then run: emugpu run {target}")
    return written.exit_code


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
