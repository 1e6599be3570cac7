"""``harness check``: is the synchronisation of a kernel sound, or does it only happen to work?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from emugpu.check.findings import RULES
from emugpu.cli import render
from emugpu.cli.findings_output import Shown, shown_options, tell
from emugpu.cli.options import (
    FiniteRange,
    NamedPath,
    emulator_options,
    group,
    ptxas_option,
    schedules_option,
    seed_of_schedules,
)
from emugpu.cli.render import progress_bar
from emugpu.errors import UsageProblem
from emugpu.launch.check import CheckOptions, check
from emugpu.launch.launch_file import read_launch_file
from emugpu.launch.launching import EmulationOptions
from emugpu.launch.ptxas import require_accepted
from emugpu.launch.spec import Launchable, read_ptx
from harness.cli.options import ConfigOptions, config_options, seed_option, shape_option, what_argument
from harness.cli.running import kernels_named, launch_files_named, refuse_what_kernels_have
from harness.compile.artifacts import build_with_notice, make_launchable
from harness.problem import KINDS, Shape
from harness.run.edited import put_in_place
from harness.run.runner import check_memory


def _show_rules(context: click.Context, parameter: click.Parameter, asked: bool) -> None:
    if asked and not context.resilient_parsing:
        rows = [(rule.id, rule.severity, rule.summary) for rule in RULES.values()]
        render.show_table(Console(), "rules", ("id", "severity", "rule"), rows)
        context.exit()


@dataclass(frozen=True)
class How:
    """How to run what is checked. inputs, seed: of A and B."""

    inputs: str
    seed: int
    options: CheckOptions


def _how(schedules: int, inputs: str, seed: int, schedule_seed: int | None, redundant: bool, **emulation: Any) -> How:
    """The seeds of the random schedules follow that of the inputs, unless given."""
    first = seed + 1 if schedule_seed is None else schedule_seed
    return How(inputs, seed, CheckOptions(schedules, EmulationOptions(seed=first, **emulation), redundant))


_how_options = group(
    "how",
    _how,
    schedules_option(4, "4"),
    click.option("--inputs", type=click.Choice(KINDS), default="integer", show_default=True, help="Values of A and B."),
    seed_option,
    seed_of_schedules("--schedule-seed", default=None, shown="1, or one more than the inputs'"),
    emulator_options,
    click.option("--timeout", type=FiniteRange(1), help="Time limit of a run, in seconds."),
    click.option(
        "--waste",
        "redundant",
        is_flag=True,
        help="Find redundant synchronisation: leave out each fence, barrier and wait, one at a time, and note those "
        "without which the runs are as sound. Two more runs for each; use a small shape.",
    ),
)


@click.command("check")
@what_argument
@shape_option
@config_options
@click.option(
    "--ptx",
    metavar="FILE",
    type=NamedPath(path_type=Path),
    help="Check this PTX instead of the compiled kernel, with the same launch plan.",
)
@_how_options
@ptxas_option
@shown_options
@click.option(
    "--rules", is_flag=True, is_eager=True, expose_value=False, callback=_show_rules, help="List the rules, and exit."
)
def check_command(
    kernels: tuple[str, ...],
    shape: Shape,
    config: ConfigOptions,
    ptx: Path | None,
    how: How,
    ptxas: bool,
    shown: Shown,
) -> int:
    """Check the synchronisation of KERNELs, or of a launch file.

    Finds accesses that nothing orders, missing fences, wrong counts, bytes, masks and lifetimes, also where the runs
    happen to give the right result.

    Exit codes: 0 no errors, 1 errors, 2 usage, 3 a run did not end (what was found until then is shown), 4 wrong
    result.
    """
    shown.check()
    files = launch_files_named(kernels)
    if files:
        refuse_what_kernels_have(files[0])
        several = [read_launch_file(file) for file in files]
        for what in several if ptxas else ():
            require_accepted(what)
    else:
        several = launchables(kernels_named(kernels, config.dtype), shape, config, ptx, how.inputs, how.seed, ptxas)
    with progress_bar(f"checking {', '.join(map(str, kernels))}", "schedules") as progress:
        found = check(several, how.options, progress)
    return tell(found, replace(shown, notes=shown.notes or how.options.redundant))


def launchables(
    names: Sequence[str], shape: Shape, config: ConfigOptions, ptx: Path | None, inputs: str, seed: int, ptxas: bool
) -> list[Launchable]:
    """Returns what is launched of kernels of ours. ptx: takes the place of the compiled PTX of one. inputs, seed: of A
    and B. ptxas: whether PTX is an error that ptxas refuses.
    """
    if ptx is not None and len(names) != 1:
        raise UsageProblem(
            f"--ptx {ptx} takes the place of one kernel's PTX, and {len(names)} kernels are named; name one"
        )
    edited = None if ptx is None else read_ptx(ptx)
    configs = [config.configure(name, shape) for name in names]
    for each in configs:
        check_memory(shape, each.dtype)
    artifacts = build_with_notice(configs)
    if ptx is not None and edited is not None:
        artifacts = [put_in_place(ptx, edited, artifacts, shape)[0]]
    for artifact in artifacts if ptxas else ():
        artifact.require_accepted()
    return [make_launchable(artifact, shape, inputs, seed) for artifact in artifacts]
