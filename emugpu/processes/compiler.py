"""The C or C++ compiler of this machine, for the libraries that are compiled once into the cache."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass

from emugpu.errors import CannotRun
from emugpu.processes import program


@dataclass(frozen=True)
class Compiler:
    """A program that compiles, with a limit in seconds for each call. ``made`` says in a message what it makes."""

    path: str
    made: str
    seconds: int

    def call(self, *arguments: str) -> None:
        """Runs the compiler. Raises CannotRun with what it says if it fails."""
        try:
            done = program.run([self.path, *arguments], self.seconds)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise CannotRun(f"the compiler {self.path} could not be run: {error}") from error
        if done.returncode:
            raise CannotRun(f"{self.path} cannot compile {self.made}:\n{done.stderr.strip()}")


def of_c(made: str, seconds: int) -> Compiler:
    return _found("C", "CC", ("cc", "gcc", "clang"), made, seconds)


def of_cpp(made: str, seconds: int) -> Compiler:
    return _found("C++", "CXX", ("c++", "g++", "clang++"), made, seconds)


def _found(language: str, variable: str, names: tuple[str, ...], made: str, seconds: int) -> Compiler:
    """Returns the compiler that the variable names, or else the first of the names. Raises CannotRun."""
    for name in (os.environ.get(variable), *names):
        path = shutil.which(name) if name else None
        if path:
            return Compiler(path, made, seconds)
    raise CannotRun(
        f"{made} is compiled once, and there is no {language} compiler: install gcc or clang, or set {variable}"
    )
