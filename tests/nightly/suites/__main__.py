"""``PYTHONPATH=tests python -m nightly.suites``: test suites of others that import PyTorch, with the pytest plugin.

suites.toml says where they come from; none of them is in this repository, and none is changed. The table, in Markdown
on standard output, counts tests.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path

import click

from emugpu.cli.options import FiniteRange, NamedPath
from emugpu.cli.render import several
from emugpu.cli.verdicts import exit_code
from emugpu.errors import CannotRun
from emugpu.markdown import table
from emugpu.processes.engine import in_order
from tests.nightly.corpus.__main__ import FOLDER, OneCommand, checked, choose
from tests.nightly.corpus.fetching import get
from tests.nightly.corpus.table import projects
from tests.nightly.suites.rows import HERE, WORDS, Row, run_suite


@click.command("suites", cls=OneCommand)
@click.option("--project", "part", default="", help="Only projects whose name has this in it.")
@click.option("--match", default="", help="Only lines of the table that have this in them.")
@click.option("--python", default=sys.executable, show_default=True, help="The Python that has emugpu[torch].")
@click.option("--sources", type=FOLDER, required=True, help="The folder of the projects' code.")
@click.option("--answers", type=FOLDER, required=True, help="Keeps what became of each test; what it has stays.")
@click.option(
    "--limit", type=FiniteRange(0, min_open=True), default=900, show_default=True, help="Seconds for a line."
)  # fmt: skip
@click.option("--jobs", type=click.IntRange(1), default=1, show_default=True, help="Lines at a time.")
@click.option("--get", "gets", is_flag=True, help="Install packages and fetch code, first.")
@click.option("--json", "json_path", type=NamedPath(dir_okay=False, path_type=Path), help="Write every row there.")
@click.pass_context
def main(
    context: click.Context, part: str, match: str, python: str, sources: Path, answers: Path, limit: float, jobs: int,
    gets: bool, json_path: Path | None,
) -> None:  # fmt: skip
    """Run the test suites of others on the emulated GPU, with --check.

    Exit codes: as those of `emugpu verify`, for the most severe verdict on a test. If a line ran no test: 3.
    """
    sources, answers = sources.resolve(), answers.resolve()
    chosen, work = choose(projects(HERE / "suites.toml"), part, match)
    python = checked(python, sources, answers, json_path)
    answers.mkdir(parents=True, exist_ok=True)
    for project in chosen if gets else ():
        get(project, python, sources)
    job = partial(run_suite, python=python, sources=sources, answers=answers, limit=limit)
    click.echo(f"{several(len(work), 'line')} of the table, each within {limit:g} s", err=True)
    rows: list[Row] = []
    for row in in_order(job, work, jobs):
        rows.append(row)
        for reason in row.reasons:
            click.echo(reason, err=True)
    if json_path:
        json_path.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n", encoding="utf-8")
    for line in table(("suite", "tests", *WORDS, "seconds"), [row.cells() for row in rows]):
        click.echo(line)
    for row in rows:
        if not row.counts:
            raise CannotRun(f"{row.project}, {row.tests}: {row.ended}; {answers} has what pytest printed")
    context.exit(exit_code([word for row in rows for word in row.words]))


if __name__ == "__main__":
    main()
