"""The README says what is so: the output it shows, and the exit codes that it, the help and the pages name."""

from __future__ import annotations

import re
import subprocess

import pytest
from click.testing import CliRunner

from emugpu import errors
from emugpu.check import verdict
from emugpu.cli.main import main as emugpu
from emugpu.errors import EXIT_CODES, EXIT_CODES_TEXT
from harness.cli.main import main
from harness.paths import ROOT


def readme() -> str:
    return (ROOT / "README.md").read_text()


def test_what_you_see_is_what_is_shown(artifacts):
    block = re.search(r"## What you see\n\n((?:    .*\n)+)", readme())
    assert block
    expected = [line[4:] for line in block[1].splitlines() if line != "    ..."]
    shown = iter(CliRunner().invoke(main, ["run", "kernel6"]).stdout.splitlines())
    for line in expected:
        assert line in (seen.rstrip() for seen in shown), line


def test_the_exit_codes_are_one_list_everywhere():
    assert set(EXIT_CODES) == {code for name, code in vars(errors).items() if name[:5] == "EXIT_" and type(code) is int}
    assert EXIT_CODES_TEXT in readme()
    rows = re.findall(r"^\| (\d+) \| .* \|$", (ROOT / "docs" / "command-line.md").read_text(), re.MULTILINE)
    assert [int(code) for code in rows] == list(EXIT_CODES)
    for program in (main, emugpu):
        assert EXIT_CODES_TEXT in " ".join(CliRunner().invoke(program, ["--help"]).stdout.split())
    assert set(verdict.EXIT_CODES.values()) < set(EXIT_CODES)


def test_the_commands_of_the_readme_leave_the_checkout_clean():
    """What they write is ignored by git, or goes elsewhere."""
    text = readme()
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    written = re.findall(r"^    harness [^#\n]*?(?: -o| --output| --json| --dump) ([\w./]+)", text, re.MULTILINE)
    assert "plan.svg" in written
    for path in [*written, "report/index.html"]:
        assert subprocess.run(["git", "check-ignore", "--quiet", path], cwd=ROOT).returncode == 0, path
