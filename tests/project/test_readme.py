"""The README says what is so: the output it shows, and the exit codes that it, the help and the pages name."""

from __future__ import annotations

import re
import subprocess

import pytest
from click.testing import CliRunner

from emugpu import errors
from emugpu.check.verdict import EXIT_CODES
from harness.cli.main import main
from harness.paths import ROOT

CODES = sorted({code for name, code in vars(errors).items() if name.startswith("EXIT_") and isinstance(code, int)})
ALL_CODES = sorted({*CODES, *EXIT_CODES.values()})


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
        assert [int(code) for code, _ in rows] == ALL_CODES
        assert all(command in rows[1][1] for command in ("`verify`", "`bench`"))
        return
    text = readme() if place == "README" else " ".join(CliRunner().invoke(main, ["--help"]).stdout.split())
    [sentence] = re.findall(r"Exit codes: (.*?)\.\s", text, re.DOTALL)
    wanted = ALL_CODES if place == "README" else CODES
    assert [int(code) for code in re.findall(r"(?:^|[,;] )\s*(\d+) ", sentence)] == wanted


def test_the_commands_of_the_readme_leave_the_checkout_clean():
    """What they write is ignored by git, or goes elsewhere."""
    text = readme()
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    written = re.findall(r"^    harness [^#\n]*?(?: -o| --output| --json| --dump) ([\w./]+)", text, re.MULTILINE)
    assert "plan.svg" in written
    for path in [*written, "report/index.html"]:
        assert subprocess.run(["git", "check-ignore", "--quiet", path], cwd=ROOT).returncode == 0, path
