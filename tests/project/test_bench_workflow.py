"""The workflow of pull requests: `.github/bench.sh` measures the base and the change, and says which of them failed."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from harness.cli.main import main
from harness.paths import ROOT

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")

FAKE_HARNESS = """#!/bin/sh
echo "$@" >> "{folder}/calls"
for word in "$@"; do
    case "$last $word" in
    --save-baseline*)
        mkdir -p "$HARNESS_RESULTS_DIR"
        echo '{{"schema":1,"baseline":"base"}}' >> "$HARNESS_RESULTS_DIR/baselines.jsonl" ;;
    -o*.md) echo "### Benchmark" > "$word" ;;
    -o*) echo "{{}}" > "$word" ;;
    esac
    last=$word
done
echo "the last words of a run"
exit {code}
"""


def fake_checkout(folder: Path, code: int, makes: bool = True) -> Path:
    """A checkout whose harness notes how it is called, writes what it is asked for, and exits with a code."""
    (folder / ".venv" / "bin").mkdir(parents=True)
    (folder / "Makefile").write_text(".venv/installed:\n\t@" + ("true" if makes else "echo no compiler; false") + "\n")
    program = folder / ".venv" / "bin" / "harness"
    program.write_text(FAKE_HARNESS.format(folder=folder, code=code))
    program.chmod(0o755)
    return folder


def compare_in_workflow(tmp_path: Path, base: Path, change: Path) -> tuple[int, str]:
    out = tmp_path / "out"
    done = subprocess.run([ROOT / ".github" / "bench.sh", base, change, out], capture_output=True, text=True)
    return done.returncode, (out / "comment.md").read_text()


@pytest.mark.parametrize("code", [0, 1, 4])
def test_the_workflow_compares_the_change_with_the_base(tmp_path, code):
    base, change = fake_checkout(tmp_path / "base", 0), fake_checkout(tmp_path / "change", code)
    assert compare_in_workflow(tmp_path, base, change) == (code, "### Benchmark\n")
    assert (base / "calls").read_text() == "bench --save-baseline base\n"
    assert (change / "calls").read_text().startswith("bench --baseline base -o ")
    help_text = CliRunner().invoke(main, ["bench", "--help"]).stdout
    for option in re.findall(r"--[a-z-]+", (base / "calls").read_text() + (change / "calls").read_text()):
        assert option in help_text


def test_the_workflow_reports_a_base_that_fails(tmp_path):
    base, change = fake_checkout(tmp_path / "base", 0, makes=False), fake_checkout(tmp_path / "change", 0)
    code, comment = compare_in_workflow(tmp_path, base, change)
    assert code == 0
    assert "The base could not be measured" in comment and "no compiler" in comment and "### Benchmark" in comment
    assert "--baseline" not in (change / "calls").read_text()


def test_the_workflow_reports_a_change_that_fails(tmp_path):
    base, change = fake_checkout(tmp_path / "base", 0), fake_checkout(tmp_path / "change", 0, makes=False)
    (change / "Makefile").write_text(".venv/installed:\n\t@seq 100000; false\n")
    code, comment = compare_in_workflow(tmp_path, base, change)
    assert code == 2
    assert "**The change could not be measured** (exit code 2)" in comment and len(comment) < 7000
