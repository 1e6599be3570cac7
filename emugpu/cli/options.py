"""How options are made and read. The words that all commands share are made of these: how something is emulated
(`emugpu.cli.emulation`), and where its results are written (`emugpu.cli.outputs`).

Options come in groups. A command decorated with a group takes one argument, a dataclass with what they were set to:

    @click.command()
    @emulation_options("accumulation", "max-steps")
    @output_option("json", "sarif")
    @profile_option
    def check(emulation: Emulation, outputs: Outputs) -> int: ...
"""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, get_args

import click
from click.core import ParameterSource

from emugpu.emulator.memory.unwritten import Uninitialised
from emugpu.emulator.native.library import Engine
from emugpu.emulator.rules import WARNINGS
from emugpu.errors import UsageProblem
from emugpu.files import write_text
from emugpu.launch.launching import LARGEST_SEED, Accumulation, Schedule

MOST_SCHEDULES = 10_000

Command = Callable[..., Any]


class Parsed(click.ParamType[Any]):
    """An option whose text is read by a function of this project."""

    def __init__(self, name: str, parse: Callable[[str], object]) -> None:
        self.name = name
        self.parse = parse

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> object:
        return self.parse(value) if isinstance(value, str) else value


class FiniteRange(click.FloatRange):
    """A number within bounds. NaN and infinities pass every comparison that click makes, and are none."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{number} is not a finite number.", param, ctx)
        return number


class NamedPath(click.Path):
    """A file or a folder. An empty name would be the current folder, which nobody has asked for."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            self.fail("it is empty; give a name.", param, ctx)
        return super().convert(value, param, ctx)


def offering(find: Callable[[], Iterable[str]]) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """Shell completion of a word that is one of these."""
    return lambda context, parameter, typed: [word for word in find() if word.startswith(typed)]


def _names(options: Sequence[Callable[[Command], Command]]) -> list[str]:
    """What the options are called as arguments of the command."""

    def command() -> None: ...

    for option in options:
        option(command)
    return [parameter.name for parameter in getattr(command, "__click_params__", [])]


