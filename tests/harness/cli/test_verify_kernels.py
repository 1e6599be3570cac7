"""``harness verify``: one verdict on a kernel of ours."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace

from click.testing import CliRunner

from harness.cli.main import main
from harness.compile.artifacts import make_launchable


def verify(*words: object):
    return CliRunner().invoke(main, ["verify", *map(str, words)])


def test_a_kernel_of_ours(artifacts):
    done = verify("kernel6", "--shape", "300,520,200", "--cluster", "2x1")
    assert done.exit_code == 0, done.output
    assert "1 launch, 4 schedules; compared: C" in done.stdout


def test_several_targets_are_refused():
    done = verify("kernel6", "kernel7")
    assert done.exit_code == 2 and "name one" in done.stderr


def errors_of(found: dict) -> set[str]:
    return {finding["rule"] for finding in found["findings"] if finding["severity"] == "error"}


def verify_again(command: str) -> tuple[dict, list[str]]:
    """What a command that was printed says, and its words."""
    words = shlex.split(command, comments=True)
    done = verify(*words[2:], "--json", "-")
    assert words[:2] == ["harness", "verify"] and done.exit_code in (1, 3, 4), (words, done.output)
    return json.loads(done.stdout), words


def test_a_kernel_of_ours_with_a_fault_is_shown_by_a_smaller_product(monkeypatch, artifacts):
    def without_wait(*arguments):
        what = make_launchable(*arguments)
        return replace(what, text_given=what.text.replace("cp.async.bulk.wait_group.read 1;", ""))

    for module in ("check", "verify"):
        monkeypatch.setattr(f"harness.cli.{module}.make_launchable", without_wait)
    done = verify("kernel7", "--shape", "300,520,200", "--cluster", "2x1", "--shrink", "--json", "-")
    found = json.loads(done.stdout)
    again, command = verify_again(found["smaller"])
    shape = [int(size) for size in command[command.index("--shape") + 1].split(",")]
    assert shape < [300, 520, 200] and shape[2] <= 8, command
    assert errors_of(found) & errors_of(again)
