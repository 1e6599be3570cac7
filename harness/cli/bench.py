"""``harness bench``."""

from __future__ import annotations

import re
from pathlib import Path

import click
from rich.console import Console

from harness.bench import history
from harness.bench import run as runs
from harness.bench.baseline import LAST, Baseline, check_name, resolve
from harness.bench.history import History, Pointer, case_of, machine_of
from harness.bench.suite import DEFAULT, Case, Suite, load_suite
from harness.bench.times import MIN_PROCESSES, THRESHOLD
from harness.bench.verdict import EXIT_REGRESSION, Judgement, have_times, judge
from harness.cli import bench_output as output
from harness.cli.render import show_line, show_table
from harness.compiler.build import is_built
from harness.errors import EXIT_OK, CannotRun, UsageProblem
from harness.run import records

PROCESSES = 5


@click.command()
@click.option("--suite", "suite_name", default=DEFAULT, show_default=True, metavar="NAME|FILE", help="What to measure.")
@click.option("--filter", "pattern", metavar="REGEX", help="Only the cases whose name this is found in.")
@click.option("--list", "list_only", is_flag=True, help="Print the names of the cases, one per line.")
@click.option("--dry-run", is_flag=True, help="Show what would be done, and do nothing.")
@click.option("--resume", is_flag=True, help="Go on where the last run of this suite was interrupted.")
@click.option(
    "--baseline",
    "baseline_name",
    default=LAST,
    show_default=True,
    metavar="NAME|last|COMMIT",
    help="What to compare with.",
)
@click.option("--save-baseline", metavar="NAME", help="Make NAME point at this run.")
@click.option(
    "--threshold",
    type=click.FloatRange(0, 100),
    default=100 * THRESHOLD,
    show_default=True,
    help="Per cent that a time must differ by to matter.",
)
@click.option(
    "--processes",
    type=click.IntRange(1),
    default=PROCESSES,
    show_default=True,
    help=f"That time each case on a GPU, one after the other; with fewer than {MIN_PROCESSES} no verdict is possible.",
)
@click.option(
    "--json",
    "json",
    metavar="PATH|-",
    help="Write everything as JSON; - is the screen, instead of the table.",
)
@click.option("--csv", "csv", metavar="PATH|-", help="One line per case.")
@click.option("--markdown", "markdown", metavar="PATH|-", help="For a comment on a pull request.")
@click.option("--junit", "junit", metavar="PATH|-", help="For continuous integration.")
def bench(
    suite_name: str,
    pattern: str | None,
    list_only: bool,
    dry_run: bool,
    resume: bool,
    baseline_name: str,
    save_baseline: str | None,
    threshold: float,
    processes: int,
    **files: str | None,
) -> int:
    """Run a suite, compare it with a baseline and keep the history.

    Exit codes: 0 no regression, 1 regression, 2 usage, 3 could not measure, 4 wrong result.
    """
    suite = load_suite(suite_name)
    cases = _filter(suite, pattern)
    if save_baseline is not None:
        check_name(save_baseline)
    _check_files(files)
    if list_only:
        for case in cases:
            click.echo(case.id)
        return EXIT_OK
    progress = Console(stderr=True)
    jobs = runs.prepare(suite, cases, processes)
    mark = runs.fingerprint()
    run_id = _choose_run(progress, resume, jobs, suite, mark)
    view = _Past(jobs, baseline_name)
    for line in view.damaged:
        show_line(progress, str(line), "yellow")
    if dry_run:
        _show_plan(jobs, view, run_id)
        return EXIT_OK
    measured = _measure(progress, jobs, suite, run_id, mark)
    judgements = _judge(measured, view, run_id, threshold / 100)
    outcome = output.Outcome(
        suite.name, run_id, view.label, threshold / 100, judgements, _save(save_baseline, judgements, run_id)
    )
    _write(outcome, files)
    if baseline_name != LAST and outcome.exit_code != EXIT_REGRESSION and not any(j.baseline for j in judgements):
        raise CannotRun(f"nothing could be compared: {judgements[0].reason}")
    return outcome.exit_code