def together(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Returns one decorator for several options, shown in this order."""

    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def group(name: str, into: Callable[..., Any], *options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Returns one decorator for several options, shown in this order. The command gets them as one argument of this
    name, what ``into`` makes of their values: a dataclass that has a field for each of them; its other fields keep
    their defaults.
    """

    names = _names(options)

    def decorate(command: Command) -> Command:
        @wraps(command)
        def gathering(**values: Any) -> Any:
            mine = into(**{name: values.pop(name) for name in names})
            return command(**values, **{name: mine})

        return together(*options)(gathering)

    return decorate


def given_options(*parameters: str) -> list[str]:
    """Returns those of the command's parameters that its caller has set, as ``--name``: what they say must not be
    ignored.
    """
    context = click.get_current_context()
    return [
        parameter.opts[-1] if isinstance(parameter, click.Option) else parameter.make_metavar(context)
        for parameter in context.command.params
        if parameter.name in parameters
        and context.get_parameter_source(str(parameter.name)) not in (None, ParameterSource.DEFAULT)
    ]


def refuse_given(why: str, *parameters: str) -> None:
    """Options that mean nothing here must not be ignored."""
    ignored = given_options(*parameters)
    if ignored:
        raise UsageProblem(f"{', '.join(ignored)}: {why}; leave {'it' if len(ignored) == 1 else 'them'} out")


def check_output(path: str | None, option: str, way_out: str = "name one, or use - for the screen") -> None:
    """Refuses a file that cannot be written; to be asked before the work is done."""
    if path in (None, "-"):
        return
    place = Path(str(path))
    if not path or place.is_dir() or not place.parent.is_dir():
        raise UsageProblem(f"{option} {path!r} is not a file in an existing folder; {way_out}")
    if not os.access(place if place.exists() else place.parent, os.W_OK):
        raise UsageProblem(f"{option} {path!r} cannot be written (permission denied); name another file")
    try:
        if not place.exists():
            tempfile.TemporaryFile(dir=place.parent).close()
    except OSError as error:
        raise UsageProblem(f"{option} {path!r} cannot be written ({error.strerror}); name another file") from error


def check_folder(path: Path | None, option: str) -> None:
    """Refuses a folder that cannot be made or written to; to be asked before the work is done."""
    if path is None:
        return
    there = next(place for place in (path, *path.absolute().parents) if place.exists())
    if not there.is_dir():
        raise UsageProblem(f"{option} {path}: {there} is not a folder; name another folder")
    try:
        tempfile.TemporaryFile(dir=there).close()
    except OSError as error:
        reason = str(error.strerror).lower()
        raise UsageProblem(f"{option} {path}: {there} cannot be written ({reason}); name another folder") from error


def write_output(text: str, path: str) -> None:
    """To the screen (-), or to a file, which is then whole or not there."""
    if path == "-":
        click.echo(text, nl=False)
    else:
        write_text(path, text)


def as_json(data: object) -> str:
    """Returns data as people can read it, with the end of its last line."""
    return json.dumps(data, indent=2, allow_nan=False) + "\n"


def schedules_option(default: int | None, shown: str) -> Callable[[Command], Command]:
    return click.option(
        "--schedules",
        type=click.IntRange(1, MOST_SCHEDULES),
        default=default,
        help="Number of schedules that must each give the right result: fifo, and random ones with seeds from "
        f"--schedule-seed on.  [default: {shown}]",
    )


def seed_of_schedules(*names: str, default: int | None = 0, shown: str = "") -> Callable[[Command], Command]:
    return click.option(
        *names,
        type=click.IntRange(0, LARGEST_SEED - MOST_SCHEDULES),
        default=default,
        help=f"Seed of the random schedule; of several, that of the first.  [default: {shown or default}]",
    )


schedule_seed_option = seed_of_schedules("--schedule-seed")
"""Where ``--seed`` is for the inputs."""
program_seed_option = seed_of_schedules("--schedule-seed", "--seed", "seed")
"""Of programs, which have inputs of their own."""


def strict_option(default: bool, shown: str) -> Callable[[Command], Command]:
    return click.option(
        "--strict/--no-strict",
        default=default,
        help=f"Treat warnings as errors: violations of rules that hardware is known to tolerate.  [default: {shown}]",
    )


def refuse_seed_of_fifo(schedule: str, uninitialised: str, parameter: str, or_else: str = "") -> None:
    """Refuses a seed that is given and would not be used."""
    given = given_options(parameter)
    if "random" not in (schedule, uninitialised) and given:
        raise UsageProblem(f"{given[0]} is for random schedules, and {schedule} is run; add --schedule random{or_else}")


schedule_option = click.option(
    "--schedule",
    type=click.Choice(get_args(Schedule)),
    default="fifo",
    show_default=True,
    help="Order in which the emulator completes things. declining: fifo, and every other request to cluster launch "
    "control is answered 'none left'.",
)


launch_timeout_option = click.option(
    "--timeout", type=FiniteRange(0, min_open=True), help="Seconds a launch may take.  [default: no limit]"
)


TABLES_ONLY = "no file"
"""What ``--profile`` has where it names none."""


def profile_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """The option, and what it does around a command: that comes last, and is the outermost of its decorators."""

    @wraps(command)
    def profiled(profile: str | None, **values: Any) -> Any:
        if profile is None:
            return command(**values)
        from emugpu.cli.profile import run_profiled  # what few ask for is loaded when they do

        return run_profiled(command, profile, values)

    return click.option(
        "--profile",
        metavar="[FILE.json]",
        is_flag=False,
        flag_value=TABLES_ONLY,
        help="Say on standard error where the emulator's time goes; FILE.json is for https://www.speedscope.app. Put "
        "it last if you name no file.",
    )(profiled)


accumulation_option = click.option(
    "--accumulation",
    type=click.Choice(get_args(Accumulation)),
    default="f32",
    show_default=True,
    help="Arithmetic of the emulated tensor core.",
)


def uninitialised_option(default: Uninitialised) -> Callable[[Command], Command]:
    return click.option(
        "--uninitialised",
        type=click.Choice(get_args(Uninitialised)),
        default=default,
        show_default=True,
        help="What kernels get that read memory before it is written: what is an error where it decides something "
        "(poison), an error at once (fault), or a warning and bytes of 0xFF (report), of zero, or drawn from the "
        "schedule's seed (random).",
    )


engine_option = click.option(
    "--engine",
    type=click.Choice(get_args(Engine)),
    default="native",
    show_default=True,
    help="What runs plain code of the emulated GPU: the native engine, which Mojo compiles once, or Python. The result "
    "is the same.",
)

resident_clusters_option = click.option(
    "--resident-clusters",
    type=click.IntRange(1),
    help="Clusters resident on the emulated GPU at once.  [default: as many as fit]",
)

# How an emulated run goes.
emulator_options = together(
    accumulation_option,
    click.option(
        "--jobs",
        type=click.IntRange(1),
        default=1,
        show_default=True,
        help="Worker processes.",
    ),
    engine_option,
    resident_clusters_option,
    click.option(
        "--max-steps",
        type=click.IntRange(1),
        help="Limit of warp instructions of an emulated run; a billion by default.",
    ),
    uninitialised_option("poison"),
)
allow_option = click.option(
    "--allow",
    multiple=True,
    type=click.Choice(WARNINGS),
    metavar="RULE",
    help=f"Allow violations of this rule: {', '.join(WARNINGS)}; may be repeated.",
)
ptxas_option = click.option(
    "--ptxas/--no-ptxas",
    default=True,
    help="Treat PTX that ptxas refuses as an error, where there is a ptxas.  [default: ptxas]",
)
json_option = click.option(
    "--json", "json_path", metavar="PATH|-", help="Write JSON there; - prints it instead of the report."
)
