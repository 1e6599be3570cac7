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
from typing import Any

import click
from click.core import ParameterSource

from emugpu.errors import UsageProblem
from emugpu.files import write_text

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
