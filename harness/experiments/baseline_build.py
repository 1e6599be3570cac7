"""Builds the baseline: the kernels of another commit, for a comparison in one session.

The other commit builds itself: in its own process, its harness picks defaults and compiles its kernels. This harness
then plans, runs, validates and times the resulting kernels of the build cache, so that both are measured in the same
way.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

from emugpu import cache
from emugpu.errors import CannotRun
from emugpu.paths import git
from emugpu.processes.program import run as run_program
from harness.compile.artifacts import Artifact
from harness.compile.config import KernelConfig
from harness.experiments.suite import SCHEMA, SuiteCase

BUILD_SECONDS = 1800

# The other commit's harness runs this text. It must only read a suite with one case, and refuse an option that it does
# not know. The last line of the output holds the results.
_PROGRAM = """
import json, sys
from importlib import import_module

def imported(*names):
    for name in names:  # the last ones are of older commits
        try:
            return import_module(name)
        except ModuleNotFoundError as error:
            if not name.startswith(error.name or "-"):
                raise
    raise ImportError(f"it has no {names[0]}")

load_suite = imported("harness.experiments.suite", "harness.bench.suite").load_suite
build = imported("harness.compile.artifacts", "harness.build.artifacts", "harness.compiler.build").build
planner = imported("harness.compile.planner", "harness.build.planner", "harness.config.planner").planner

asked, answers = json.load(sys.stdin), {}
configs = {}
for name, (text, arch) in asked["cases"].items():
    with open("case.toml", "w", encoding="utf-8") as file:
        file.write(text)
    try:
        [case] = load_suite("case.toml").cases
        configs[name] = case.config(arch)
    except Exception as error:
        answers[name] = {"error": str(error)}
for name, artifact in zip(configs, build(list(configs.values()))):
    roots = [artifact.config.sources.root] if hasattr(artifact.config, "sources") else []  # older ones know their root
    answers[name] = {"folder": str(artifact.folder), "planner": str(planner(*roots))}
print()
print(json.dumps(answers))
"""


def can_build(commit: str) -> bool:
    """Returns whether git has the sources of that commit."""
    return git("cat-file", "-e", f"{commit}:harness") is not None


def build_commit(commit: str, cases: Mapping[SuiteCase, KernelConfig]) -> dict[SuiteCase, Artifact | str]:
    """Returns the artifacts of these cases built by that commit, or the reason why there is none.

    ``cases`` maps each case to this checkout's configuration.
    """
    archive = _archive(commit)
    if archive is None:
        return dict.fromkeys(cases, f"git has no harness and kernels in commit {commit[:10]}")
    with cache.temporary_folder() as folder:
        _unpack(archive, folder)
        try:
            answers = _build_in(Path(folder), cases)
        except CannotRun as error:
            return dict.fromkeys(cases, f"commit {commit[:10]} could not be built: {error}")
    return {case: _artifact(commit, config, answers[case.id]) for case, config in cases.items()}


def _archive(commit: str) -> bytes | None:
    """Returns the sources of a commit. Older ones have no emugpu beside the harness."""
    parts = ("harness", "kernels")
    return git("archive", "--format=tar", commit, *parts, "emugpu") or git("archive", "--format=tar", commit, *parts)


def _unpack(archive: bytes, folder: str | Path) -> None:
    with tarfile.open(fileobj=BytesIO(archive)) as files:
        if hasattr(tarfile, "data_filter"):
            files.extractall(folder, filter="data")
        else:  # Python before 3.11.4; newer ones warn without the filter
            files.extractall(folder)


def _build_in(folder: Path, cases: Mapping[SuiteCase, KernelConfig]) -> dict[str, Any]:
    described = {case.id: (_suite_of(case), config.arch) for case, config in cases.items()}
    # Its own package comes first; this environment provides the other packages.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *filter(None, sys.path)])}
    try:
        asked = json.dumps({"cases": described})
        done = run_program([sys.executable, "-c", _PROGRAM], BUILD_SECONDS, asked, cwd=folder, env=environment)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotRun(str(error)) from error
    if done.returncode:
        raise CannotRun((done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1])
    return json.loads(done.stdout.splitlines()[-1])


def _suite_of(case: SuiteCase) -> str:
    """Returns a suite file with this case alone. Texts, numbers and booleans are the same in TOML as in JSON."""
    lines = [f"{name} = {json.dumps(value)}\n" for name, value in case.table().items()]
    return "".join([f"schema = {SCHEMA}\n[[cases]]\n", *lines])


def _artifact(commit: str, config: KernelConfig, answer: Mapping[str, Any]) -> Artifact | str:
    if "error" in answer:
        return f"commit {commit[:10]} cannot build it: {answer['error']}"
    return Artifact(config, Path(answer["folder"]), False, planner=Path(answer["planner"]))
