"""The files that set the project up: they agree with each other, and what they run works."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

import harness.cli.main
from harness.paths import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PIXI = tomllib.loads((ROOT / "pixi.toml").read_text())


def requirements(lines: list[str]) -> dict[str, str]:
    """``["max>=26.7,<26.8"]`` as ``{"max": ">=26.7,<26.8"}``."""
    return {re.match(r"[\w-]+", line).group(): line[re.match(r"[\w-]+", line).end() :] for line in lines}


def test_pixi_has_the_same_packages():
    default = dict(PIXI["pypi-dependencies"])
    assert default.pop(PROJECT["name"]) == {"path": ".", "editable": True}
    assert default == requirements(PROJECT["dependencies"])
    extras = {name: requirements(lines) for name, lines in PROJECT["optional-dependencies"].items()}
    assert {name: feature["pypi-dependencies"] for name, feature in PIXI["feature"].items()} == extras
    assert PIXI["dependencies"]["python"] == PROJECT["requires-python"]


def test_pixi_expects_the_c_library_that_the_wheels_need():
    assert PIXI["system-requirements"]["libc"]["family"] == "glibc"
    offered = tuple(int(part) for part in PIXI["system-requirements"]["libc"]["version"].split("."))
    for package in ("max", "max-core", "mojo-compiler"):
        tags = importlib.metadata.distribution(package).read_text("WHEEL")
        needed = re.search(r"manylinux_(\d+)_(\d+)", tags).groups()
        assert offered >= tuple(int(part) for part in needed), package


def test_pixi_environments_use_features_that_exist():
    assert {"default", "gpu", "modular"} == set(PIXI["environments"])
    assert {"torch", "report", "test"} <= set(PIXI["environments"]["gpu"])
    assert "torch" not in PIXI["environments"]["default"]
    for features in PIXI["environments"].values():
        assert set(features) <= set(PIXI["feature"])


def test_the_default_install_is_light():
    names = set(requirements(PROJECT["dependencies"]))
    assert "max" in names
    assert not names & {"modular", "torch"}
    assert set(requirements(PROJECT["optional-dependencies"]["torch"])) == {"torch"}


def test_the_script_is_the_command_line():
    module, function = PROJECT["scripts"]["harness"].split(":")
    assert callable(getattr(importlib.import_module(module), function))


def pixi_tasks() -> dict[str, str]:
    tasks = dict(PIXI["tasks"])
    for feature in PIXI["feature"].values():
        tasks |= feature.get("tasks", {})
    return tasks


def test_pixi_has_the_jobs():
    jobs = {"run", "compare", "bench", "report", "test", "test-quick", "test-gpu", "lint", "fmt", "list", "doctor"}
    assert set(pixi_tasks()) == jobs
    environment = PIXI["environments"]["default"]
    for feature, content in PIXI["feature"].items():
        if "tasks" in content and feature != "torch":
            assert feature in environment, "every job but test-gpu runs without naming an environment"
    assert "torch" in PIXI["environments"]["gpu"]


# What is added to a command so that a test can run it: it writes nothing into the checkout, and ends soon.
HARMLESS = {
    "harness bench": ["--filter", "kernel6 bf16 2x1 1024"],
    "harness compare": ["--shape", "256,256,64"],
    "harness report": ["--help"],  # it needs a history; tests/test_report_page.py runs it
    "pytest": ["--collect-only"],  # this is the run of the tests
}


@pytest.mark.parametrize("name", sorted(set(pixi_tasks()) - {"lint", "fmt"}))
def test_pixi_tasks_work(name, artifacts):
    program, *arguments = shlex.split(pixi_tasks()[name])
    extra = next((more for start, more in HARMLESS.items() if pixi_tasks()[name].startswith(start)), [])
    done = subprocess.run(
        [sys.executable, "-m", program, *arguments, *extra], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", ["lint", "fmt"])
def test_pixi_style_tasks_work(name, tmp_path):
    """On a copy, as fmt writes. What they say about the checkout is up to `make lint`."""
    bin_folder = Path(sys.executable).parent
    for folder in ("kernels", "harness"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    commands = [shlex.split(command) for command in pixi_tasks()[name].split(" && ")]
    assert [command[0] for command in commands] == {
        "lint": ["ruff", "ruff", "mblack", "mypy"],
        "fmt": ["ruff", "ruff", "mojo"],
    }[name]
    for program, *arguments in commands:
        if not (bin_folder / program).exists():
            pytest.skip(f"{program} is not installed beside Python (pip install -e '.[dev]')")
        if program == "mypy":
            arguments = ["--version"]  # the check itself takes a minute
        command = [bin_folder / program, *arguments]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
        # 1: there is something to say about the style; 2 and more: the command itself is wrong.
        assert done.returncode in (0, 1), done.stdout + done.stderr


def make(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(["make", *arguments], cwd=ROOT, capture_output=True, text=True)


needs_make = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


@needs_make
def test_make_runs_the_same_jobs(tmp_path):
    environment = tmp_path / "venv"
    plan = make("--dry-run", "run", f"VENV={environment}").stdout
    assert f"-m venv {environment}" in plan
    assert "install --editable ." in plan
    assert f"{environment}/bin/python -m {PIXI['tasks']['run']}" in plan
    for job in ("test", "test-quick"):
        plan = make("--dry-run", job, f"VENV={environment}").stdout
        assert "install --editable '.[test]'" in plan
        assert f"{environment}/bin/python -m {pixi_tasks()[job]}\n" in plan
    plan = make("--dry-run", "test-gpu", f"VENV={environment}").stdout
    assert "install --editable '.[test,torch]'" in plan
    assert f"{environment}/bin/python -m {pixi_tasks()['test-gpu']}\n" in plan
    for job in ("bench", "report"):
        assert (
            f"{environment}/bin/python -m {pixi_tasks()[job]}" in make("--dry-run", job, f"VENV={environment}").stdout
        )
    for job in ("lint", "fmt"):
        plan = make("--dry-run", job, f"VENV={environment}").stdout
        assert "install --editable '.[test,dev]'" in plan
        commands = [
            line.removeprefix(f"{environment}/bin/")
            for line in plan.splitlines()
            if line.startswith(f"{environment}/bin/")
        ]
        assert [line for line in commands if "-m pip" not in line] == pixi_tasks()[job].split(" && ")


@needs_make
def test_make_installs_once(tmp_path):
    (tmp_path / "bin").mkdir()
    for path in ("bin/python", "installed", "installed-test"):
        (tmp_path / path).touch()
    for job in ("run", "test"):
        assert "install --editable" not in make("--dry-run", job, f"VENV={tmp_path}").stdout
    os.utime(tmp_path / "installed", (0, 0))
    assert "install --editable ." in make("--dry-run", "run", f"VENV={tmp_path}").stdout


@needs_make
def test_make_without_a_usable_python(tmp_path):
    done = make("run", f"VENV={tmp_path / 'venv'}", "PYTHON=")
    assert done.returncode != 0
    assert "no Python 3.11, 3.12 or 3.13 was found" in done.stderr
    assert not (tmp_path / "venv").exists()


def test_continuous_integration_runs_the_tests():
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    commands = [line for line in script.read_text().splitlines() if line and not line.startswith(("#", "set ", "cd "))]
    assert commands == ["make lint", "make test"]


def test_the_workflow_measures_base_and_change():
    text = (ROOT / ".github" / "workflows" / "bench.yml").read_text()
    commands = re.findall(r"\.venv/bin/harness bench (.*)", text)
    assert commands[0].startswith("--save-baseline base") and commands[1].startswith("--baseline base")
    help_text = CliRunner().invoke(harness.cli.main.main, ["bench", "--help"]).stdout
    for option in re.findall(r"--[a-z-]+", " ".join(commands) + text.split("--baseline base")[1].split("||")[0]):
        assert option in help_text
    for target in re.findall(r"make (\S+)", text):
        assert f"{target.replace('.venv', '$(VENV)')}:" in (ROOT / "Makefile").read_text()
