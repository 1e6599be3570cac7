"""The program ``emugpu``: its commands and their common options."""

from __future__ import annotations

import click

import emugpu
from emugpu.cli.program import CommandGroup, start_logging

COMMANDS = {
    "verify": "emugpu.cli.verify:verify_command",
    "run": "emugpu.cli.run:run_command",
    "exec": "emugpu.cli.exec:exec_command",
    "debug": "emugpu.cli.debug:debug_command",
    "ptx": "emugpu.cli.ptx:ptx",
}
"""The commands, with the place of each."""


@click.group("emugpu", cls=CommandGroup, places=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("-v", "--verbose", is_flag=True, help="Log to standard error what is compiled, run and started, and why.")
@click.version_option(emugpu.__version__, prog_name="emugpu", message="%(prog)s %(version)s")
def main(verbose: bool) -> None:
    """Run PTX and whole CUDA programs on an emulated GPU, and check them."""
    if verbose:
        start_logging("emugpu")
