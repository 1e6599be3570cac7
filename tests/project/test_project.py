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

from harness.cli.main import main
from harness.compile.catalog import kernels_of
from harness.compile.config import make_config
from harness.extras import EXTRAS
from harness.paths import ROOT
from harness.problem import Shape

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
    assert {name: feature["pypi-dependencies"] for name, feature in PIXI["feature"].items()} == extras
    assert PIXI["dependencies"]["python"] == PROJECT["requires-python"]


def test_pixi_environments_use_features_that_exist():
    environments = {name: set(features) for name, features in PIXI["environments"].items()}
    assert set(environments) == {"default", "gpu", "modular", "docs"}
    assert environments["default"] == {*EXTRAS, "test", "dev"} and environments["gpu"] == {*EXTRAS, "test", "torch"}
    assert all(features <= set(PIXI["feature"]) for features in environments.values())


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
    # A make that runs the tests tells those it starts that they are inside of another one.
    environment = {
        name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")
    }
    return subprocess.run(["make", *arguments], cwd=ROOT, env=environment, capture_output=True, text=True)


@needs_make
@pytest.mark.parametrize(
    ("job", "extras"),
    [
        ("run", ""),
        ("bench", "[bench,report,sweep]"),
        ("report", "[bench,report,sweep]"),
        ("test", "[test]"),
        ("test-quick", "[test]"),
        ("test-gpu", "[test,torch]"),
        ("lint", "[test,dev]"),
        ("fmt", "[test,dev]"),
        ("docs", "[docs]"),
    ],
)
def test_make_installs_what_a_job_needs_and_says_so(tmp_path, job, extras):
    plan = make("--dry-run", job, f"VENV={tmp_path / 'venv'}").stdout
    assert f"-m venv {tmp_path}/venv" in plan and f'echo "Installing .{extras} into ' in plan
    assert f"--editable '.{extras}'" in plan
    named = extras.strip("[]").split(",") if extras else []
    assert set(named) <= set(PROJECT["optional-dependencies"])


JOBS = {
    "run": ["python -m harness run kernel6"],
    "bench": ["python -m harness bench"],
    "report": ["python -m harness report"],
    "test": ["python -m pytest -n 2 --dist loadgroup --quiet -m 'not nightly'"],
    "test-quick": ["python -m pytest -n 2 --dist loadgroup --quiet -m 'not slow and not nightly'"],
    "test-gpu": ["python -m pytest -m gpu --quiet"],
    "docs": ["python -m mkdocs build --strict"],
    "lint": [
        "ruff check .",
        "ruff format --check .",
        "mblack --check --quiet --preview --line-length 120 kernels",
        "mypy",
        "lint-imports",
    ],
    "fmt": ["ruff check --fix .", "ruff format .", "mojo format --quiet --line-length 120 kernels"],
}


def test_pixi_has_the_jobs():
    assert set(TASKS) == set(JOBS)
    assert set(JOBS) == set(re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[1].split())


@needs_make
@pytest.mark.parametrize("task", TASKS)
def test_a_task_of_pixi_is_the_job_of_make_in_an_environment_that_is_ready(tmp_path, task):
    assert TASKS[task] == f"make {task} READY=$CONDA_PREFIX"
    plan = make("--dry-run", task, f"READY={tmp_path}", f"VENV={tmp_path / 'venv'}")
    assert plan.returncode == 0 and f"{tmp_path}/bin/" in plan.stdout and "venv" not in plan.stdout


BIN = Path(sys.executable).parent


def commands_of(job: str) -> list[str]:
    """What a job runs with the programs beside this Python, without the variables that it sets."""
    lines = make("--dry-run", job, f"READY={BIN.parent}").stdout.splitlines()
    return [line[line.index(f" {BIN}/") + 1 :] if line.startswith("PATH=") else line for line in lines]


@needs_make
@pytest.mark.parametrize("job", JOBS)
def test_a_job_runs_what_it_is_for(job):
    assert [command.removeprefix(f"{BIN}/") for command in commands_of(job)] == JOBS[job]


# What is added to a command so that a test can run it: it writes nothing into the checkout, and ends soon.
HARMLESS = {
    "run": [],
    "bench": ["--filter", "kernel6 bf16 2x1 1024"],
    "report": ["--help"],  # it needs a history; tests/harness/report/test_report_page.py runs it
    "test": ["--collect-only", "tests/run"],  # this is the run of the tests
    "test-quick": ["--collect-only", "tests/run"],
    "test-gpu": ["--collect-only", "tests/run"],
}


@needs_make
@pytest.mark.parametrize("job", HARMLESS)
def test_jobs_work(job, artifacts):
    [command] = commands_of(job)
    words = [*shlex.split(command), *HARMLESS[job]]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


