"""``python -m tests.nightly.candidates``: makes kernels, plants faults in them, and asks for a verdict on each.

`make` fills a folder with launch files and PTX of several compilers; `run` verifies each as it is, and then
with faults planted in it.
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
from dataclasses import asdict
from pathlib import Path

import click

from emugpu.cli.program import ClearErrors
from emugpu.errors import CannotRun, UsageProblem
from emugpu.launch.spec import Launchable
from emugpu.processes.engine import in_order
from tests.nightly.candidates import cuda_kernels, written_kernels
from tests.nightly.candidates.candidate import draw, right_kernels, table, verify_job
from tests.nightly.candidates.faults import Fault


class Candidates(ClearErrors, click.Group):
    """The commands, with one line and an exit code for each error."""


@click.group("candidates", cls=Candidates)
def main() -> None:
    """Does `emugpu verify` tell right kernels from wrong ones?"""


@main.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option(
    "--python",
    type=click.Path(exists=True, dir_okay=False, executable=True),
    help="A Python that has Triton and CuTe DSL.  [default: neither]",
)
def make(folder: Path, python: str | None) -> None:
    """Fill FOLDER with kernels of nvcc, and of Triton and CuTe DSL."""
    folder.mkdir(parents=True, exist_ok=True)
    written_kernels.write(folder)
    try:
        if shutil.which("nvcc"):
            cuda_kernels.write(folder)
        else:
            click.echo("nvcc is not on the PATH: its kernels are left out", err=True)
        for script in ("triton_kernels.py", "cute_kernels.py") if python else ():
            command = [str(python), str(Path(__file__).with_name(script)), str(folder)]
            subprocess.run(command, check=True, capture_output=True)
    except subprocess.CalledProcessError as error:
        said = error.stderr.decode(errors="replace").strip().splitlines()[-1:] or ["no message"]
        raise CannotRun(f"{' '.join(error.cmd[:2])} ended with code {error.returncode}: {said[0]}") from None
    click.echo(f"{len(list(folder.glob('*.toml')))} launch files in {folder}")


@main.command("run")
@click.argument("folder", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--faults", "count", type=click.IntRange(0), default=200, show_default=True)
@click.option("--seed", default=1, show_default=True, help="Which faults are drawn.")
@click.option("--match", default="", help="Only kernels whose name has this in it.")
@click.option("--jobs", type=click.IntRange(1), default=1, show_default=True, help="Worker processes.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write every answer there.")
@click.pass_context
def run_command(
    context: click.Context, folder: Path, count: int, seed: int, match: str, jobs: int, json_path: Path | None
) -> None:
    """Verify the kernels of FOLDER, of the test data and of this project, and as many with a fault.

    Exit code 1: one that is right is not clean, or one with a fault is clean or incomplete.
    """
    kernels = {name: what for name, what in right_kernels(folder).items() if match in name}
    if not kernels:
        raise UsageProblem(f"--match {match!r}: no kernel has that in its name; shorten it, or leave it out")
    work: list[tuple[Launchable, Fault | None, str]] = [(what, None, name) for name, what in kernels.items()]
    work += draw(kernels, count, seed)
    answers = []
    for answer in in_order(verify_job, work, jobs):
        answers.append(answer)
        mark = " " if answer.as_it_should_be else "!"
        place = f" line {answer.line}: {answer.fault}: {answer.text[:60]}" if answer.fault else ""
        click.echo(f"{mark} {answer.word:10} {answer.seconds:5.1f} s  {answer.kernel}{place}  [{answer.why[:110]}]")
    if json_path:
        json_path.write_text(json.dumps([asdict(answer) for answer in answers], indent=1) + "\n", encoding="utf-8")
    for line in table(answers):
        click.echo(line)
    unlike = [answer for answer in answers if not answer.as_it_should_be]
    seconds = statistics.median(answer.seconds for answer in answers)
    click.echo(f"{len(answers)} candidates, {len(unlike)} not as they should be; median {seconds:.1f} s")
    context.exit(bool(unlike))


if __name__ == "__main__":
    main()
