"""``python -m tests.nightly.max_board``: MAX's graph ops on an emulated GPU, with the checker on, against NumPy.

Answers are lines of JSON in a file; what the file has is not run again, so that a run can be broken off and taken up.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from emugpu.cli.program import ClearErrors
from emugpu.errors import UsageProblem
from tests.nightly.max_board.ops import OPS
from tests.nightly.max_board.worker import COMPILED

TOGETHER = 8
"""Ops that are compiled at once: a good part of the time is that of the first."""
Answers = list[dict[str, Any]]


class Board(ClearErrors, click.Command):
    """The command, with one line and an exit code for each error."""


@click.command("max_board", cls=Board)
@click.argument("answers", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--gpu", type=click.Choice(("b200", "h200", "h100")), default="b200", show_default=True)
@click.option("--part", default="1/1", show_default=True, help="Which ops: the first of seven parts is 1/7.")
@click.option("--match", default="", help="Only ops whose name has this in it.")
@click.option("--table", "only_table", is_flag=True, help="Run nothing, and show what the file has, of all GPUs.")
def main(answers: Path, gpu: str, part: str, match: str, only_table: bool) -> None:
    """Adds a verdict on each op, for several numbers of rows, to the file ANSWERS, and shows them as a table.

    Exit code 1: one that was run is not clean, and is not known to be so.
    """
    found = re.fullmatch(r"(\d+)/(\d+)", part)
    if not found or not 1 <= int(found[1]) <= int(found[2]):
        raise UsageProblem(f"--part {part!r}: must be a number, a slash and how many there are, for example 2/7")
    names = [name for name in OPS if match in name][int(found[1]) - 1 :: int(found[2])]
    if not names:
        raise UsageProblem(f"--match {match!r}: no op of part {part} has that in its name; shorten it, or leave it out")
    for first in range(0, 0 if only_table else len(names), TOGETHER):
        cover(names[first : first + TOGETHER], gpu, answers)
    told = [a for a in read(answers) if only_table or (a["gpu"] == gpu and a["op"] in names)]
    for line in table(told):
        click.echo(line)
    raise SystemExit(any(f"{a['gpu']} {a['verdict']}" not in (*OPS[a["op"]].known, f"{a['gpu']} clean") for a in told))


def cover(names: list[str], gpu: str, answers: Path) -> None:
    """Runs what has no answer yet in one process. If that dies as it compiles, the ops are tried in two halves, down to
    a single one; if it dies later, the others go on, whose compilation MAX has kept.
    """
    while left := still_left(names, gpu, answers):
        command = [sys.executable, "-m", "tests.nightly.max_board.worker", gpu, str(answers), json.dumps([names, left])]
        done = subprocess.run(command, stdout=sys.stderr, stderr=subprocess.PIPE, text=True, errors="replace")
        sys.stderr.write(done.stderr)
        if len(names) > 1 and COMPILED not in done.stderr:
            cover(names[: len(names) // 2], gpu, answers)
            cover(names[len(names) // 2 :], gpu, answers)
        elif done.returncode and (still := still_left(names, gpu, answers)):
            name, several = next(iter(still.items()))
            said = [line for line in done.stderr.splitlines() if line.strip()][-1:]
            why = f"MAX's process ended with code {done.returncode}: {''.join(said)[:200]}"
            answer = {"gpu": gpu, "op": name, "rows": several[0], "verdict": "incomplete", "kernels": []}
            with answers.open("a", encoding="utf-8") as file:
                file.write(json.dumps({**answer, "reasons": [["incomplete", why]], "worst": None}) + "\n")


def read(answers: Path) -> Answers:
    """Returns the answers that there are."""
    return [json.loads(line) for line in answers.read_text(encoding="utf-8").splitlines()] if answers.exists() else []


def still_left(names: list[str], gpu: str, answers: Path) -> dict[str, list[int]]:
    """Returns the numbers of rows without an answer, of the ops that have some."""
    known = {(a["op"], a["rows"]) for a in read(answers) if a["gpu"] == gpu}
    left = {name: [rows for rows in OPS[name].rows if (name, rows) not in known] for name in names}
    return {name: rows for name, rows in left.items() if rows}


def table(answers: Answers) -> Iterator[str]:
    """Yields a table in Markdown, and the first reason of each that is not clean."""
    gpus = sorted({a["gpu"] for a in answers})
    yield f"| op | rows | {' | '.join(gpus)} |"
    yield "|---" * (len(gpus) + 2) + "|"
    for name in OPS:
        of = [a for a in answers if a["op"] == name]
        seen = [Counter(a["verdict"] for a in of if a["gpu"] == gpu) for gpu in gpus]
        cells = [", ".join(f"{n} {w}" if len(words) > 1 else w for w, n in words.items()) for words in seen]
        if of:
            yield f"| {name} | {', '.join(map(str, sorted({a['rows'] for a in of})))} | {' | '.join(cells)} |"
    yield ""
    for a in answers:
        if a["verdict"] != "clean":
            yield f"{a['gpu']} {a['op']}, {a['rows']} rows: {a['verdict']}: {a['reasons'][0][1][:500]}"


if __name__ == "__main__":
    main()
