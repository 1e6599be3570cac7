"""Runs one program of a project under all schedules, in a process of its own.

It is no part of ``__main__``, so that the worker processes of ``--jobs`` can import it.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

from emugpu.errors import UsageProblem
from emugpu.processes.program import run
from tests.nightly.corpus.kernels import Kernel, kernels_of
from tests.nightly.corpus.table import HERE, Program, Project
from tests.nightly.corpus.worker import SCHEDULES

ROOT = HERE.parents[2]


def verify(work: tuple[Project, Program], *, python: str, sources: Path, answers: Path, limit: float) -> list[Kernel]:
    """Returns the kernels of one program, with the verdict on each."""
    project, program = work
    name = re.sub(r"[^\w.=-]+", "_", f"{project.name} {program.name}")[:180]
    file = answers / f"{name}.jsonl"
    if not file.exists():
        where = sources / project.folder
        if not where.is_dir():
            raise UsageProblem(f"--sources {sources}: there is no folder {where}; fetch the code with --get")
        partial = file.with_suffix(".partial")
        partial.write_text("", encoding="utf-8")
        command = [python, str(HERE / "worker.py"), program.gpu, str(partial), *program.command]
        environment = _environment(project)
        with open(file.with_suffix(".log"), "wb") as log:
            try:
                ended = run(command, limit, cwd=where, env=environment, stdout=log, stderr=log)
                cause = f"it has ended with code {ended.returncode} before the last schedule"
            except subprocess.TimeoutExpired:
                cause = f"the limit of {limit:g} s"
        if len(partial.read_text(encoding="utf-8").splitlines()) < len(SCHEDULES):
            with open(partial, "a", encoding="utf-8") as kept:
                print(json.dumps({"incomplete": cause}), file=kept)
        partial.rename(file)
    lines = file.read_text(encoding="utf-8").splitlines()
    return kernels_of(project.name, program.name, [json.loads(line) for line in lines])


def _environment(project: Project) -> Mapping[str, str]:
    added = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", **dict(project.variables)}
    return {**os.environ, **added}
