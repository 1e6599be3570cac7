"""The baseline build: the kernels of another commit, which a change is compared with in one session.

The other commit builds itself: its own harness picks defaults and compiles its own kernels, in a process of its own.
What comes of it, programs and MAX models in the build cache, is then run, validated and timed by this harness, so that
both are measured in the same way.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from dataclasses import asdict
from io import BytesIO
from pathlib import Path
from typing import Any

from harness import cache
from harness.build.artifacts import Artifact
from harness.build.config import KernelConfig
from harness.errors import CannotRun
from harness.experiments.suite import Case
from harness.git import git
from harness.problem.shape import Shape
from harness.processes.program import run as run_program

BUILD_SECONDS = 1800

# Run by the other commit's harness, of which it asks little. A case with an option which that harness does not know is
# not built, unless it leaves the option alone. The answers are the last line.
_PROGRAM = """
import dataclasses, json, sys
try:
    from harness.experiments import suite
    from harness.build.artifacts import build
    from harness.build.planner import planner
    from harness.run.model import compile_artifact
except ImportError:  # the commit is older than these packages
    from harness.bench import suite
    from harness.compiler.build import build
    from harness.config.planner import planner
    from harness.gpu.model import compile_artifact

asked, answers = json.load(sys.stdin), {}
known = {field.name: field for field in dataclasses.fields(suite.Case)}

def case_of(values):
    values["shape"] = suite.parse_shape(values["shape"])
    for name in ("cluster", "mma_shape"):
        values[name] = values[name] and tuple(values[name])
    for name in [name for name in values if name not in known]:
        if values.pop(name):
            raise ValueError(f"it has no {name}")
    return suite.Case(**values)

configs = {}
for name, (values, arch) in asked["cases"].items():
    try:
        configs[name] = case_of(values).config(arch)
    except Exception as error:
        answers[name] = {"error": str(error)}
for name, artifact in zip(configs, build(list(configs.values()))):
    answers[name] = {"folder": str(artifact.folder), "planner": str(planner())}
    if asked["models"]:
        answers[name]["model"] = str(compile_artifact(configs[name])[0])
print()
print(json.dumps(answers))
"""


def can_build(commit: str) -> bool:
    """Tells whether git has that commit's sources at hand."""
    return git("cat-file", "-e", f"{commit}:harness") is not None


def build_commit(commit: str, cases: Mapping[Case, KernelConfig], *, models: bool) -> dict[Case, Artifact | str]:
    """Returns the artifacts of these cases as that commit builds them, or the reason why there is none.

    cases: with what this checkout makes of them. models: whether to compile them for MAX, too.
    """
    archive = git("archive", "--format=tar", commit, "harness", "kernels")
    if archive is None:
        return dict.fromkeys(cases, f"git has no harness and kernels in commit {commit[:10]}")
    with cache.temporary_folder() as folder:
        _unpack(archive, folder)
        try:
            answers = _build_in(Path(folder), cases, models)
        except CannotRun as error:
            return dict.fromkeys(cases, f"commit {commit[:10]} could not be built: {error}")
    return {case: _artifact(commit, config, answers[case.id]) for case, config in cases.items()}


def _unpack(archive: bytes, folder: str | Path) -> None:
    with tarfile.open(fileobj=BytesIO(archive)) as files:
        if hasattr(tarfile, "data_filter"):
            files.extractall(folder, filter="data")
        else:  # Python before 3.11.4; newer ones warn without the filter
            files.extractall(folder)


def _build_in(folder: Path, cases: Mapping[Case, KernelConfig], models: bool) -> dict[str, Any]:
    described = {
        case.id: (asdict(case) | {"shape": _words(case.shape), "check": False}, config.arch)
        for case, config in cases.items()
    }
    # Its own package first; what it needs besides comes from this environment.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *filter(None, sys.path)])}
    try:
        asked = json.dumps({"cases": described, "models": models})
        done = run_program([sys.executable, "-c", _PROGRAM], BUILD_SECONDS, asked, cwd=folder, env=environment)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotRun(str(error)) from error
    if done.returncode:
        raise CannotRun((done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1])
    return json.loads(done.stdout.splitlines()[-1])


def _words(shape: Shape) -> str:
    return f"{shape.m},{shape.n},{shape.k}"


def _artifact(commit: str, config: KernelConfig, answer: Mapping[str, Any]) -> Artifact | str:
    if "error" in answer:
        return f"commit {commit[:10]} cannot build it: {answer['error']}"
    model = Path(answer["model"]) if "model" in answer else None
    return Artifact(config, Path(answer["folder"]), False, model=model, planner=Path(answer["planner"]))
