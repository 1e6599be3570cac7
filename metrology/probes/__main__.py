"""Command line: run the probes, compare a GPU with the emulator, write down the answers."""

from __future__ import annotations

from pathlib import Path

import click

from harness.cli.clear_errors import ClearErrors
from harness.cli.options import FiniteRange, NamedPath, check_folder, given_options
from harness.errors import EXIT_FINDINGS, EXIT_OK, CannotRun, UsageProblem
from metrology.probes import bundle, gpu
from metrology.probes.catalogue import ALL
from metrology.probes.record import GROUPS, record


@click.command(cls=ClearErrors)
@click.argument("names", nargs=-1, metavar="[PROBE]...", type=click.Choice(list(ALL)))
@click.option("--device", type=click.Choice(["emulator", "gpu"]), default="emulator", show_default=True)
@click.option(
    "--group",
    type=click.Choice(list(GROUPS)),
    default="all",
    show_default=True,
    help="Those that Hopper can answer, or what only Blackwell can.",
)
@click.option("--json", "path", type=NamedPath(dir_okay=False, path_type=Path), help="Write the answers to this file.")
@click.option(
    "--timeout",
    type=FiniteRange(0, min_open=True),
    default=gpu.TIME_LIMIT,
    show_default=True,
    help="Seconds a case may take on a GPU.",
)
@click.option(
    "--bundle",
    "folder",
    type=NamedPath(file_okay=False, path_type=Path),
    help="Only write the probes to this new folder.",
)
@click.option(
    "--results",
    type=NamedPath(path_type=Path, exists=True, file_okay=False),
    help="Read what bare.py of a bundle wrote, instead of running anything.",
)
def main(
    names: tuple[str, ...],
    device: str,
    group: str,
    path: Path | None,
    timeout: float,
    folder: Path | None,
    results: Path | None,
) -> int:
    """Run the probes (all, or the named ones). On a GPU each that it can be asked is compared with the emulator.

    On a machine that has a GPU but not this package: write a bundle here, run `python bare.py . OUT` in it there, and
    read OUT here with --results.

    Exit codes: 0 all as the emulator, 1 some failed or differ, 2 usage, 3 could not run or write.
    """
    _refuse_what_would_be_ignored(names, folder, results)
    probes = [ALL[name] for name in names or GROUPS[group]]
    if folder is not None:
        check_folder(folder, "--bundle")
        if folder.exists() and any(folder.iterdir()):
            raise UsageProblem(f"--bundle {folder}: is not empty; name a new folder")
        bundle.write(folder, probes)
        click.echo(f"{len(probes)} probes in {folder}; run: python bare.py . OUT")
        return EXIT_OK
    if path is not None:
        check_folder(path.parent, "--json")
    try:
        clean = record(probes, device, path, timeout, results)
    except gpu.GpuError as error:
        raise CannotRun(str(error)) from None
    return EXIT_OK if clean else EXIT_FINDINGS


def _refuse_what_would_be_ignored(names: tuple[str, ...], folder: Path | None, results: Path | None) -> None:
    beside = {
        "the probes that are named": ["group"] if names else [],
        "--bundle, which runs nothing": ["device", "path", "timeout", "results"] if folder else [],
        "--results, which runs nothing": ["device", "timeout"] if results else [],
    }
    for what, options in beside.items():
        ignored = given_options(*options)
        if ignored:
            raise UsageProblem(f"{', '.join(ignored)} says nothing beside {what}; leave it out")


if __name__ == "__main__":
    main()
