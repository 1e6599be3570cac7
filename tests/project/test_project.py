"""The files that set the project up: they agree with each other, and what they run works."""

from __future__ import annotations

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

from harness.compile.catalog import kernels_of
from harness.compile.config import make_config
from harness.extras import EXTRAS
from harness.paths import ROOT
from harness.problem import Shape

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EMUGPU = tomllib.loads((ROOT / "emugpu" / "pyproject.toml").read_text())["project"]
PIXI = tomllib.loads((ROOT / "pixi.toml").read_text())
TASKS = PIXI["tasks"] | {
    name: words for each in PIXI["feature"].values() for name, words in each.get("tasks", {}).items()
}
OF_EMUGPU = [name for name in EMUGPU["optional-dependencies"] if name != "torch"]  # which the GPU environment has
needs_make = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


def requirements(lines: list[str]) -> dict[str, str]:
    """``["max>=26.7,<26.8"]`` as ``{"max": ">=26.7,<26.8"}``."""
    return {re.match(r"[\w-]+", line).group(): line[re.match(r"[\w-]+", line).end() :] for line in lines}


def test_pixi_has_the_same_packages():
    """The extras that the tests need stand in the default environment as features of their own."""
    default = dict(PIXI["pypi-dependencies"])
    assert default.pop(PROJECT["name"]) == {"path": ".", "editable": True}
    assert default.pop("emugpu") == {"path": "emugpu", "editable": True}
    needed = requirements(PROJECT["dependencies"])
    del needed["emugpu"]
    assert default == needed | requirements(EMUGPU["dependencies"])
    optional = PROJECT["optional-dependencies"] | EMUGPU["optional-dependencies"]
    extras = {name: requirements(lines) for name, lines in optional.items()}
    assert extras["test"].pop(PROJECT["name"]) == f"[{','.join(EXTRAS)}]"
    assert extras["test"].pop("emugpu") == f"[{','.join(OF_EMUGPU)}]"
    assert {name: feature["pypi-dependencies"] for name, feature in PIXI["feature"].items()} == extras
    assert PIXI["dependencies"]["python"] == PROJECT["requires-python"]


def test_pixi_environments_use_features_that_exist():
    environments = {name: set(features) for name, features in PIXI["environments"].items()}
    assert set(environments) == {"default", "gpu", "modular", "docs"}
    extras = {*EXTRAS, *OF_EMUGPU}
    assert environments["default"] == {*extras, "test", "dev"} and environments["gpu"] == {*extras, "test", "torch"}
    assert all(features <= set(PIXI["feature"]) for features in environments.values())


def test_pixi_expects_the_c_library_that_the_wheels_need():
    assert PIXI["system-requirements"]["libc"]["family"] == "glibc"
    offered = tuple(int(part) for part in PIXI["system-requirements"]["libc"]["version"].split("."))
    for package in ("max", "max-core", "mojo-compiler"):
        tags = importlib.metadata.distribution(package).read_text("WHEEL")
        needed = re.search(r"manylinux_(\d+)_(\d+)", tags).groups()
        assert offered >= tuple(int(part) for part in needed), package


def make(*arguments: str) -> subprocess.CompletedProcess:
    # A make that runs the tests tells those it starts that they are inside of another one.
    environment = {
        name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")
    }
    return subprocess.run(["make", *arguments], cwd=ROOT, env=environment, capture_output=True, text=True)


JOBS = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[1].split()


def test_pixi_has_the_jobs_of_make():
    assert {job: f"make {job} READY=$CONDA_PREFIX" for job in JOBS} == TASKS


BIN = Path(sys.executable).parent
# What is added to a command so that a test can run it: it writes nothing into the checkout, and ends soon.
HARMLESS = {
    "bench": ["--filter", "kernel6 bf16 2x1 1024"],
    "test-quick": ["--collect-only", "tests/project/test_project.py"],
}


@needs_make
@pytest.mark.slow
@pytest.mark.parametrize("job", HARMLESS)
def test_jobs_work_in_an_environment_that_is_ready(job, artifacts):
    [command] = make("--dry-run", job, f"READY={BIN.parent}").stdout.splitlines()
    words = [*shlex.split(command), *HARMLESS[job]]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


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


def test_continuous_integration_runs_style_and_tests():
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    commands = [line for line in script.read_text().splitlines() if line and not line.startswith(("#", "set ", "cd "))]
    assert commands == ["python3 .ci/sizes.py", "make lint", "make test"]


WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def test_workflows_pin_their_actions_and_may_only_read():
    """But that of pull requests, which comments."""
    for path in WORKFLOWS:
        text = path.read_text()
        used = re.findall(r"uses: (?!\./$)(\S+)", text, re.MULTILINE)  # ./ is the action of this repository
        assert used and all(re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", action) for action in used), path
        granted = re.findall(r"^permissions:\n((?:  .*\n)+)", text, re.MULTILINE)
        assert granted == ["  contents: read\n" + "  pull-requests: write\n" * (path.stem == "bench")], path


def workflow(name: str) -> str:
    return (ROOT / ".github" / "workflows" / f"{name}.yml").read_text()


@needs_make
def test_workflows_make_what_the_makefile_has():
    targets = re.findall(r"run: make (\S+)$", workflow("tests") + workflow("nightly"), re.MULTILINE)
    assert set(targets) >= {"lint", "test"}
    for target in set(targets):
        plan = make("--dry-run", "--always-make", target)
        assert plan.returncode == 0 and "pip " in plan.stdout, plan.stderr


@pytest.mark.slow
def test_nightly_commands_are_there():
    """As a shell runs them, which has not what pytest puts on the path."""
    text = workflow("nightly")
    scripts = [[f"tests/mutation/{name}"] for name in re.findall(r"- (\w+\.py) --", text)]
    modules = [["-m", name] for name in sorted(set(re.findall(r"python -m (tests\.nightly\.\w+)", text)))]
    assert len(scripts) == 2 and len(modules) == 3
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    for command in (*scripts, *modules):
        done = subprocess.run(
            [sys.executable, *command, "--help"], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0 and done.stdout.startswith("Usage:"), done.stderr


def test_kernels_take_the_shapes_of_nightly_runs():
    shapes = re.findall(r"(?:run|verify) all --shape (\d+),(\d+),(\d+) ", workflow("nightly"))
    assert len(shapes) == 2
    for shape in shapes:
        for arch in ("sm_90a", "sm_100a"):
            for kernel in kernels_of(None):
                make_config(kernel, shape=Shape(*map(int, shape)), arch=arch)


def test_every_test_is_run_each_time_or_each_night():
    assert "-m 'not nightly'" in make("--dry-run", "test").stdout and "-m nightly\n" in workflow("nightly")
