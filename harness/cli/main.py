"""The program ``harness``: its commands and their common options."""

from __future__ import annotations

from typing import Any

import click

import harness
from emugpu.cli.program import CommandGroup, start_logging

COMMANDS = {
    "run": "harness.cli.run:run_command",
    "verify": "harness.cli.verify:verify_command",
    "compare": "harness.cli.compare:compare_command",
    "debug": "harness.cli.debug:debug_command",
    "bench": "harness.cli.bench:bench",
    "sweep": "harness.cli.sweep:sweep",
    "tune": "harness.cli.tune:tune",
    "predict": "harness.cli.predict:predict_command",
    "timeline": "harness.cli.timeline:timeline_command",
    "confront": "harness.cli.confront:confront_command",
    "report": "harness.cli.report:report",
    "explain": "harness.cli.inspection:explain",
    "build": "harness.cli.inspection:build_command",
    "list": "harness.cli.list:list_command",
    "doctor": "harness.cli.doctor:doctor_command",
    "clean": "harness.cli.clean:clean",
}
"""The commands, with the place of each."""


class Harness(CommandGroup):
    """The program. It accepts old spellings of its command line for one release."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        if not extra.get("resilient_parsing"):  # during shell completion
            from harness.cli.old_spellings import respell

            program, args = respell(args)
            if program == "emugpu":
                from emugpu.cli.main import main as emugpu_main

                emugpu_main.main(args, prog_name="emugpu")
        return super().make_context(info_name, args, parent, **extra)


@click.group("harness", cls=Harness, places=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("-v", "--verbose", is_flag=True, help="Log to standard error what is compiled, run and started, and why.")
@click.version_option(harness.__version__, prog_name="harness", message="%(prog)s %(version)s")
def main(verbose: bool) -> None:
    """Compile, run, verify and time matmul kernels for Blackwell and Hopper GPUs, also without a GPU.

    For anyone's PTX and for whole CUDA programs: emugpu --help.
    """
    if verbose:
        start_logging("harness")
