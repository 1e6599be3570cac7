"""The smaller case that a verdict names: its own verdict, and its errors."""

from __future__ import annotations

import json
import shlex

import click
from click.testing import CliRunner


def errors_of(found: dict) -> set[str]:
    return {finding["rule"] for finding in found["findings"] if finding["severity"] == "error"}


def verify_again(main: click.Command, program: str, command: str) -> tuple[dict, list[str]]:
    """What a command of a program that was printed says, and its words."""
    words = shlex.split(command, comments=True)
    done = CliRunner().invoke(main, [*words[1:], "--json", "-"])
    assert words[:2] == [program, "verify"] and done.exit_code in (1, 3, 4), (words, done.output)
    return json.loads(done.stdout), words
