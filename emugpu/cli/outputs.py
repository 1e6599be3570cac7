"""The option ``-o FILE`` writes results besides the report on the screen. The ending of the file chooses the format.

A command names the endings that it can write, and gets an `Outputs`, whose files were already checked to be writable:

    @click.command()
    @output_option("json", "sarif")
    def check(outputs: Outputs) -> int:
        ...
        written = outputs.write(json=lambda: as_json(data), sarif=lambda: as_json(findings))
        if outputs.shows_report:
            show(console)
            written.show(console)
        return code or written.exit_code
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import click
from rich.console import Console

from emugpu.cli.options import Command, Parsed, check_folder, check_output, group, write_output
from emugpu.cli.program import try_write
from emugpu.cli.render import show_line
from emugpu.errors import EXIT_CANNOT_RUN, EXIT_OK, UsageProblem

FOLDER = "folder"
"""The kind of output that ``DIR/`` gets."""
_HOLDS = {"xml": "JUnit", "md": "Markdown", "toml": "a launch file"}
"""Names of formats for the help, if the ending does not name them."""


@dataclass(frozen=True)
class WrittenOutputs:
    """The places written. ``complete`` says whether everything requested was written."""

    places: tuple[str, ...]
    complete: bool

    @property
    def exit_code(self) -> int:
        return EXIT_OK if self.complete else EXIT_CANNOT_RUN

    def show(self, console: Console) -> None:
        for place in self.places:
            show_line(console, f"written to {place}")


@dataclass(frozen=True)
class Outputs:
    """The requested outputs: pairs of an ending and a place. The place ``-`` is standard output."""

    places: tuple[tuple[str, str], ...] = ()

    @property
    def shows_report(self) -> bool:
        """Returns whether the report goes to the screen."""
        return all(place != "-" for _, place in self.places)

    def asks_for(self, kind: str) -> bool:
        return any(wanted == kind for wanted, _ in self.places)

    def write(self, folder: Callable[[Path], None] | None = None, **texts: Callable[[], str]) -> WrittenOutputs:
        """Writes each place, and reports on standard error what could not be written.

        ``texts`` returns the text of each ending; an ending that a failed run has no text for is left out. ``folder``
        fills ``DIR/``.
        """
        done = []
        for kind, place in self.places:
            if kind == FOLDER and folder is not None:
                write = partial(folder, Path(place))
            elif kind in texts:
                write = partial(_write, texts[kind], place)
            else:
                continue
            done.append((place, try_write(write)))
        places = tuple(place for place, ok in done if ok and place != "-")
        return WrittenOutputs(places, all(ok for _, ok in done))


def _write(text: Callable[[], str], place: str) -> None:
    write_output(text(), place)


def parse_output(text: str, kinds: tuple[str, ...]) -> tuple[str, str]:
    """Reads a place: its kind and its path. Raises UsageProblem if it is none of ``kinds`` or cannot be written."""
    if text == "-":
        return kinds[0], "-"
    if FOLDER in kinds and text.endswith("/"):
        check_folder(Path(text), "-o")
        return FOLDER, text
    kind = Path(text).suffix.removeprefix(".")
    if kind == FOLDER or kind not in kinds:
        raise UsageProblem(f"-o {text}: this command writes {_list(kinds)}; use such an ending")
    check_output(text, "-o")
    return kind, text


def _list(kinds: tuple[str, ...]) -> str:
    endings = ["a folder, DIR/" if kind == FOLDER else f".{kind}" for kind in kinds]
    return " or ".join([", ".join(endings[:-1]), endings[-1]] if len(endings) > 1 else endings)


def output_option(*kinds: str, folder: str = "") -> Callable[[Command], Command]:
    """Returns the decorator that gives a command `Outputs`.

    ``kinds`` are the endings that it can write; ``-`` stands for the first. ``folder`` describes what ``DIR/`` gets, if
    the command can write one.
    """
    every = (*kinds, FOLDER) if folder else kinds
    holds = [f".{kind}{f' ({_HOLDS[kind]})' if kind in _HOLDS else ''}" for kind in kinds]
    holds += [f"DIR/ ({folder})"] if folder else []
    instead = "JSON instead of the report" if kinds[0] == "json" else "the screen"

    def gathered(output: tuple[tuple[str, str], ...], json_path: str | None = None) -> Outputs:
        check_output(json_path, "--json")
        asked = [*output, *([("json", json_path)] if json_path is not None else [])]
        return Outputs(tuple(dict.fromkeys(asked)))

    option = click.option(
        "-o",
        "--output",
        multiple=True,
        type=Parsed("FILE", lambda text: parse_output(text, every)),
        metavar="FILE",
        help=f"Write {', '.join(holds)}; - is {instead}. Repeatable.",
    )
    as_before = [click.option("--json", "json_path", metavar="PATH|-", hidden=True)] if "json" in kinds else []
    return group("outputs", gathered, option, *as_before)
