"""Building blocks of options. The options of emulation (`emugpu.cli.emulation`) and of output (`emugpu.cli.outputs`)
are made of them.

Options come in groups. A command decorated with a group gets one argument, a dataclass with the values of the options:

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
from typing import Any

import click
from click.core import ParameterSource

from emugpu.errors import UsageProblem
from emugpu.files import write_text

Command = Callable[..., Any]


class Parsed(click.ParamType[Any]):
    """An option whose text a function of this project converts."""

    def __init__(self, name: str, parse: Callable[[str], object]) -> None:
        self.name = name
        self.parse = parse

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> object:
        return self.parse(value) if isinstance(value, str) else value


class FiniteRange(click.FloatRange):
    """A number within bounds. NaN and infinities are refused, although they pass Click's comparisons."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{number} is not a finite number.", param, ctx)
        return number


class NamedPath(click.Path):
    """A file or a folder. An empty name is refused, because it would mean the current folder."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            self.fail("it is empty; give a name.", param, ctx)
        return super().convert(value, param, ctx)


def offering(find: Callable[[], Iterable[str]]) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """Returns a shell completion that offers the words that ``find`` returns."""
    return lambda context, parameter, typed: [word for word in find() if word.startswith(typed)]


def _names(options: Sequence[Callable[[Command], Command]]) -> list[str]:
    """Returns the names of the options as arguments of the command."""

    def command() -> None: ...

    for option in options:
        option(command)
    return [parameter.name for parameter in getattr(command, "__click_params__", [])]


def together(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Returns one decorator for several options, which the help shows in this order."""

    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def group(name: str, into: Callable[..., Any], *options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Returns one decorator for several options, which the help shows in this order.

    The command gets them as one argument ``name``: the result of ``into``, a dataclass with a field for each option.
    Its other fields keep their defaults.
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
    """Returns those of the command's parameters that its caller has set, as ``--name``."""
    context = click.get_current_context()
    return [
        parameter.opts[-1] if isinstance(parameter, click.Option) else parameter.make_metavar(context)
        for parameter in context.command.params
        if parameter.name in parameters
        and context.get_parameter_source(str(parameter.name)) not in (None, ParameterSource.DEFAULT)
    ]


def refuse_given(why: str, *parameters: str) -> None:
    """Refuses given options that do not apply, so that none is ignored silently."""
    ignored = given_options(*parameters)
    if ignored:
        raise UsageProblem(f"{', '.join(ignored)}: {why}; leave {'it' if len(ignored) == 1 else 'them'} out")


def check_output(path: str | None, option: str, way_out: str = "name one, or use - for the screen") -> None:
    """Refuses a file that cannot be written, before the work is done."""
    if path is None or path == "-":
        return
    if path.startswith("-"):
        raise UsageProblem(f"{option} needs the name of a file before {path!r}; {way_out}")
    place = Path(path)
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
    """Refuses a folder that cannot be created or written, before the work is done."""
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
    """Writes to the screen (-) or to a file. The file is written completely or not at all."""
    if path == "-":
        click.echo(text, nl=False)
    else:
        write_text(path, text)


def as_json(data: object) -> str:
    """Returns data as readable JSON with a final newline."""
    return json.dumps(data, indent=2, allow_nan=False) + "\n"
