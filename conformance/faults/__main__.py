"""The commands that measure the programs, and show what was measured."""

from __future__ import annotations

import os
import time
from difflib import get_close_matches
from itertools import count
from pathlib import Path
from typing import Any

import click

from conformance import gpu
from conformance.faults import measure, sanitizer
from conformance.faults.checker import verdict
from conformance.faults.programs import by_id, write
from conformance.faults.results import read
from conformance.faults.table import lines
from emugpu.cli.options import FiniteRange, NamedPath, check_folder, check_output
from emugpu.cli.program import ClearErrors
from emugpu.cli.render import progress_bar, several
from emugpu.errors import EXIT_FINDINGS, EXIT_OK, UsageProblem


class Group(ClearErrors, click.Group):
    """A group whose errors are one line."""


class ProgramName(click.ParamType[str]):
    """The name of a program. The error names the nearest ones, not all."""

    name = "program"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if value in by_id():
            return str(value)
        nearest = ", ".join(get_close_matches(value, by_id(), cutoff=0))
        self.fail(f"there is no program {value!r}; the nearest names are {nearest}", param, ctx)


def _file(path: Path) -> Path:
    if path.suffix != ".json":
        raise UsageProblem(f"{path} is no FILE.json, which comes before the programs; name one that ends in .json")
    check_output(str(path), "FILE.json", "name another one")
    return path


RESULTS = click.argument("file", metavar="FILE.json", type=NamedPath(dir_okay=False, path_type=Path))
NAMES = click.argument("names", nargs=-1, metavar="[PROGRAM]...", type=ProgramName())


@click.group("conformance.faults", cls=Group)
def main() -> None:
    """Show what a GPU, compute-sanitizer and the checker say of small wrong programs and their right twins.

    Each part adds its results to the same file.
    """


@main.command("gpu")
@RESULTS
@NAMES
@click.option("--launches", type=click.IntRange(1), default=1000, show_default=True, help="Launches of each program.")
@click.option("--sanitizer", "given", metavar="PATH", help="compute-sanitizer, if it is not on the PATH.")
@click.option(
    "--hang", type=FiniteRange(0, min_open=True), default=5, show_default=True, help="Seconds that a launch may take."
)
@click.option(
    "--budget", type=FiniteRange(0, min_open=True), default=300, show_default=True, help="Seconds for everything."
)
@click.option(
    "--jobs",
    type=click.IntRange(1),
    default=os.cpu_count() or 1,
    show_default="one a core",
    help="Processes at a time.",
)
def gpu_command(
    file: Path, names: tuple[str, ...], launches: int, given: str | None, hang: float, budget: float, jobs: int
) -> int:
    """Launch all programs, or the named ones, on a GPU, alone and under the four tools of compute-sanitizer.

    Exit codes: 0 all were run, 1 the time was too short for some, 2 usage, 3 there is no GPU.
    """
    start = time.monotonic()
    results, tool, machine = read(_file(file)), sanitizer.find(given), gpu.describe()
    if machine["compute_capability"] != "9.0":
        raise UsageProblem(
            f"{machine['gpu']} has compute capability {machine['compute_capability']}; these are for 9.0"
        )
    results.forget(names, "gpu", *sanitizer.TOOLS)
    results.about["gpu"] = {**machine, "launches": launches, "seconds_of_a_hang": hang}
    results.about["sanitizer"] = {
        "version": sanitizer.version(tool) if tool else None,
        "launches": measure.UNDER_A_TOOL,
    }
    print(f"{machine['gpu']}, driver {machine['driver']}; compute-sanitizer {results.about['sanitizer']['version']}")
    how = measure.GpuRun(names or tuple(by_id()), launches, hang, budget, jobs, tool)
    total, ended = len(how.jobs()), count(1)
    with progress_bar("launching", "runs") as progress:

        def keep(job: measure.Job, found: dict[str, Any]) -> None:
            results.keep(job.id, job.column, found)
            progress(next(ended), total)

        missed = measure.run_all(how, keep, results.save)
    print(f"{total - missed} runs in {time.monotonic() - start:.0f} s, {missed} not started in time")
    return EXIT_FINDINGS if missed else EXIT_OK


@main.command("check")
@RESULTS
@NAMES
@click.option("--schedules", type=click.IntRange(1), default=3, show_default=True, help="Schedules of each program.")
def check_command(file: Path, names: tuple[str, ...], schedules: int) -> int:
    """Check all programs, or the named ones, as `emugpu verify` does; needs no GPU."""
    results = read(_file(file))
    results.forget(names, "checker")
    results.about["checker"] = {"schedules": schedules, "date": time.strftime("%Y-%m-%d")}
    ids = names or tuple(by_id())
    with progress_bar("checking", "programs") as progress:
        for done, id in enumerate(ids):
            progress(done, len(ids))
            results.keep(id, "checker", verdict(id, schedules))
    results.save()
    print(f"{several(len(ids), 'verdict')} in {file}; see them with: python -m conformance.faults table {file}")
    return EXIT_OK


@main.command("table")
@RESULTS
def table_command(file: Path) -> int:
    """Print the results as tables in Markdown."""
    if not file.exists():
        raise UsageProblem(f"there is no {file}; make it with: python -m conformance.faults check {file}")
    print("\n".join(lines(read(file))))
    return EXIT_OK


@main.command("write")
@click.argument("folder", metavar="FOLDER", type=NamedPath(file_okay=False, path_type=Path))
def write_command(folder: Path) -> int:
    """Write PTX and a launch file of each program, for other tools."""
    check_folder(folder, "FOLDER")
    print(f"{write(folder)} launch files in {folder}")
    return EXIT_OK


if __name__ == "__main__":
    main()