class _Past:
    """The histories of the devices as they were before the run, and the baseline in each."""

    def __init__(self, jobs: list[runs.Job], baseline: str) -> None:
        self.histories: dict[str, History] = {}
        self.baselines: dict[str, Baseline] = {}
        self.damaged: list[records.DamagedLine] = []
        pointers: dict[str, list[Pointer]] = {}
        for kind in runs.device_kinds(jobs):
            self.histories[kind] = history.load(records.record_file(kind))
            pointers[kind], damaged = history.load_pointers(kind)
            self.damaged += [*self.histories[kind].damaged, *damaged]
        self.damaged = list(dict.fromkeys(self.damaged))
        for kind, past in self.histories.items():
            self.baselines[kind] = resolve(baseline, past, pointers[kind])
        self.label = next((found.label for found in self.baselines.values()), baseline)

    def find(self, job: runs.Job, record: dict, run_id: str) -> tuple[dict | None, str]:
        assert job.request
        kind = job.request.device_kind
        return self.baselines[kind].find(self.histories[kind], case_of(record), machine_of(record), run_id)

    def newest(self, job: runs.Job) -> dict | None:
        if job.request is None:
            return None
        found = [r for r in self.histories[job.request.device_kind].records if case_of(r) == job.case.id]
        return found[-1] if found else None


def _filter(suite: Suite, pattern: str | None) -> list[Case]:
    try:
        wanted = re.compile(pattern or "")
    except re.error as error:
        raise UsageProblem(f"--filter {pattern!r} is not a regular expression: {error}") from None
    cases = [case for case in suite.cases if wanted.search(case.id)]
    if not cases:
        raise UsageProblem(f"--filter {pattern!r} matches no case of suite {suite.name}; --list shows them")
    return cases


def _choose_run(console: Console, resume: bool, jobs: list[runs.Job], suite: Suite, mark: str) -> str:
    if not resume:
        return runs.new_run()
    found, why = runs.find_interrupted(jobs, suite, mark)
    show_line(console, why)
    return found or runs.new_run()


def _measure(console: Console, jobs: list[runs.Job], suite: Suite, run_id: str, mark: str) -> list[runs.Measured]:
    missing = {j.request.config for j in jobs if j.request and not is_built(j.request.config)}
    if missing:
        show_line(console, f"compiling {len(missing)} configurations with Mojo ...")

    def report(measured: runs.Measured, number: int) -> None:
        state = "kept" if measured.kept else "done" if measured.record else "not measured"
        show_line(console, f"[{number:{len(str(len(jobs)))}}/{len(jobs)}] {measured.job.case.id}: {state}")

    try:
        return runs.measure(jobs, suite, run_id, mark, report)
    except KeyboardInterrupt:
        show_line(console, "interrupted; what was measured is kept, --resume goes on from here")
        raise


def _judge(measured: list[runs.Measured], view: _Past, run_id: str, threshold: float) -> tuple[Judgement, ...]:
    found = [view.find(one.job, one.record, run_id) if one.record else (None, one.reason) for one in measured]
    timed = sum(have_times(one.record, base) for one, (base, _) in zip(measured, found, strict=True))
    return tuple(
        judge(one.job.case, one.record, base, reason=reason, cases=timed, threshold=threshold)
        for one, (base, reason) in zip(measured, found, strict=True)
    )


def _save(name: str | None, judgements: tuple[Judgement, ...], run_id: str) -> tuple[str, ...]:
    """Saves the pointers. A wrong result is no baseline, and a run without a right one has none."""
    if name is None:
        return ()
    right = [j for j in judgements if j.record and j.verdict != "WRONG"]
    if not right:
        return (f"baseline {name} not saved: nothing was measured",)
    for kind in dict.fromkeys(j.record["device"]["kind"] for j in right if j.record):
        history.save_pointer(name, kind, run_id)
    return (f"baseline {name} saved: {len(right)} cases",)


def _show_plan(jobs: list[runs.Job], view: _Past, run_id: str) -> None:
    rows = []
    for job in jobs:
        newest = view.newest(job)
        if job.request is None:
            todo, where = f"cannot be measured: {job.reason}", "-"
        else:
            where = job.request.device_kind
            built = is_built(job.request.config)
            todo = "run" if built else "compile and run"
            if newest and newest["bench"]["run"] == run_id:
                todo = "keep what was measured"
        rows.append((job.case.id, where, todo, f"{newest['time']}" if newest else "never"))
    show_table(Console(), "what would be done", ("case", "device", "to do", "last measured"), rows)


def _check_files(files: dict[str, str | None]) -> None:
    if sum(path == "-" for path in files.values()) > 1:
        raise UsageProblem("only one of --json, --csv, --markdown and --junit can be - (the screen)")
    for name, path in files.items():
        if path in (None, "-"):
            continue
        place = Path(str(path))
        if not path or place.is_dir() or not place.parent.is_dir():
            raise UsageProblem(f"--{name} {path!r} is not a file in an existing folder; name one, or use -")


def _write(outcome: output.Outcome, files: dict[str, str | None]) -> None:
    console = Console(stderr=True) if "-" in files.values() else Console()
    output.show(console, outcome)
    for name, path in files.items():
        if path == "-":
            click.echo(output.FORMATS[name](outcome), nl=False)
        elif path:
            Path(path).write_text(output.FORMATS[name](outcome))
