"""The program ``emugpu``: its commands and what they have in common."""

from __future__ import annotations

import click

import emugpu
from emugpu.cli.program import Commands, start_logging

COMMANDS = {"exec": "emugpu.cli.exec:exec_command"}
"""Each command with its place."""


@click.group("emugpu", cls=Commands, places=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("-v", "--verbose", is_flag=True, help="Log on standard error what is compiled, run and started, and why.")
@click.version_option(emugpu.__version__, prog_name="emugpu", message="%(prog)s %(version)s")
def main(verbose: bool) -> None:
    """Run PTX and whole CUDA programs on an emulated GPU, and check them.

    Exit codes: 0 ok or clean, 1 racy, 2 usage, 3 hung, or could not run or write, 4 wrong result, 5 incomplete, 130
    interrupted.
    """
    if verbose:
        start_logging("emugpu")
