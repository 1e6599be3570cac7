"""The examples: each right one is clean, its racy twin is told as a race; and what the action does with them."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from click.testing import CliRunner
from driver_programs import mojo_program, needs_mojo

from emugpu.cli.main import main
from emugpu.paths import ROOT

EXAMPLES = ROOT / "docs/examples"


def rules(verdict: dict) -> set[str]:
    return {finding["rule"] for finding in verdict["findings"] if finding["severity"] == "error"}


@pytest.mark.parametrize("name", ["reverse", "softmax"])
def test_a_right_kernel_and_its_racy_twin(name):
    right = CliRunner().invoke(main, ["verify", str(EXAMPLES / f"{name}.toml"), "--json", "-"])
    assert right.exit_code == 0 and json.loads(right.stdout)["verdict"] == "clean"
    twin = CliRunner().invoke(main, ["verify", str(EXAMPLES / f"{name}_racy.toml"), "--json", "-"])
    found = json.loads(twin.stdout)
    assert twin.exit_code == 4 and rules(found) == {"race-shared"}
    assert {reason["verdict"] for reason in found["reasons"]} == {"wrong", "racy"}


@needs_mojo
@pytest.mark.slow
@pytest.mark.xdist_group("Mojo programs")
@pytest.mark.nightly_unless_changed("emugpu/driver/", "docs/examples/")
@pytest.mark.parametrize(("words", "verdict", "code"), [([], "clean", 0), (["racy"], "wrong", 4)])
def test_a_mojo_program_and_its_racy_twin(tmp_path, words, verdict, code):
    program = mojo_program("reverse", folder=EXAMPLES)
    command = [sys.executable, "-m", "emugpu", "verify", "--json", tmp_path / "out.json", "--", program, *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    found = json.loads((tmp_path / "out.json").read_text())
    assert (found["verdict"], done.returncode) == (verdict, code), done.stderr
    assert rules(found) == ({"race-shared"} if words else set())


def action(tmp_path, targets: str, verdict: str = "clean") -> subprocess.CompletedProcess[str]:
    path = f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
    command = [ROOT / ".github/verify.sh", tmp_path / "out", verdict, "b200"]
    return subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PATH": path}, input=targets, capture_output=True, text=True, timeout=120
    )


@pytest.mark.slow
def test_the_action_ends_as_the_verdicts_are(tmp_path):
    both = "docs/examples/reverse.toml\n\ndocs/examples/reverse_racy.toml\n"
    done = action(tmp_path, both)
    assert done.returncode == 1
    [line] = [line for line in done.stdout.splitlines() if line.startswith("::error::")]
    assert line == "::error::docs/examples/reverse_racy.toml: the verdict is wrong, and was to be clean"
    written = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert written == ["1.json", "1.sarif", "1.xml", "2.json", "2.sarif", "2.xml"]
    assert action(tmp_path, both.split()[0]).returncode == 0


@pytest.mark.parametrize(
    ("targets", "verdict", "said"),
    [
        ("\n", "clean", "there is no target"),
        ("docs/examples/none.toml", "clean", "docs/examples/none.toml: the verdict is none, and was to be clean"),
        ("true", "clean", "true: the verdict is incomplete, and was to be clean"),
    ],
)
def test_the_action_never_passes_what_it_has_not_looked_at(tmp_path, targets, verdict, said):
    done = action(tmp_path, targets, verdict)
    assert done.returncode == 1 and f"::error::{said}" in done.stdout
