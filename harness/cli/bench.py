"""The command ``harness bench``."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial

import click
from rich.console import Console

from emugpu.cli.emulation import Schedules, jobs_option, parse_schedules
from emugpu.cli.options import FiniteRange, Parsed, offering
from emugpu.cli.outputs import Outputs, output_option
from emugpu.cli.program import try_write
from emugpu.cli.render import several, show_line
from emugpu.errors import EXIT_CANNOT_RUN, EXIT_FINDINGS, EXIT_OK, CannotRun, UsageProblem
from emugpu.launch.launching import EmulationOptions
from harness.cli import bench_output as output
from harness.cli.progress import job_progress
from harness.cli.repeat import command_of
from harness.compile.artifacts import is_built
from harness.experiments import bench as runs
from harness.experiments.history import LAST, check_name
from harness.experiments.soundness import is_checked, what_is_unsound
from harness.experiments.suite import DEFAULT, Suite, SuiteCase, load_suite, suite_names
from harness.experiments.times import MIN_PROCESSES, THRESHOLD
from harness.experiments.verdict import Judgement
from harness.extras import needs

PROCESSES = 5
SCHEDULES = 4
"""Every case must be right under all schedules, because a kernel can be right by chance under one of them."""


@click.command()
@click.option(
    "--suite",
    "suite_name",
    default=DEFAULT,
    show_default=True,
    metavar="NAME|FILE",
    shell_complete=offering(suite_names),
    help="What to run: a suite that comes with the harness, or a .toml file.",
)
@click.option("--filter", "pattern", metavar="REGEX", help="Run only the cases whose names match.")
@click.option("--list", "list_only", is_flag=True, help="Print the names of the cases, one per line.")
@click.option("--resume", is_flag=True, help="Continue the last run of this suite where it was interrupted.")
@click.option(
    "--baseline",
    "baseline_name",
    default=LAST,
    show_default=True,
    metavar="NAME|last|COMMIT",
    help="What to compare with. A commit is built, and measured alternately with this checkout.",
)
@click.option("--save-baseline", metavar="NAME", help="Save this run as the baseline NAME.")
@click.option(
    "--threshold",
    type=FiniteRange(0, 100),
    metavar="PERCENT",
    default=100 * THRESHOLD,
    show_default=True,
    help="Smallest relevant difference of times, in per cent.",
)
@click.option(
    "--processes",
    type=click.IntRange(1),
    metavar="N",
    default=PROCESSES,
    show_default=True,
    help=f"Processes that time each case on a GPU, one after the other; fewer than {MIN_PROCESSES} give no verdict.",
)
@click.option(
    "--schedules",
    type=Parsed("SCHEDULES", parse_schedules),
    metavar="N|N@SEED",
    help="Number of emulator schedules under which each case must be right: fifo and random ones.  "
    f"[default: {SCHEDULES}]",
)
@jobs_option("Cases to emulate in parallel.")
@output_option("json", "md", "xml")
def bench(
    suite_name: str,
    pattern: str | None,
    list_only: bool,
    resume: bool,
    baseline_name: str,
    save_baseline: str | None,
    threshold: float,
    processes: int,
    schedules: Schedules | None,
    jobs: int,
    outputs: Outputs,
) -> int:
    """Run a suite, compare it with a baseline and keep the history."""
    suite = load_suite(suite_name)
    cases = _filter(suite, pattern)
    if save_baseline is not None:
        check_name(save_baseline)
    under, schedule_seed = _schedules(suite, schedules)
    if list_only:
        for case in cases:
            click.echo(case.id)
        return EXIT_OK
    if suite.device == "gpu":
        needs("bench")
    progress = Console(stderr=True)
    prepared = runs.prepare(suite, cases, processes=processes, schedules=under, schedule_seed=schedule_seed)
    if jobs > 1 and any(job.request and job.request.gpu for job in prepared):
        raise UsageProblem(f"--jobs {jobs}: cases on a GPU are timed one at a time; leave --jobs out")
    mark = runs.fingerprint(prepared, under, schedule_seed)
    say = partial(show_line, progress)
    run_id = runs.choose_run(prepared, suite, mark, resume, say)
    past = runs.Past(prepared, baseline_name)
    for line in past.damaged:
        show_line(progress, str(line), "yellow")
    baseline = past.build_baseline(prepared, say)
    measured = _measure(progress, prepared, suite, run_id, mark, jobs, baseline)
    judgements = tuple(map(_with_repeat, past.judge(measured, run_id, threshold / 100), measured))
    saved = [runs.save_baseline(save_baseline, judgements, run_id)] if save_baseline is not None else []
    unsaved = dict.fromkeys(one.unsaved for one in measured if one.unsaved)
    notes = (*_soundness(judgements), *saved, *unsaved)
    outcome = output.BaselineComparison(suite.name, run_id, past.label, threshold / 100, judgements, notes)
    if not _write(outcome, outputs):
        return outcome.exit_code or EXIT_CANNOT_RUN
    if baseline_name != LAST and outcome.exit_code != EXIT_FINDINGS and not any(j.baseline for j in judgements):
        raise CannotRun(f"nothing could be compared: {judgements[0].reason}")
    return outcome.exit_code


def _filter(suite: Suite, pattern: str | None) -> list[SuiteCase]:
    try:
        wanted = re.compile(pattern or "")
    except re.error as error:
        raise UsageProblem(f"--filter {pattern!r} is not a regular expression: {error}") from None
    cases = [case for case in suite.cases if wanted.search(case.id)]
    if not cases:
        raise UsageProblem(f"--filter {pattern!r} matches no case of suite {suite.name}; --list shows them")
    return cases


def _measure(
    console: Console,
    planned: list[runs.Planned],
    suite: Suite,
    run_id: str,
    mark: str,
    processes: int,
    baseline: runs.BaselineBuild | None,
) -> list[runs.Measured]:
    missing = {j.request.config for j in planned if j.request and not is_built(j.request.config)}
    if missing:
        show_line(console, f"compiling {several(len(missing), 'configuration')} with Mojo ...")
    try:
        with job_progress(console, len(planned)) as progress:
            done = ran = 0

            def report(measured: runs.Measured) -> None:
                nonlocal done, ran
                done += 1
                ran += measured.planned.request is not None and not measured.kept
                what = f"{measured.planned.case.id}: {_state(measured)}"
                if console.is_terminal and _state(measured) not in ("done", "kept"):
                    show_line(console, what, "bold red")
                progress(what, done, ran)

            def after_build() -> None:
                progress("measuring", 0, 0)

            return runs.measure(planned, suite, run_id, mark, report, baseline, processes, after_build)
    except KeyboardInterrupt:
        show_line(console, "interrupted; the finished cases are kept; harness bench --resume continues from here")
        raise


def _state(measured: runs.Measured) -> str:
    if measured.record is None:
        return "not measured"
    if measured.failed:
        return "wrong"
    if what_is_unsound(measured.record):
        return "unsound"
    return "kept" if measured.kept else "done"


def _soundness(judgements: tuple[Judgement, ...]) -> list[str]:
    """Returns the results of the synchronisation checks, because the table leaves out cases that are SAME."""
    checked = [j.record for j in judgements if j.record and is_checked(j.record)]
    sound = sum(not what_is_unsound(record) for record in checked)
    return [f"synchronisation of {several(len(checked), 'case')} checked: {sound} sound"] if checked else []


def _schedules(suite: Suite, asked: Schedules | None) -> tuple[int, int]:
    """Returns the number of schedules and the seed of the first random one."""
    if asked is None:
        return SCHEDULES, 0
    if suite.device != "emulator":
        raise UsageProblem(f"--schedules: suite {suite.name} runs on a GPU, which has no schedules; leave it out")
    if asked.schedule != "fifo":
        raise UsageProblem(
            f"--schedules {asked.schedule}: bench takes a number of schedules, fifo and random ones: 4@7"
        )
    if asked.count == 1 and asked.seed is not None:
        raise UsageProblem(
            f"--schedules 1@{asked.seed}: the only schedule is fifo, which uses no seed; write 1, or 4@{asked.seed}"
        )
    return asked.count, asked.seed or 0


def _with_repeat(judgement: Judgement, measured: runs.Measured) -> Judgement:
    """Adds the command that repeats a failure."""
    if measured.failed:
        command = command_of(measured.failed)
    elif measured.record and what_is_unsound(measured.record) and measured.planned.request:
        request = measured.planned.request
        emulation = EmulationOptions(seed=request.seed, strict=False)
        checked = replace(request, schedules=measured.record["soundness"]["schedules"], emulation=emulation)
        command = command_of(checked, "verify")
    else:
        return judgement
    return replace(judgement, notes=(*judgement.notes, f"to repeat: {command}"))


def _write(outcome: output.BaselineComparison, outputs: Outputs) -> bool:
    """Writes the files before the screen, because a closed pipe ends the program. Returns whether everything was
    written.
    """
    forms = {"json": output.to_json, "md": output.to_markdown, "xml": output.to_junit}
    written = outputs.write(None, **{form: partial(write, outcome) for form, write in forms.items()})
    console = Console(stderr=not outputs.shows_report)
    return try_write(lambda: output.show(console, outcome)) and written.complete
