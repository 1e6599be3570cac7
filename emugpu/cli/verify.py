"""The command ``emugpu verify`` gives verdicts on launch files, on a folder of them, or on a program."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import click
from rich.console import Console

from emugpu.check.findings import as_sarif
from emugpu.check.verdict import Verdict
from emugpu.cli.emulation import Emulation
from emugpu.cli.options import NamedPath, as_json, refuse_given, write_output
from emugpu.cli.outputs import Outputs
from emugpu.cli.ptx_output import show_corpus
from emugpu.cli.render import progress_bar
from emugpu.cli.target import gpu_option, is_program
from emugpu.cli.verdict_output import as_junit, as_markdown
from emugpu.cli.verdicts import Subject, Wanted, exit_code, give_verdicts, report, verdict_options
from emugpu.driver.gpu_model import gpu_model
from emugpu.driver.log import Log, judge
from emugpu.driver.server import run_program
from emugpu.driver.state import SharedGpu
from emugpu.errors import EXIT_INCOMPLETE, UsageProblem
from emugpu.launch.corpus import look_through
from emugpu.launch.launch_file import read_launch_file
from emugpu.launch.shrink import WRITTEN, Numbers, of_launch_file, smaller_file
from emugpu.launch.spec import Launchable, read_ptx

OF_LAUNCHES = ("resident-clusters", "strict", "allow", "ptxas")
"""Settings that apply to launch files only, because a program makes its own launches."""


@click.command("verify")
@gpu_option
@click.option(
    "--ptx",
    metavar="FILE.ptx",
    type=NamedPath(path_type=Path),
    help="Launch the kernels of this file instead of those that LAUNCH.toml names.",
)
@verdict_options
@click.argument("words", nargs=-1, required=True, metavar="LAUNCH.toml...|DIR|-- PROGRAM [ARGUMENTS...]")
def verify_command(
    gpu: str,
    ptx: Path | None,
    wanted: Wanted,
    emulation: Emulation,
    outputs: Outputs,
    words: tuple[str, ...],
) -> int:
    """Give a verdict: clean, wrong, racy, hung or incomplete.

    Runs launch files, or a program that uses the CUDA driver, on the emulated GPU, compares the results, checks the
    synchronisation, and says what the verdict rests on. A part that could not be checked makes it incomplete, never
    clean. DIR stands for all launch files below it.
    """
    # Some options apply only to launch files, others only to programs.
    if is_program(words):
        return _program(words, gpu, wanted, emulation, outputs)
    refuse_given(f"{words[0]} is not a program", "gpu")
    folders = [word for word in words if Path(word).is_dir()]
    if folders and len(words) > 1:
        raise UsageProblem(
            f"{folders[0]} is a folder, but {len(words)} paths are named; name one folder, or launch files"
        )
    if folders:
        refuse_given(f"{folders[0]} is a folder", "ptx", "smaller", "redundant", "notes")
        return _folder(Path(folders[0]), emulation, outputs)
    if ptx is not None and len(words) > 1:
        raise UsageProblem(f"--ptx {ptx} is launched by one launch file, and {len(words)} are named; name one")
    for word in words if wanted.smaller else ():
        _refuse_to_replace(_smaller(Path(word)))
    return give_verdicts([_subject(Path(word), ptx) for word in words], wanted, emulation, outputs)


def with_ptx(what: Launchable, ptx: Path | None) -> Launchable:
    """Returns the same launches with the kernels of another PTX file, if one is given."""
    return what if ptx is None else replace(what, ptx=ptx, text_given=read_ptx(ptx))


def _subject(path: Path, ptx: Path | None) -> Subject:
    def numbers() -> Numbers:
        found = of_launch_file(path)
        return replace(found, make=lambda values: with_ptx(found.make(values), ptx))

    def command(values: Mapping[str, int]) -> list[str]:
        target = path
        if values != of_launch_file(path).values:
            target = _smaller(path)
            write_output(smaller_file(path, values), str(target))
        return ["emugpu", "verify", str(target), *(["--ptx", str(ptx)] if ptx else [])]

    return Subject(with_ptx(read_launch_file(path), ptx), numbers, command)


def _smaller(path: Path) -> Path:
    """Returns the place of the smaller launch file."""
    return path.with_name(f"{path.stem}-smaller.toml")


def _refuse_to_replace(target: Path) -> None:
    """Refuses to write over a launch file, unless a previous --shrink wrote it."""
    try:
        is_foreign = target.is_file() and not target.read_bytes().startswith(WRITTEN.encode())
    except OSError as error:
        raise UsageProblem(f"--shrink writes {target}, which cannot be read: {error.strerror}") from None
    if is_foreign:
        raise UsageProblem(f"--shrink writes {target}, which exists and is not from --shrink; rename it")


def _folder(folder: Path, emulation: Emulation, outputs: Outputs) -> int:
    options = emulation.check_options()
    with progress_bar(f"verifying {folder}", "files") as progress:
        rows = look_through(folder, options, emulation.ptxas, progress)
    verdicts = {row.launch: (row.ptx, row.verdict) for row in rows if row.launch and row.verdict}
    alone = [verdict for _, verdict in verdicts.values()]
    written = outputs.write(
        json=lambda: as_json([row.as_dict() for row in rows]),
        sarif=lambda: as_json(as_sarif([(file, verdict.report) for file, verdict in verdicts.values()])),
        xml=lambda: as_junit(alone),
        md=lambda: as_markdown(alone),
    )
    if outputs.shows_report:
        show_corpus(Console(), folder, rows)
        written.show(Console())
    return (exit_code([verdict.word for verdict in alone]) if alone else EXIT_INCOMPLETE) or written.exit_code


def _program(words: tuple[str, ...], gpu: str, wanted: Wanted, emulation: Emulation, outputs: Outputs) -> int:
    why = f"{words[0]} is a program, which makes its own launches"
    emulation.refuse_several_schedules(f"{words[0]} is a program, and runs once")
    refuse_given(why, "ptx", "smaller", "redundant")
    emulation.refuse(why, *OF_LAUNCHES)
    verdict = verdict_on_program(words, gpu, emulation)
    return report([(words[0], verdict)], wanted, outputs)


def verdict_on_program(words: tuple[str, ...], gpu: str, emulation: Emulation) -> Verdict:
    """Runs a program on the emulated GPU with the checker, and judges its launches."""
    log = Log()
    options = emulation.for_program()
    code = run_program(words, SharedGpu(gpu_model(gpu), options, log, check=True), os.environ)
    failure = f"the program ended with code {code}" if code else ""
    return judge(log, " ".join(words), failure, checked=True)
