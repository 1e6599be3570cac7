"""Runs one program of a project under all schedules, in a process of its own.

It is no part of ``__main__``, so that the worker processes of ``--jobs`` can import it.
"""

from __future__ import annotations

from pathlib import Path

from tests.nightly.corpus.kernels import Kernel, kernels_of
from tests.nightly.corpus.records import Ended, Lines, record_of
from tests.nightly.corpus.table import HERE, Program, Project
from tests.nightly.corpus.worker import SCHEDULES

ROOT = HERE.parents[2]


def verify(work: tuple[Project, Program], *, python: str, sources: Path, answers: Path, limit: float) -> list[Kernel]:
    """Returns the kernels of one program, with the verdict on each."""
    project, program = work

    def start(record: Path) -> tuple[list[str], dict[str, str]]:
        words = [python, str(HERE / "worker.py"), program.gpu, str(record)]
        return words, {"PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}

    def finish(lines: Lines, ended: Ended) -> Lines:
        cause = f"it has ended with code {ended.code} before the last schedule"
        if ended.code is None:
            cause = f"the limit of {limit:g} s"
        return [{"incomplete": cause}] if len(lines) < len(SCHEDULES) else []

    _, lines = record_of(work, start, finish, sources=sources, answers=answers, limit=limit)
    return kernels_of(project.name, program.name, lines)
