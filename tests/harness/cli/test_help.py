"""What a user is offered: help that fits the screen, and completion of what can be named."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import click
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from emugpu.cli.main import main as emugpu_main
from harness.cli.main import main
from harness.paths import ROOT


def pages(group: click.Group = main, before: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The words before ``--help``: none, those of each group, those of each command."""
    yield before
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from pages(command, (*before, name))
        else:
            yield (*before, name)


PAGES = list(pages())


def test_every_command_has_a_page():
    assert len(PAGES) >= 17 and {("run",), ("verify",), ("clean",)} <= set(PAGES)


@pytest.mark.parametrize("words", PAGES, ids=" ".join)
def test_help_fits_the_screen_and_cuts_no_sentence(words):
    shown = CliRunner().invoke(main, [*words, "--help"]).stdout
    assert shown.startswith("Usage: ") and max(len(line) for line in shown.splitlines()) <= 80
    listed = shown.partition("\nCommands:\n")[2].splitlines()
    assert not [line for line in listed if line.endswith("...")]


@pytest.mark.parametrize("program", [main, emugpu_main], ids=lambda program: program.name)
def test_the_help_of_run_fits_in_one_screen(program):
    shown = CliRunner().invoke(program, ["run", "--help"], terminal_width=80).stdout.splitlines()
    assert len(shown) <= 40, "\n".join(shown)


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        (["run", "kernel6", "k"], ["kernel5", "kernel6", "kernel7", "kernel8", "kernel9"]),
        (["compare", "a"], ["all"]),
        (["verify", "kernel8"], ["kernel8"]),
        (["explain", "kernel7"], ["kernel7"]),
        (["build", "-c", "preset=cute-"], ["preset=cute-03", "preset=cute-04"]),
        (["build", "-c", "clu"], ["cluster="]),
        (["build", "-c", "arch=sm_9"], ["arch=sm_90a"]),
        (["bench", "--suite", "h"], ["hopper"]),
    ],
    ids=lambda words: " ".join(words),
)
def test_completion_offers_what_can_be_named(typed, offered):
    complete = ShellComplete(main, {}, "harness", "_HARNESS_COMPLETE")
    assert [item.value for item in complete.get_completions(typed[:-1], typed[-1])] == offered


@pytest.mark.parametrize("shell", ["bash", *(pytest.param(shell, marks=pytest.mark.slow) for shell in ("zsh", "fish"))])
def test_shell_completion(shell):
    words = [sys.executable, "-c", "from harness.__main__ import entry; entry()"]

    def answer(**variables: str) -> str:
        environment = {**os.environ, **variables}
        return subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout

    script = answer(_HARNESS_COMPLETE=f"{shell}_source")
    assert f"_HARNESS_COMPLETE={shell}_complete" in script
    typed = {"COMP_WORDS": "harness run --sche", "COMP_CWORD": "--sche" if shell == "fish" else "2"}
    assert "--schedules" in answer(_HARNESS_COMPLETE=f"{shell}_complete", **typed)
