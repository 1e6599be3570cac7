"""Reads corpus.toml: the projects, and the programs that call their kernels."""

from __future__ import annotations

import shlex
import tomllib
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Program:
    """One program of a project. ``command`` is relative to the folder of the project."""

    gpu: str
    command: tuple[str, ...]

    @property
    def name(self) -> str:
        """The command, without the place of this folder."""
        return " ".join(self.command).replace(f"{HERE}/", "")


@dataclass(frozen=True)
class Project:
    """A project: where its code comes from, how it is built, and its programs.

    ``folder`` is the folder of its code below that of all fetched code. ``build`` lists commands that are run there.
    ``sizes`` are arguments for all test functions.
    """

    name: str
    version: str
    programs: tuple[Program, ...]
    folder: str = ""
    packages: tuple[str, ...] = ()
    repository: str = ""
    commit: str = ""
    parts: tuple[str, ...] = ()
    build: tuple[str, ...] = ()
    variables: tuple[tuple[str, str], ...] = ()


def projects(file: Path = HERE / "corpus.toml") -> list[Project]:
    table = tomllib.loads(file.read_text(encoding="utf-8"))
    return [_project(**entry) for entry in table["project"]]


def _project(gpu: str = "b200", programs: str = "", functions: str = "", sizes: str = "", **entry: object) -> Project:
    """``programs`` and ``functions`` have one program a line: a command, or a file of tests and the functions in it."""
    call = str(HERE / "caller.py")
    commands = [tuple(shlex.split(line.format(here=HERE))) for line in programs.splitlines() if line]
    for line in filter(None, functions.splitlines()):
        file, *names = line.split()
        own = [name for name in names if "=" in name]
        commands += [(call, file, name, *shlex.split(sizes), *own) for name in names if "=" not in name]
    variables = tuple(dict(entry.pop("variables", {})).items())  # type: ignore[call-overload]
    lists = {key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()}
    return Project(programs=tuple(Program(gpu, c) for c in commands), variables=variables, **lists)  # type: ignore[arg-type]
