"""The command ``harness debug`` goes forward and back through a run of one of our kernels."""

from __future__ import annotations

from pathlib import Path

import click

from emugpu.cli.debug import debugging, recording_options
from emugpu.cli.emulation import Emulation
from emugpu.cli.options import offering
from emugpu.debug.debugger import Debugger
from emugpu.debug.recording import record
from emugpu.errors import UsageProblem
from harness.cli.kernels import compiled, launchable
from harness.cli.options import ConfigOptions, Problem, config_options, problem_options, ptx_option
from harness.cli.running import kernels_named
from harness.compile.catalog import KERNELS


@click.command("debug", add_help_option=False)
@click.argument("kernel", required=False, metavar="KERNEL|FILE.mojo", shell_complete=offering(lambda: KERNELS))
@problem_options("groups", "masked", "inputs", "seed")
@config_options
@ptx_option
@recording_options
def _load(
    kernel: str | None, problem: Problem, config: ConfigOptions, ptx_file: Path | None, emulation: Emulation
) -> Debugger:
    """Debug a run on the emulated GPU, forward and back.

    The run is recorded first; then every command is about a place in it. `why C[3,517]` shows what computed an element
    and the first step at which it is wrong, `why-waits` shows which arrival is missing, `back wrong` goes to the step
    where it went wrong. `help` lists the commands. emugpu debug does the same with anyone's PTX.
    """
    if kernel is None:
        raise UsageProblem("name what to debug: KERNEL or FILE.mojo; or --adapter for an editor")
    emulation.refuse_several_schedules("one run is recorded")
    [artifact] = compiled(kernels_named([kernel], config.dtype), problem, config, ptx_file)
    return Debugger(record(launchable(artifact, problem, "integer"), emulation.options))


debug_command = debugging(_load)
