"""The exercises of the page on the series: each kernel without one line, and the finding that its solution names."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from typing import Any

import pytest

from harness import paths

EXERCISES = tomllib.loads((paths.ROOT / "docs" / "examples" / "exercises.toml").read_text())["exercise"]
NAMES = [f"{one['kernel']}: {one['without']}" for one in EXERCISES]
EXIT = {"racy": 1, "hung": 3, "wrong": 4}
COMMAND = (
    "from pathlib import Path; from harness import paths; paths.mojo_root = Path.cwd; "
    "from harness.cli.main import main; main()"
)
"""The command line on the kernels of the working folder."""


def without_line(one: dict[str, Any]) -> str:
    """The file of an exercise without its line."""
    before, indented = one["after"] + "\n", one["without"] + "\n"
    lines = (paths.ROOT / one["file"]).read_text().splitlines(keepends=True)
    [place] = [
        number
        for number in range(1, len(lines))
        if lines[number - 1].lstrip() == before and lines[number].lstrip() == indented
    ]
    return "".join(lines[:place] + lines[place + 1 :])


@pytest.mark.parametrize("one", EXERCISES, ids=NAMES)
def test_the_line_of_an_exercise_stands_once_in_its_file(one):
    assert len(without_line(one)) < len((paths.ROOT / one["file"]).read_text())


@pytest.mark.slow
@pytest.mark.nightly_unless_changed("kernels/", "docs/examples/exercises.toml")
@pytest.mark.parametrize("one", EXERCISES, ids=NAMES)
def test_the_solution_names_the_verdict_and_the_finding(one, tmp_path):
    shutil.copytree(paths.kernels_dir(), tmp_path / "kernels")
    (tmp_path / one["file"]).write_text(without_line(one))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(paths.ROOT), *sys.path])}
    command = [sys.executable, "-c", COMMAND, "verify", one["kernel"], *one["arguments"].split()]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600)
    told = done.stdout + done.stderr
    assert done.returncode == EXIT[one["verdict"]], told
    assert one["finding"] in told and done.stdout.rstrip().endswith(f": {one['verdict']}"), told
