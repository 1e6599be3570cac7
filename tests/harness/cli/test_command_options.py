"""The options of all commands: how many there are, and that a name means the same in each."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator

import click
import pytest

from emugpu.cli import render
from harness.cli.main import main
from harness.paths import ROOT

MOST = 180
"""Distinct options, pairs of a name and a meaning: what commands share counts once."""


def commands(group: click.Group, path: str = "") -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from commands(command, f"{path}{name} ")
        else:
            yield path + name, command


def options() -> Iterator[tuple[str, click.Option]]:
    for name, command in commands(main):
        yield from ((name, each) for each in command.params if isinstance(each, click.Option))


def meaning(option: click.Option) -> str:
    """Its help, without the default, which may be another in another command."""
    return re.sub(r"\s*\[default: .*", "", option.help or "", flags=re.DOTALL)


def test_there_are_not_too_many():
    assert len({(option.opts[-1], meaning(option)) for _, option in options()}) <= MOST


SINGLE = ["scheduler", "cluster", "stages", "dtype", "arch", "preset", "schedule", "schedule-seed", "strict"]


@pytest.mark.parametrize("name", SINGLE)
def test_a_name_means_one_thing(name):
    meanings = defaultdict(list)
    for command, option in options():
        if f"--{name}" in option.opts:
            meanings[meaning(option)].append(command)
    assert len(meanings) == 1, dict(meanings)


def test_seed_is_that_of_inputs_where_there_are_inputs():
    for command, option in options():
        if "--seed" in option.opts:
            of_schedules = "--schedule-seed" in option.opts
            assert of_schedules == (command in ("ptx run", "ptx check", "exec")), command
            assert of_schedules or "inputs" in option.help


@pytest.mark.slow
def test_a_log_says_why_something_is_compiled_and_what_is_started(tmp_path, monkeypatch):
    environment = {**os.environ, "HARNESS_CACHE_DIR": str(tmp_path / "cache"), "HARNESS_RESULTS_DIR": str(tmp_path)}
    words = [sys.executable, "-m", "harness", "-v", "build", "kernel6", "--cluster", "2x1"]
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "harness.compile.artifacts: kernel6 sm_100a" in done.stderr and "is not in the cache" in done.stderr
    assert "emugpu.processes.program: process" in done.stderr and "mojo build" in done.stderr
    quiet = subprocess.run([*words[:3], *words[4:]], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert (quiet.returncode, quiet.stderr) == (0, "")


def test_a_line_says_how_far_it_is_where_there_is_no_terminal(monkeypatch, capsys):
    monkeypatch.setattr(render, "SECONDS", 0.05)
    with render.progress_bar("emulating kernel6", "clusters") as report:
        time.sleep(0.2)
        report(1_000, 2_000)
        time.sleep(0.2)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) >= 4 and lines[0] == "emulating kernel6: 0 s"
    assert lines[-1] == "emulating kernel6: 0 s, 1,000 of 2,000 clusters"
    with render.progress_bar("emulating kernel6", "clusters"):
        pass
    assert capsys.readouterr().err == "", "what is done at once needs no line"
