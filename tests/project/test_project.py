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
from harness.errors import EXTRAS
from harness.paths import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PIXI = tomllib.loads((ROOT / "pixi.toml").read_text())


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
    assert {"default", "docs", "gpu", "modular"} == set(PIXI["environments"])
    assert {"torch", "test"} <= set(PIXI["environments"]["gpu"])
    assert "torch" not in PIXI["environments"]["default"]
    for features in PIXI["environments"].values():
        assert set(features) <= set(PIXI["feature"])


def test_the_default_install_is_light():
    names = set(requirements(PROJECT["dependencies"]))
    assert names == {"max", "numpy", "click", "rich", "ml_dtypes", "platformdirs"}
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
    jobs |= {"docs"}
    assert set(pixi_tasks()) == jobs
    environment = PIXI["environments"]["default"]
    for feature, content in PIXI["feature"].items():
        if "tasks" in content and feature not in ("torch", "docs"):
            assert feature in environment, "every job but test-gpu and docs runs in the default environment"
    assert "torch" in PIXI["environments"]["gpu"]


# What is added to a command so that a test can run it: it writes nothing into the checkout, and ends soon.
HARMLESS = {
    "harness bench": ["--filter", "kernel6 bf16 2x1 1024"],
    "harness compare": ["--shape", "256,256,64"],
    "harness report": ["--help"],  # it needs a history; tests/test_report_page.py runs it
    "pytest": ["--collect-only"],  # this is the run of the tests
}


@pytest.mark.parametrize("name", sorted(set(pixi_tasks()) - {"lint", "fmt", "docs"}))
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
    for folder in ("kernels", "harness", "metrology"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    commands = [shlex.split(command) for command in pixi_tasks()[name].split(" && ")]
    assert [command[0] for command in commands] == {
        "lint": ["ruff", "ruff", "mblack", "mypy", "lint-imports"],
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
        plan = make("--dry-run", job, f"VENV={environment}").stdout
        assert "install --editable '.[bench,report,sweep]'" in plan
        assert f"{environment}/bin/python -m {pixi_tasks()[job]}" in plan
    plan = make("--dry-run", "docs", f"VENV={environment}").stdout
    assert "install --editable '.[docs]'" in plan
    assert f"{environment}/bin/python -m {pixi_tasks()['docs']}\n" in plan
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
    for target in re.findall(r"run: make (\S+)", text):
        assert f"\n{target}:" in (ROOT / "Makefile").read_text()


def test_a_workflow_runs_lint_and_tests():
    text = (ROOT / ".github" / "workflows" / "tests.yml").read_text()
    assert re.findall(r"- run: (.*)", text) == ["make lint", "make test"]
    assert "contents: read" in text and "write" not in text


def test_only_a_token_that_may_write_comments():
    text = (ROOT / ".github" / "workflows" / "bench.yml").read_text()
    step = text[text.index("- name: Comment with the table") : text.index("- name: Fail on a regression")]
    assert "head.repo.full_name == github.repository" in step and "github.actor != 'dependabot[bot]'" in step
    assert "--body-file out/comment.md" in step and "steps.artifact.outputs.artifact-url" in step
    assert text.index("upload-artifact") < text.index("gh pr comment")


FAKE_HARNESS = """#!/bin/sh
echo "$@" >> "{folder}/calls"
for word in "$@"; do
    case "$last" in
    --save-baseline)
        mkdir -p "$HARNESS_RESULTS_DIR"
        echo '{{"schema":1,"baseline":"base"}}' >> "$HARNESS_RESULTS_DIR/baselines.jsonl" ;;
    --markdown) echo "### Benchmark" > "$word" ;;
    --json | --junit) echo "{{}}" > "$word" ;;
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


@needs_make
@pytest.mark.parametrize("code", [0, 1, 4])
def test_the_workflow_compares_the_change_with_the_base(tmp_path, code):
    base, change = fake_checkout(tmp_path / "base", 0), fake_checkout(tmp_path / "change", code)
    assert compare_in_workflow(tmp_path, base, change) == (code, "### Benchmark\n")
    assert (base / "calls").read_text() == "bench --save-baseline base\n"
    assert (change / "calls").read_text().startswith("bench --baseline base --markdown ")
    help_text = CliRunner().invoke(harness.cli.main.main, ["bench", "--help"]).stdout
    for option in re.findall(r"--[a-z-]+", (base / "calls").read_text() + (change / "calls").read_text()):
        assert option in help_text


@needs_make
def test_the_workflow_reports_a_base_that_fails(tmp_path):
    base, change = fake_checkout(tmp_path / "base", 0, makes=False), fake_checkout(tmp_path / "change", 0)
    code, comment = compare_in_workflow(tmp_path, base, change)
    assert code == 0
    assert "The base could not be measured" in comment and "no compiler" in comment and "### Benchmark" in comment
    assert "--baseline" not in (change / "calls").read_text()


@needs_make
def test_the_workflow_reports_a_change_that_fails(tmp_path):
    base, change = fake_checkout(tmp_path / "base", 0), fake_checkout(tmp_path / "change", 0, makes=False)
    (change / "Makefile").write_text(".venv/installed:\n\t@seq 100000; false\n")
    code, comment = compare_in_workflow(tmp_path, base, change)
    assert code == 2
    assert "**The change could not be measured** (exit code 2)" in comment and len(comment) < 7000


def test_pre_commit_checks_what_lint_checks():
    entries = re.findall(r"entry: (.*)", (ROOT / ".pre-commit-config.yaml").read_text())
    recipe = (ROOT / "Makefile").read_text().split("\nlint:")[1].split("\n\n")[0]
    assert entries == [line.strip().replace("$(VENV)", ".venv") for line in recipe.splitlines()[1:]]


def test_every_environment_variable_is_documented():
    used = {
        name for path in (ROOT / "harness").rglob("*.py") for name in re.findall(r"HARNESS_[A-Z_]+", path.read_text())
    }
    named = set(re.findall(r"`(HARNESS_[A-Z_]+)`", (ROOT / "docs" / "command-line.md").read_text()))
    assert used == named


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shell_completion(shell):
    words = [sys.executable, "-c", "from harness.__main__ import entry; entry()"]

    def answer(**variables: str) -> str:
        environment = {**os.environ, **variables}
        return subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout

    script = answer(_HARNESS_COMPLETE=f"{shell}_source")
    assert f"_HARNESS_COMPLETE={shell}_complete" in script
    typed = {"COMP_WORDS": "harness run --schedule-", "COMP_CWORD": "--schedule-" if shell == "fish" else "2"}
    assert "--schedule-seed" in answer(_HARNESS_COMPLETE=f"{shell}_complete", **typed)


def test_the_commands_of_the_readme_leave_the_checkout_clean():
    """What they write is ignored by git, or goes elsewhere."""
    text = (ROOT / "README.md").read_text()
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    written = re.findall(r"^    harness [^#\n]*?(?: -o| --output| --json| --dump) ([\w./]+)", text, re.MULTILINE)
    assert "plan.svg" in written
    for path in [*written, "report/index.html"]:
        assert subprocess.run(["git", "check-ignore", "--quiet", path], cwd=ROOT).returncode == 0, path
