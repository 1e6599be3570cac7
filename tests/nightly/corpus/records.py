"""Runs a line of a table once, in a process of its own, and keeps what it writes: lines of JSON."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from emugpu.errors import UsageProblem
from emugpu.processes.program import run
from tests.nightly.corpus.table import Program, Project

Lines = list[dict[str, Any]]
Start = Callable[[Path], tuple[Sequence[str], Mapping[str, str]]]
"""From the file to which a process writes its lines: the command before that of the program, and its variables."""


@dataclass(frozen=True)
class Ended:
    """How a process has ended, after how many seconds. ``code`` is its exit code, or None if the limit ended it."""

    code: int | None
    seconds: float


def record_of(
    work: tuple[Project, Program], start: Start, finish: Callable[[Lines, Ended], Lines], *, sources: Path,
    answers: Path, limit: float,
) -> tuple[Path, Lines]:  # fmt: skip
    """Returns the record of a program and its lines. A program that has one in ``answers`` does not run again.

    ``finish`` returns the lines to be added when the process has ended. Beside the record is a log of what it printed.
    """
    project, program = work
    name = re.sub(r"[^\w.=-]+", "_", f"{project.name} {program.name}")[:180]
    record = answers / f"{name}.jsonl"
    if record.exists():
        return record, _lines(record)
    where = sources / project.folder
    if not where.is_dir():
        raise UsageProblem(f"--sources {sources}: there is no folder {where}; fetch the code with --get")
    partial = record.with_suffix(".partial")
    partial.write_text("", encoding="utf-8")
    words, variables = start(partial)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables, **dict(project.variables)}
    command = [*words, *program.command]
    begun, code = time.monotonic(), None
    with open(record.with_suffix(".log"), "wb") as log, contextlib.suppress(subprocess.TimeoutExpired):
        code = run(command, limit, cwd=where, env=environment, stdout=log, stderr=log).returncode
    added = finish(_lines(partial), Ended(code, time.monotonic() - begun))
    with open(partial, "a", encoding="utf-8") as kept:
        kept.writelines(f"{json.dumps(line)}\n" for line in added)
    partial.rename(record)
    return record, _lines(record)


def _lines(file: Path) -> Lines:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
