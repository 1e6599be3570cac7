"""The files that set the project up: what they name exists, and they agree with each other."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import re
import shutil
import subprocess
import tomllib

import pytest
from click.testing import CliRunner

from harness.cli.main import main
from harness.errors import EXTRAS
from harness.paths import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PIXI = tomllib.loads((ROOT / "pixi.toml").read_text())
TASKS = PIXI["tasks"] | {
    name: words for each in PIXI["feature"].values() for name, words in each.get("tasks", {}).items()
}
needs_make = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


def requirements(lines: list[str]) -> dict[str, str]:
    """``["max>=26.7,<26.8"]`` as ``{"max": ">=26.7,<26.8"}``."""
    return {re.match(r"[\w-]+", line).group(): line[re.match(r"[\w-]+", line).end() :] for line in lines}


def test_pixi_has_the_same_packages():
    """The extras that the tests need stand in the default environment as features of their own."""
    default = dict(PIXI["pypi-dependencies"])
    assert default.pop(PROJECT["name"]) == {"path": ".", "editable": True}
    assert default == requirements(PROJECT["dependencies"])
    extras = {name: requirements(lines) for name, lines in PROJECT["optional-dependencies"].items()}
    assert extras["test"].pop(PROJECT["name"]) == f"[{','.join(EXTRAS)}]"
    assert set(EXTRAS) < set(PIXI["environments"]["default"])
    assert "torch" in PIXI["environments"]["gpu"] and "torch" not in PIXI["environments"]["default"]
    assert {name: feature["pypi-dependencies"] for name, feature in PIXI["feature"].items()} == extras
    assert all(set(features) <= set(PIXI["feature"]) for features in PIXI["environments"].values())
    assert PIXI["dependencies"]["python"] == PROJECT["requires-python"]


def test_pixi_expects_the_c_library_that_the_wheels_need():
    assert PIXI["system-requirements"]["libc"]["family"] == "glibc"
    offered = tuple(int(part) for part in PIXI["system-requirements"]["libc"]["version"].split("."))
    for package in ("max", "max-core", "mojo-compiler"):
        tags = importlib.metadata.distribution(package).read_text("WHEEL")
        needed = re.search(r"manylinux_(\d+)_(\d+)", tags).groups()
        assert offered >= tuple(int(part) for part in needed), package


def test_the_default_install_is_light():
    names = set(requirements(PROJECT["dependencies"]))
    assert names == {"max", "numpy", "click", "rich", "ml_dtypes", "platformdirs"}
    assert set(requirements(PROJECT["optional-dependencies"]["torch"])) == {"torch"}


def test_the_script_is_the_command_line():
    module, function = PROJECT["scripts"]["harness"].split(":")
    assert callable(getattr(importlib.import_module(module), function))


def make(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(["make", *arguments], cwd=ROOT, capture_output=True, text=True)


@needs_make
@pytest.mark.parametrize(
    ("job", "extras"),
    [
        ("run", ""),
        ("bench", "[bench,report,sweep]"),
        ("test", "[test]"),
        ("test-gpu", "[test,torch]"),
        ("lint", "[test,dev]"),
        ("docs", "[docs]"),
    ],
)
def test_make_installs_what_a_job_needs_and_says_so(tmp_path, job, extras):
    plan = make("--dry-run", job, f"VENV={tmp_path / 'venv'}").stdout
    assert f"-m venv {tmp_path}/venv" in plan and f'echo "Installing .{extras} into ' in plan
    assert f"--editable '.{extras}'" in plan
    named = extras.strip("[]").split(",") if extras else []
    assert set(named) <= set(PROJECT["optional-dependencies"])


@needs_make
@pytest.mark.parametrize("task", TASKS)
def test_a_task_of_pixi_is_the_job_of_make_in_an_environment_that_is_ready(tmp_path, task):
    assert TASKS[task] == f"make {task} READY=$CONDA_PREFIX"
    plan = make("--dry-run", task, f"READY={tmp_path}", f"VENV={tmp_path / 'venv'}")
    assert plan.returncode == 0 and f"{tmp_path}/bin/" in plan.stdout and "venv" not in plan.stdout


@needs_make
def test_make_installs_once(tmp_path):
    (tmp_path / "bin").mkdir()
    for path in ("bin/python", "installed", "installed-test"):
        (tmp_path / path).touch()
    for job in ("run", "test"):
        assert "--editable" not in make("--dry-run", job, f"VENV={tmp_path}").stdout
    os.utime(tmp_path / "installed", (0, 0))
    assert "--editable '.'" in make("--dry-run", "run", f"VENV={tmp_path}").stdout


@needs_make
def test_make_without_a_usable_python(tmp_path):
    done = make("run", f"VENV={tmp_path / 'venv'}", "PYTHON=")
    assert done.returncode != 0
    assert "no Python 3.11, 3.12 or 3.13 was found" in done.stderr
    assert not (tmp_path / "venv").exists()


WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_are_pinned_and_cached(path):
    text = path.read_text()
    used = re.findall(r"uses: (\S+)(.*)", text)
    assert used
    for action, comment in used:
        assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", action), action
        assert re.fullmatch(r" # v\d+\.\d+\.\d+", comment), action
    assert "cache: pip" in text
    for target in re.findall(r"run: make ([\w-]+)$", text, re.MULTILINE):
        assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE), target


@pytest.mark.parametrize(
    "line", re.findall(r"- ((?:run|check) all .*)", (WORKFLOWS[0].parent / "nightly.yml").read_text())
)
def test_the_nightly_commands_are_understood(line):
    done = CliRunner().invoke(main, [*line.split(), "1000", "--arch", "sm_90a", "--jobs", "4", "--help"])
    assert done.exit_code == 0, done.output
