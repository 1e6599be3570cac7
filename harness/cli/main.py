"""The program ``harness``: its commands and what they have in common."""

from __future__ import annotations

import click

import harness
from emugpu.cli.program import Commands, start_logging

COMMANDS = {
    "bench": "harness.cli.bench:bench",
    "build": "harness.cli.inspection:build_command",
    "check": "harness.cli.check:check_command",
    "clean": "harness.cli.clean:clean",
    "compare": "harness.cli.compare:compare_command",
    "confront": "harness.cli.confront:confront_command",
    "debug": "harness.cli.debug:debug_command",
    "doctor": "harness.cli.doctor:doctor_command",
    "exec": "emugpu.cli.exec:exec_command",
    "explain": "harness.cli.inspection:explain",
    "list": "harness.cli.list:list_command",
    "predict": "harness.cli.predict:predict_command",
    "ptx": "emugpu.cli.ptx:ptx",
    "report": "harness.cli.report:report",
    "run": "harness.cli.run:run_command",
    "sweep": "harness.cli.sweep:sweep",
    "timeline": "harness.cli.timeline:timeline_command",
    "tune": "harness.cli.tune:tune",
    "verify": "harness.cli.verify:verify_command",
}
"""Each command with its place."""


@click.group("harness", cls=Commands, places=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("-v", "--verbose", is_flag=True, help="Log on standard error what is compiled, run and started, and why.")
@click.version_option(harness.__version__, prog_name="harness", message="%(prog)s %(version)s")
def main(verbose: bool) -> None:
    """Compile, run and validate matmul kernels for Blackwell GPUs.

    Exit codes: 0 ok, 1 check or bench has found something, 2 usage, 3 could not run, measure or write, 4 wrong result,
    5 incomplete, 130 interrupted.
    """
    if verbose:
        start_logging("harness")
