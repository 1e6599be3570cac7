"""Brings what a project of the table needs: its packages and its code. None of it is in this repository."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path

from emugpu.errors import CannotRun
from tests.nightly.corpus.table import HERE, Project


def get(project: Project, python: str, sources: Path, pip: Sequence[str] = ()) -> None:
    """Installs the packages of a project, fetches its code, and builds it. ``pip``: options for the installation."""
    folder = sources / Path(project.folder).parts[0] if project.folder else sources
    folder.mkdir(parents=True, exist_ok=True)
    if project.packages:
        _call([python, "-m", "pip", "install", "--quiet", *pip, *project.packages], sources)
    if project.repository and all(found.name == ".git" for found in folder.iterdir()):
        _call(["git", "init", "--quiet", "."], folder)
        _call(["git", "fetch", "--quiet", "--depth", "1", project.repository, project.commit], folder)
        _call(["git", "checkout", "--quiet", "FETCH_HEAD", "--", *(project.parts or ["."])], folder)
    for line in project.build:
        _call(shlex.split(line.format(here=HERE)), folder)


def _call(command: list[str], folder: Path) -> None:
    try:
        subprocess.run(command, cwd=folder, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise CannotRun(f"{shlex.join(command)}: {error}") from None
