"""``PYTHONPATH=tests python -m nightly.corpus``: the newest public kernels under `emugpu verify`.

corpus.toml says where their code comes from; none of it is in this repository. Each program runs under three schedules.
The table counts kernels: the functions on the GPU that the programs of a project have launched.
"""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path

import click
from rich.console import Console

from emugpu.cli.options import FiniteRange, NamedPath, check_folder, check_output
from emugpu.cli.program import ClearErrors
from emugpu.cli.render import several, show_table
from emugpu.cli.verdicts import exit_code
from emugpu.errors import UsageProblem
from emugpu.processes.engine import in_order
from tests.nightly.corpus.fetching import get
from tests.nightly.corpus.kernels import SEVERITY, Kernel
from tests.nightly.corpus.table import Program, Project, projects
from tests.nightly.corpus.verification import verify

WORDS = ("clean", "warned", "racy", "wrong", "hung", "incomplete")


class OneCommand(ClearErrors, click.Command):
    """The command, with one line and an exit code for each error."""


FOLDER = NamedPath(file_okay=False, path_type=Path)


@click.command("corpus", cls=OneCommand)
@click.option("--project", "part", default="", help="Only projects whose name has this in it.")
@click.option("--match", default="", help="Only programs whose command has this in it.")
@click.option("--python", default=sys.executable, show_default=True, help="The Python that has the packages.")
@click.option("--sources", type=FOLDER, required=True, help="The folder of the projects' code.")
@click.option("--answers", type=FOLDER, required=True, help="Keeps each answer; what it has stays.")
@click.option(
    "--limit", type=FiniteRange(0, min_open=True), default=300, show_default=True,
    help="Seconds for a program under all schedules.",
)  # fmt: skip
@click.option("--jobs", type=click.IntRange(1), default=1, show_default=True, help="Programs at a time.")
@click.option("--get", "gets", is_flag=True, help="Fetch and build what is missing, first.")
@click.option("--json", "json_path", type=NamedPath(dir_okay=False, path_type=Path), help="Write every kernel there.")
@click.pass_context
def main(
    context: click.Context, part: str, match: str, python: str, sources: Path, answers: Path, limit: float, jobs: int,
    gets: bool, json_path: Path | None,
) -> None:  # fmt: skip
    """Verify the newest public kernels.

    Exit codes: as those of `emugpu verify`, for the most severe verdict on a kernel.
    """
    sources, answers = sources.resolve(), answers.resolve()
    chosen, work = choose(projects(), part, match)
    python = checked(python, sources, answers, json_path)
    answers.mkdir(parents=True, exist_ok=True)
    for project in chosen if gets else ():
        get(project, python, sources, ["--no-deps"])
    job = partial(verify, python=python, sources=sources, answers=answers, limit=limit)
    click.echo(f"{several(len(work), 'program')}, each within {limit:g} s", err=True)
    kernels: list[Kernel] = []
    for found in in_order(job, work, jobs):
        for kernel in found:
            kernels.append(kernel)
            click.echo(f"{kernel.word:10} {kernel.program[:70]:70} {kernel.name[:50]}  {kernel.why[:200]}")
    kernels = _merged(kernels)
    if json_path:
        json_path.write_text(json.dumps([asdict(kernel) for kernel in kernels], indent=1) + "\n", encoding="utf-8")
    _show(chosen, kernels)
    context.exit(exit_code([kernel.word for kernel in kernels]))


def choose(table: list[Project], part: str, match: str) -> tuple[list[Project], list[tuple[Project, Program]]]:
    """Returns the projects that ``--project`` and ``--match`` name, and their programs. Refuses to name none."""
    chosen = [project for project in table if part.lower() in project.name.lower()]
    if not chosen:
        names = ", ".join(project.name for project in table)
        raise UsageProblem(f"--project {part!r}: no project has that in its name; they are {names}")
    work = [(project, program) for project in chosen for program in project.programs if match in program.name]
    if not work:
        raise UsageProblem(f"--match {match!r}: no program's command has that in it; shorten it, or leave it out")
    return list(dict.fromkeys(project for project, _ in work)), work


def checked(python: str, sources: Path, answers: Path, json_path: Path | None) -> str:
    """Returns the path of Python. Refuses what cannot be run or written, before the work is done."""
    found = shutil.which(python)
    if found is None:
        raise UsageProblem(f"--python {python}: there is no such program; name a Python that has the packages")
    check_folder(sources, "--sources")
    check_folder(answers, "--answers")
    check_output(json_path and str(json_path), "--json", "name another file")
    return str(Path(found).absolute())


def _merged(kernels: list[Kernel]) -> list[Kernel]:
    """Returns each kernel of a project once, with the most severe of its verdicts."""
    found: dict[tuple[str, str], Kernel] = {}
    for kernel in kernels:
        key = (kernel.project, kernel.identity)
        if key not in found or SEVERITY.index(kernel.word) > SEVERITY.index(found[key].word):
            found[key] = kernel
    return list(found.values())


def _show(chosen: list[Project], kernels: list[Kernel]) -> None:
    rows = []
    for name, own in [(project.name, [k for k in kernels if k.project == project.name]) for project in chosen]:
        counts = [sum(kernel.word == word for kernel in own) for word in WORDS]
        rows.append([name, str(len(own)), *(str(count or "") for count in counts)])
    counts = [sum(kernel.word == word for kernel in kernels) for word in WORDS]
    rows.append(["all", str(len(kernels)), *(str(count or "") for count in counts)])
    show_table(Console(), "the newest public kernels", ("project", "tried", *WORDS), rows)


if __name__ == "__main__":
    main()
