"""The command line: options in, reports and exit codes out."""

from __future__ import annotations

from importlib import import_module

import click

import harness
from harness.cli.clear_errors import ClearErrors

COMMANDS = {
    "bench": "bench:bench",
    "build": "inspection:build_command",
    "check": "check:check_command",
    "clean": "clean:clean",
    "compare": "compare:compare_command",
    "doctor": "doctor:doctor_command",
    "exec": "exec:exec_command",
    "explain": "inspection:explain",
    "list": "list:list_command",
    "predict": "predict:predict_command",
    "ptx": "ptx:ptx",
    "report": "report:report",
    "run": "run:run_command",
    "survey": "survey:survey_command",
    "sweep": "sweep:sweep",
    "timeline": "timeline:timeline_command",
    "tune": "tune:tune",
}
"""Each command with its module in `harness.cli` and its name there."""


class Commands(ClearErrors, click.Group):
    """The program's commands. A command is imported when it is asked for, so that none pays for another's imports."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name].partition(":")
        command: click.Command = getattr(import_module(f"harness.cli.{module}"), name)
        return command


@click.group("harness", cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("-v", "--verbose", is_flag=True, help="Log on standard error what is compiled, run and started, and why.")
@click.version_option(harness.__version__, prog_name="harness", message="%(prog)s %(version)s")
def main(verbose: bool) -> None:
    """Compile, run and validate matmul kernels for Blackwell GPUs.

    Exit codes: 0 ok, 1 check, bench or survey --read has found something, 2 usage, 3 could not run, measure or write,
    4 wrong result, 130 interrupted.
    """
    if verbose:
        import logging

        logging.basicConfig(format="%(relativeCreated)6d ms %(name)s: %(message)s")
        logging.getLogger("harness").setLevel(logging.DEBUG)
