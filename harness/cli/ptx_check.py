"""``harness ptx check``: the synchronisation of anyone's PTX."""

from __future__ import annotations

from pathlib import Path

import click

from harness.cli.check_output import Shown, shown_options, tell
from harness.cli.options import MOST_SCHEDULES, NamedPath, emulator_options, group, launch_timeout_option, seed_option
from harness.cli.progress import progress_bar
from harness.launch.check import CheckOptions, check
from harness.launch.launch_file import read_launch_file
from harness.launch.options import EmulationOptions


@click.command("check")
@click.argument("file", metavar="LAUNCH.toml", type=NamedPath(path_type=Path))
@click.option(
    "--schedules",
    type=click.IntRange(1, MOST_SCHEDULES),
    default=4,
    show_default=True,
    help="Runs: the first in the order of issue, the others in random orders; --jobs of them side by side.",
)
@group("settings", EmulationOptions, seed_option, emulator_options, launch_timeout_option)
@shown_options
def check_command(file: Path, schedules: int, settings: EmulationOptions, shown: Shown) -> int:
    """Check the synchronisation of what LAUNCH.toml launches.

    As harness check does.

    Exit codes: 0 no errors, 1 errors, 2 usage, 3 a run did not end, 4 wrong result.
    """
    shown.check()
    launch_file = read_launch_file(file)
    with progress_bar(f"checking {file.name}", "schedules") as progress:
        found = check([launch_file], CheckOptions(schedules, settings), progress)
    return tell(found, shown)
