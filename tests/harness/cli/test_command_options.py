"""The options of all commands: how many there are, and that a name means the same in each."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator

import click
import pytest

from emugpu.cli import render
from emugpu.cli.main import main as emugpu_main
from harness.cli.main import main
from harness.paths import ROOT

MOST = 160
"""Visible options of both programs together."""


def commands(group: click.Group, path: str = "") -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    yield path.strip() or str(group.name), group
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from commands(command, f"{path}{name} ")
        elif command is not None:
            yield path + name, command


def options() -> Iterator[tuple[str, click.Option]]:
    for program in (main, emugpu_main):
        for name, command in commands(program):
            for each in command.params:
                if isinstance(each, click.Option) and not each.hidden and "--version" not in each.opts:
                    yield f"{program.name} {name}", each


def meaning(option: click.Option) -> str:
    """Its help, without the default, which may be another in another command."""
    return re.sub(r"\s*\[default: .*", "", option.help or "", flags=re.DOTALL)


def test_there_are_not_too_many():
    counted = Counter(command for command, _ in options())
    assert sum(counted.values()) <= MOST, dict(counted)


SINGLE = ["ptx", "dtype", "device", "jobs", "no-save", "config", "emulate", "timeout", "schedules"]
OTHERWISE = {
    "ptx": ("emugpu verify", "emugpu debug"),  # of a launch file
    "dtype": ("harness sweep", "harness tune"),  # a list; two types alone
    "device": ("harness sweep", "harness tune", "emugpu run"),  # a model, too; not auto
    "jobs": ("harness bench", "harness sweep", "harness tune"),  # what is shared out: cases, jobs
    "config": ("harness compare", "harness sweep", "harness tune"),  # several values
    # of a job; commands that may use a GPU say so
    "timeout": ("harness sweep", "harness tune", "harness run", "harness compare", "emugpu run"),
    # a number alone; a job for each; one schedule alone
    "schedules": ("harness bench", "harness sweep", "harness debug", "emugpu exec", "emugpu debug"),
}
"""Commands where a name says more or less, and its help says what."""


@pytest.mark.parametrize("name", SINGLE)
def test_a_name_means_one_thing(name):
    meanings = defaultdict(list)
    for command, option in options():
        if f"--{name}" in option.opts and command not in OTHERWISE.get(name, ()):
            # Each command has the settings of --emulate that mean something there.
            meanings["" if name == "emulate" else meaning(option)].append(command)
    assert len(meanings) == 1, dict(meanings)


def test_no_option_is_a_seed():
    """Of the inputs it is --problem seed=N, of schedules a part of --schedules."""
    assert not [command for command, option in options() if any("seed" in name for name in option.opts)]


def one_problem() -> dict[str, click.Command]:
    """The commands that take one problem, by name."""
    return {
        name: command
        for name, command in commands(main)
        if any(each.name == "shape" and not each.multiple for each in command.params if isinstance(each, click.Option))
    }


SHAPES = {"kernel8": "1024x1024x1024", "rows": "8x1024x1024", "own.mojo": "1024x1024x1024"}
"""What a kernel multiplies if the user names no shape. `rows` is for few rows: 1024 would take it minutes."""


@pytest.mark.parametrize("kernel", SHAPES)
def test_a_kernel_has_one_usual_shape_in_all_commands(kernel):
    found = one_problem()
    assert {"run", "verify", "compare", "explain", "build", "debug", "predict", "timeline", "tune"} <= set(found)
    for name, command in found.items():
        with command.make_context(name, [kernel, *["--gpu", "h200"] * (name == "predict")]) as context:
            assert str(context.params["shape"]) == SHAPES[kernel], name


def test_several_kernels_share_a_problem_that_suits_all():
    shape_of = {
        words: one_problem()["compare"].make_context("compare", [*words]).params["shape"]
        for words in (("kernel8", "rows"), ("rows", "kernel8"), ("rows", "--shape", "16"))
    }
    assert [str(shape) for shape in shape_of.values()] == ["8x1024x1024", "8x1024x1024", "16x16x16"]


@pytest.mark.slow
@pytest.mark.nightly_unless_changed(
    "harness/compile/", "harness/cli/", "emugpu/processes/", "emugpu/cli/", "emugpu/cache.py"
)
def test_a_log_says_why_something_is_compiled_and_what_is_started(tmp_path, monkeypatch):
    environment = {**os.environ, "HARNESS_CACHE_DIR": str(tmp_path / "cache"), "HARNESS_RESULTS_DIR": str(tmp_path)}
    words = [sys.executable, "-m", "harness", "-v", "build", "kernel6", "-c", "cluster=2x1"]
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
