"""The option ``--profile`` shows where the emulator spends its time, as tables and as a file for speedscope."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import wraps
from typing import Any

import click
from rich.console import Console

from emugpu.cli.options import check_output, write_output
from emugpu.cli.render import show_line, show_table
from emugpu.emulator.names import short_name
from emugpu.emulator.profile import Profile, profiling
from emugpu.errors import CannotRun, UsageProblem

LINES, TEXT = 20, 60


TABLES_ONLY = "no file"
"""The value of ``--profile`` without a file."""


def profile_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the option to a command and runs the command under the profiler. It must be the outermost decorator."""

    @wraps(command)
    def profiled(profile: str | None, **values: Any) -> Any:
        if profile is None:
            return command(**values)
        return run_profiled(command, profile, values)

    return click.option(
        "--profile",
        metavar="[FILE.json]",
        is_flag=False,
        flag_value=TABLES_ONLY,
        help="Show on standard error where the emulator spends its time; FILE.json is for https://www.speedscope.app. "
        "Put it last if you name no file.",
    )(profiled)


def run_profiled(command: Callable[..., Any], profile: str, values: dict[str, Any]) -> Any:
    """Runs a command with these values of its options, and shows where the time went. ``profile`` is a file or
    TABLES_ONLY.
    """
    _check(profile, values)
    with profiling() as found:
        try:
            code = command(**values)
        except (CannotRun, KeyboardInterrupt):  # a run that hangs or is given up took time, too
            _tell(found, profile)
            raise
    _tell(found, profile)
    return code


def _tell(found: Profile, profile: str) -> None:
    show(Console(stderr=True), found)
    if profile != TABLES_ONLY:
        write_output(json.dumps(found.speedscope()) + "\n", profile)


def _check(profile: str, values: dict[str, Any]) -> None:
    if profile != TABLES_ONLY:
        if not profile.endswith(".json"):
            raise UsageProblem(f"--profile {profile}: the file must end in .json; to name none, put --profile last")
        check_output(profile, "--profile")
    if values["jobs"] > 1:
        raise UsageProblem(
            f"--profile measures one process, but --jobs {values['jobs']} starts several; leave --jobs out"
        )
    if values.get("device") == "gpu":
        raise UsageProblem(f"--profile is for --device emulator, not for {values['device']}; leave one of them out")


def show(console: Console, profile: Profile) -> None:
    """Shows the seconds by unit, and the slowest PTX lines."""
    total = sum(seconds for _, seconds in profile.samples)
    if not total:
        show_line(console, "--profile: this process emulated nothing, or too little to be sampled")
        return
    units = profile.by("kernel", "unit").items()
    rows = [(*_share(seconds, total), unit, short_name(kernel)) for (kernel, unit), seconds in units]
    show_table(console, f"{total:.2f} s of emulation, sampled", ("seconds", "share", "unit", "kernel"), rows)
    found = [(key, s) for key, s in profile.by("site", "unit", "kernel").items() if key[0] is not None]
    lines = [
        (*_share(seconds, total), unit, f"{site.line}: {site.text[:TEXT]}", site.source, short_name(kernel))
        for (site, unit, kernel), seconds in found[:LINES]
    ]
    columns = ("seconds", "share", "unit", "PTX line", "source", "kernel")
    show_table(console, "most seconds (native: from this line to the end of its block)", columns, lines)


def _share(seconds: float, total: float) -> tuple[str, str]:
    return f"{seconds:.2f}", f"{seconds / total:.1%}"
