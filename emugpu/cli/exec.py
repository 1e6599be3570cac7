"""The command ``emugpu exec`` runs a program that needs a GPU on the emulated one."""

from __future__ import annotations

import os
from pathlib import Path

import click

from emugpu.cli.emulation import Emulation, emulation_options
from emugpu.cli.exec_output import as_json, show_summary
from emugpu.cli.outputs import FOLDER, Outputs, output_option
from emugpu.cli.profile import profile_option
from emugpu.cli.target import gpu_option
from emugpu.driver.gpu_model import gpu_model
from emugpu.driver.log import Log
from emugpu.driver.recording import LaunchRecorder
from emugpu.driver.server import run_program
from emugpu.driver.state import SharedGpu
from emugpu.errors import EXIT_CANNOT_RUN


@click.command("exec")
@profile_option
@gpu_option
@click.option("--check", is_flag=True, help="Check the synchronisation of every launch, as emugpu verify does.")
@emulation_options("accumulation", "max-steps", "uninitialised", "engine", several=False, uninitialised="report")
@output_option("json", folder="every launch, for emugpu run DIR/launch-N/launch.toml")
@click.option("--quiet", is_flag=True, help="Do not print the summary at the end.")
@click.argument("command", nargs=-1, required=True, metavar="-- PROGRAM [ARGUMENTS...]")
def exec_command(
    gpu: str, check: bool, emulation: Emulation, outputs: Outputs, quiet: bool, command: tuple[str, ...]
) -> int:
    """Run PROGRAM, which uses the CUDA driver, on the emulated GPU.

    The program allocates, launches and checks as on a GPU. Errors of its kernels are reported on standard error, and
    the program gets the error code that a GPU would give. The exit code is the program's own, or 2 or 3 if the emulated
    GPU could not do what the program asked for.
    """
    emulation.refuse_several_schedules("a program runs once")
    log = Log()
    folder = next((Path(place) for kind, place in outputs.places if kind == FOLDER), None)
    recorder = LaunchRecorder(folder) if folder else None
    code = run_program(command, SharedGpu(gpu_model(gpu), emulation.options, log, recorder, check), os.environ)
    written = outputs.write(json=lambda: as_json(log, gpu, code, emulation.options.accumulation))
    if not quiet:
        show_summary(log, gpu)
    return EXIT_CANNOT_RUN if log.failure else code or written.exit_code
