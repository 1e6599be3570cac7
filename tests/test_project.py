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

import pytest

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
    assert {"default", "torch", "modular"} <= set(PIXI["environments"])
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
    assert set(pixi_tasks()) == {"run", "list", "doctor", "test"}


@pytest.mark.parametrize("name", sorted(pixi_tasks()))
def test_pixi_tasks_work(name, artifacts):
    program, *arguments = shlex.split(pixi_tasks()[name])
    if program == "pytest":
        arguments.append("--collect-only")  # this is the run of the tests
    done = subprocess.run(
        [sys.executable, "-m", program, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr


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
    plan = make("--dry-run", "test", f"VENV={environment}").stdout
    assert "install --editable '.[test]'" in plan
    assert f"{environment}/bin/python -m {PIXI['feature']['test']['tasks']['test']}" in plan


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
    assert commands == ["make test"]