@needs_make
@pytest.mark.parametrize("job", ["lint", "fmt"])
def test_style_jobs_work(job, tmp_path):
    """On a copy, as fmt writes. What they say about the checkout is up to `make lint`."""
    for folder in ("kernels", "harness"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for program, *arguments in map(shlex.split, commands_of(job)):
        if not Path(program).exists():
            pytest.skip(f"{program} is not installed (pip install -e '.[dev]')")
        if Path(program).name in ("mypy", "lint-imports"):
            assert not arguments
            arguments = ["--help"]  # the checks themselves take half a minute
        done = subprocess.run([program, *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=300)
        # 1: ruff and mblack have something to say about the style; 2 and more: the command itself is wrong.
        assert done.returncode <= (Path(program).name in ("ruff", "mblack")), done.stdout + done.stderr


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
    assert commands == ["make lint", "make test"]


def test_pre_commit_checks_what_lint_checks():
    entries = re.findall(r"entry: (.*)", (ROOT / ".pre-commit-config.yaml").read_text())
    assert entries == ["make lint"]


WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_are_pinned_and_cached(path):
    text = path.read_text()
    used = re.findall(r"uses: (?!\./$)(\S+)(.*)", text, re.MULTILINE)  # ./ is the action of this repository
    assert used
    for action, comment in used:
        assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", action), action
        assert re.fullmatch(r" # v\d+\.\d+\.\d+", comment), action
    assert "cache: pip" in text


def workflow(name: str) -> str:
    return (ROOT / ".github" / "workflows" / f"{name}.yml").read_text()


@needs_make
@pytest.mark.parametrize("name", ["tests", "nightly"])
def test_workflows_make_what_the_makefile_has(name):
    targets = re.findall(r"run: make (\S+)$", workflow(name), re.MULTILINE)
    assert targets
    for target in targets:
        plan = make("--dry-run", "--always-make", target)
        assert plan.returncode == 0 and "pip " in plan.stdout, plan.stderr


def test_nightly_commands_are_there():
    """As a shell runs them, which has not what pytest puts on the path."""
    text = workflow("nightly")
    scripts = [[f"tests/mutation/{name}"] for name in re.findall(r"- (\w+\.py) --", text)]
    modules = [["-m", name] for name in sorted(set(re.findall(r"python -m (tests\.nightly\.\w+)", text)))]
    assert len(scripts) == 2 and len(modules) == 2
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    for command in (*scripts, *modules):
        done = subprocess.run(
            [sys.executable, *command, "--help"], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0 and done.stdout.startswith("Usage:"), done.stderr


def test_kernels_take_the_shapes_of_nightly_runs():
    shapes = re.findall(r"(?:run|check) all --shape (\d+),(\d+),(\d+) ", workflow("nightly"))
    assert len(shapes) == 2
    for shape in shapes:
        for arch in ("sm_90a", "sm_100a"):
            for kernel in kernels_of(None):
                make_config(kernel, shape=Shape(*map(int, shape)), arch=arch)


def test_a_workflow_runs_style_tests_and_pages():
    assert re.findall(r"- run: (.*)", workflow("tests")) == ["make lint", "make test", "make docs"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_may_read_and_only_that_of_pull_requests_may_comment(path):
    granted = re.findall(r"^permissions:\n((?:  .*\n)+)", path.read_text(), re.MULTILINE)
    assert granted == ["  contents: read\n" + "  pull-requests: write\n" * (path.stem == "bench")]
    assert path.read_text().count("permissions:") == 1 and "write-all" not in path.read_text()


def test_only_a_token_that_may_write_comments():
    text = workflow("bench")
    step = text[text.index("- name: Comment with the table") : text.index("- name: Fail on a regression")]
    condition = re.search(r" if: >-\n(.*?)\n +env:", step, re.DOTALL)[1].split()
    assert " ".join(condition) == (
        "github.event.pull_request.head.repo.full_name == github.repository && github.actor != 'dependabot[bot]'"
    )
    assert "--body-file out/comment.md" in step and "steps.artifact.outputs.artifact-url" in step
    assert text.index("upload-artifact") < text.index("gh pr comment")


def test_every_test_is_run_each_time_or_each_night():
    assert "-m 'not nightly'" in make("--dry-run", "test").stdout and "-m nightly\n" in workflow("nightly")


@pytest.mark.parametrize("line", re.findall(r"- ((?:run|check) all .*)", workflow("nightly")))
def test_the_nightly_commands_are_understood(line):
    done = CliRunner().invoke(main, [*line.split(), "1000", "--arch", "sm_90a", "--jobs", "4", "--help"])
    assert done.exit_code == 0, done.output
