"""The README says what is so: the output it shows, and the exit codes that it, the help and the pages name."""

from __future__ import annotations

import re
from collections.abc import Iterator

import click
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from harness import errors
from harness.cli.main import main
from harness.paths import ROOT

CODES = sorted({value for name, value in vars(errors).items() if name.startswith("EXIT_")})


def readme() -> str:
    return (ROOT / "README.md").read_text()


def test_what_you_see_is_what_is_shown(artifacts):
    block = re.search(r"## What you see\n\n((?:    .*\n)+)", readme())
    assert block
    expected = [line[4:] for line in block[1].splitlines() if line != "    ..."]
    shown = iter(CliRunner().invoke(main, ["run", "kernel6"]).stdout.splitlines())
    for line in expected:
        assert line in (seen.rstrip() for seen in shown), line


@pytest.mark.parametrize("place", ["README", "help", "page"])
def test_every_exit_code_is_named(place):
    if place == "page":
        page = (ROOT / "docs" / "command-line.md").read_text()
        rows = re.findall(r"^\| (\d+) \| (.*) \|$", page, re.MULTILINE)
        assert [int(code) for code, _ in rows] == CODES
        assert all(command in rows[1][1] for command in ("`check`", "`bench`"))
        return
    text = readme() if place == "README" else " ".join(CliRunner().invoke(main, ["--help"]).stdout.split())
    [sentence] = re.findall(r"Exit codes: (.*?)\.\s", text, re.DOTALL)
    assert [int(code) for code in re.findall(r"(?:^|, )\s*(\d+) ", sentence)] == CODES


def commands(group: click.Group = main, before: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield before
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, (*before, name))
        else:
            yield (*before, name)


@pytest.mark.parametrize("words", list(commands()), ids=" ".join)
def test_help_fits_the_screen_and_cuts_no_sentence(words):
    shown = CliRunner().invoke(main, [*words, "--help"]).stdout
    assert max(len(line) for line in shown.splitlines()) <= 80
    listed = shown.partition("\nCommands:\n")[2].splitlines()
    assert not [line for line in listed if line.endswith("...")]


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        (["run", "kernel6", "k"], ["kernel5", "kernel6", "kernel7", "kernel8"]),
        (["compare", "a"], ["all"]),
        (["check", "kernel8"], ["kernel8"]),
        (["explain", "kernel7"], ["kernel7"]),
        (["build", "--preset", "cute-"], ["cute-03", "cute-04"]),
        (["bench", "--suite", "h"], ["hopper"]),
        (["check", "kernel6", "--allow", "race-s"], ["race-shared"]),
    ],
    ids=lambda words: " ".join(words),
)
def test_completion_offers_what_can_be_named(typed, offered):
    complete = ShellComplete(main, {}, "harness", "_HARNESS_COMPLETE")
    assert [item.value for item in complete.get_completions(typed[:-1], typed[-1])] == offered
