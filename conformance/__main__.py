"""The command line: runs the probes, compares a GPU with the emulator, and writes the results."""

from __future__ import annotations

from pathlib import Path

import click

from conformance import gpu
from conformance.catalogue import ALL
from conformance.record import GROUPS, record
from emugpu.cli.options import FiniteRange, NamedPath, check_folder, given_options
from emugpu.cli.program import ClearErrors
from emugpu.errors import EXIT_FINDINGS, EXIT_OK, UsageProblem


@click.command("conformance", cls=ClearErrors)
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
def main(
    names: tuple[str, ...],
    device: str,
    group: str,
    path: Path | None,
    timeout: float,
) -> int:
    """Run the probes (all, or the named ones). On a GPU each probe that it supports is compared with the emulator.

    Exit codes: 0 all as the emulator, 1 some failed or differ, 2 usage, 3 could not run or write.
    """
    if names and given_options("group"):
        raise UsageProblem("--group says nothing beside the probes that are named; leave it out")
    probes = [ALL[name] for name in names or GROUPS[group]]
    if path is not None:
        check_folder(path.parent, "--json")
    return EXIT_OK if record(probes, device, path, timeout) else EXIT_FINDINGS


if __name__ == "__main__":
    main()
