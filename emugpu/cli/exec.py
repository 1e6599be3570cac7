"""``harness exec``: a program that needs a GPU, on the emulated one."""

from __future__ import annotations

import os
from pathlib import Path

import click

from emugpu.cli.exec_output import as_json, show_summary
from emugpu.cli.options import (
    NamedPath,
    accumulation_option,
    check_output,
    engine_option,
    group,
    launch_timeout_option,
    profile_option,
    program_seed_option,
    refuse_seed_of_fifo,
    schedule_option,
    uninitialised_option,
    write_output,
)
from emugpu.driver.gpu_model import gpu_model, gpu_names
from emugpu.driver.log import Log
from emugpu.driver.recording import Recorder
from emugpu.driver.server import run_program
from emugpu.driver.state import Gpu
from emugpu.errors import EXIT_CANNOT_RUN
from emugpu.launch.launching import EmulationOptions

emulation_options = group(
    "emulation",
    EmulationOptions,
    accumulation_option,
    schedule_option,
    program_seed_option,
    click.option(
        "--jobs",
        type=click.IntRange(1),
        default=1,
        show_default=True,
        help="Worker processes, for launches whose clusters are independent.",
    ),
    uninitialised_option("report"),
    engine_option,
    launch_timeout_option,
    click.option(
        "--max-steps", type=click.IntRange(1), help="Limit of warp instructions of a launch; a billion by default."
    ),
)


@click.command("exec")
@profile_option
@click.option("--gpu", type=click.Choice(gpu_names()), default="b200", show_default=True, help="GPU to emulate.")
@click.option("--json", "json_path", metavar="PATH|-", help="Write launches, counters and findings there.")
@click.option(
    "--record",
    type=NamedPath(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Keep every launch there, for harness run DIR/launch-N/launch.toml.",
)
@click.option("--check", is_flag=True, help="Check the synchronisation of every launch, as harness check does.")
@emulation_options
@click.option("--quiet", is_flag=True, help="Do not print the summary at the end.")
@click.argument("command", nargs=-1, required=True, metavar="-- PROGRAM [ARGUMENTS...]")
def exec_command(
    gpu: str,
    json_path: str | None,
    record: Path | None,
    check: bool,
    emulation: EmulationOptions,
    quiet: bool,
    command: tuple[str, ...],
) -> int:
    """Run PROGRAM, which uses the CUDA driver, on the emulated GPU.

    The program itself decides: it allocates, launches and checks as on a GPU. What its kernels do wrong is told on
    standard error, and the program gets the error that a GPU would give.

    Exit codes: the program's own; 2 usage, 3 if the emulated GPU could not do what the program asked for.
    """
    check_output(json_path, "--json")
    refuse_seed_of_fifo(emulation.schedule, emulation.uninitialised, "seed")
    log = Log()
    emulated = Gpu(gpu_model(gpu), emulation, log, Recorder(record) if record else None, check)
    code = run_program(command, emulated, os.environ)
    if json_path:
        write_output(as_json(log, gpu, code, emulation.accumulation), json_path)
    if not quiet:
        show_summary(log, gpu)
    return EXIT_CANNOT_RUN if log.failure else code
