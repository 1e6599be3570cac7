"""``harness sweep``: many configurations, shapes and schedules at once, on many cores, GPUs and machines."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from emugpu.cli.options import FiniteRange, NamedPath, group, together
from emugpu.cli.render import several, show_line, show_table
from emugpu.errors import EXIT_CANNOT_RUN, EXIT_FINDINGS, EXIT_OK, EXIT_WRONG_RESULT, CannotRun, UsageProblem
from emugpu.processes.engine import Engine, Processes
from harness.cli.options import KERNEL_WORD, config_option, preset_option
from harness.compile.catalog import SCHEDULERS
from harness.compile.compiler import find_gpus
from harness.compile.config import OPTIONS, TUNABLE, Option
from harness.experiments import journal
from harness.experiments import sweep_table as table
from harness.experiments.cluster import Cluster
from harness.experiments.job import KINDS
from harness.experiments.sweep import Plan, Tally, plan
from harness.experiments.sweep import sweep as run_sweep
from harness.experiments.sweep_spec import DEVICES, Sweep, make_sweep, read_sweep
from harness.run.runner import NoDevice

LIMIT = 600.0
SHOWN = 8
TICK = 10.0
"""Seconds between two lines about the progress where there is no terminal."""


@dataclass(frozen=True)
class Where:
    """Who does the jobs."""

    jobs: int | None
    cluster_address: str | None

    @property
    def count(self) -> int:
        return self.jobs or os.cpu_count() or 1

    def engine(self, device: str, say: Callable[[str], None]) -> Engine:
        """Returns who does the jobs: processes of this machine, or the workers of a cluster."""
        if self.cluster_address is not None:
            return Cluster(self.cluster_address, say=say)
        gpus = _own_gpus() if device == "gpu" else []
        if device == "gpu" and not gpus:
            raise NoDevice("no NVIDIA GPU was found (nvidia-smi lists none); --cluster-address uses those of others")
        return Processes(self.count, gpus)


def _own_gpus() -> list[str]:
    """Names our GPUs as CUDA_VISIBLE_DEVICES does to a process that is to see one alone."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    count = len(find_gpus())
    return [word.strip() for word in visible.split(",")][:count] if visible else [str(n) for n in range(count)]


def _address(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    if value is None or re.fullmatch(r"((tcp|tls|ws|wss|ucx)://)?[^\s/]+:\d{1,5}", value):
        return value
    raise UsageProblem(
        f"--cluster-address {value!r} is not the address of a Dask scheduler, such as tcp://10.0.0.1:8786; leave it "
        "out for a cluster of this machine"
    )


where_options = group(
    "where",
    Where,
    click.option("--jobs", type=click.IntRange(1, 1024), help="Processes of this machine.  [default: one a core]"),
    click.option(
        "--cluster-address",
        metavar="ADDRESS",
        callback=_address,
        help="Address of a Dask cluster that runs already, as tcp://10.0.0.1:8786.  [default: one of this machine]",
    ),
)


def _grid(option: Option) -> Callable[[Any], Any]:
    """The option of the other commands, with several values."""
    return click.option(option.flag, f"grid_{option.name}", metavar=option.several, help=option.help)


grid_options = together(*map(_grid, TUNABLE.values()))


@click.command("sweep")
@click.argument("what", nargs=-1, required=True, type=KERNEL_WORD, metavar="SWEEP.toml|KERNEL...|all")
@click.option(
    "--shape",
    "shapes",
    multiple=True,
    metavar="M,N,K",
    help="Sizes or ranges of sizes, FIRST:LAST:STEP, the last with them; one for cubes. May be repeated.",
)
@grid_options
@preset_option
@config_option(OPTIONS["arch"])
@click.option(
    "--kind", type=click.Choice(KINDS), help="Run and validate, check the synchronisation, or predict.  [default: run]"
)
@click.option("--device", type=click.Choice(DEVICES), help="[default: emulator; for predictions the model]")
@click.option("--inputs", metavar="KIND,...", help="Values of A and B.  [default: integer, on a GPU normal]")
@click.option("--seed", "seeds", metavar="A:B", help="Seeds of the inputs.  [default: 0]")
@click.option(
    "--seeds",
    "--schedule-seeds",
    "schedule_seeds",
    metavar="A:B",
    help="Seeds of random schedules.  [default: the order of issue]",
)
@click.option(
    "--timeout", type=FiniteRange(1), default=LIMIT, show_default=True, help="Time limit of a job, in seconds."
)
@where_options
@click.option("--resume", is_flag=True, help="Leave out what the last run of this sweep has recorded.")
@click.option("--retry-failed", is_flag=True, help="With --resume: but not what has failed.")
@click.option("--dry-run", is_flag=True, help="Plan, and do nothing.")
@click.option("--table", "table_path", type=NamedPath(path_type=Path), help="Results as CSV.")
@click.option(
    "--rank", type=click.IntRange(1), metavar="N", help="Show the N fastest of each problem, where there are times."
)
@click.option("--json", "json_path", metavar="-", help="Print the counts as one line of JSON at the end.")
def sweep(
    what: tuple[str, ...],
    shapes: tuple[str, ...],
    timeout: float,
    where: Where,
    resume: bool,
    retry_failed: bool,
    dry_run: bool,
    table_path: Path | None,
    rank: int | None,
    json_path: str | None,
    **asked: str | None,
) -> int:
    """Run all combinations of KERNELs, shapes and configurations.

    Lists are written 2,4,8 and ranges 3:6 or 512:8192:512. What cannot be is counted by its reason, and left out.
    A record of each goes to results/sweeps/.

    Exit codes: 0 all is well, 1 check has found errors, 2 usage, 3 some have failed, 4 some results are wrong.
    """
    if json_path not in (None, "-"):
        raise UsageProblem(
            f"--json {json_path!r}: the counts are printed; write --json -, and --table FILE for results"
        )
    if retry_failed and not resume:
        raise UsageProblem("--retry-failed is about what --resume leaves out; say both")
    if table_path is not None:
        table.check_name(table_path)
    found = _sweep(what, shapes, {name: text for name, text in asked.items() if text is not None})
    console = Console(stderr=True)
    start = time.monotonic()
    planned = plan(found)
    _show_plan(console, planned, time.monotonic() - start)
    path = journal.folder() / f"{found.id}.jsonl"
    tally = Tally(planned.count, sum(planned.refused.values()))
    if not dry_run:
        tally = _run(console, planned, path, where, timeout, resume, retry_failed)
        show_line(console, f"records are in {path}")
    if table_path is not None or rank is not None:
        found_rows = table.load(path, keys={job.key for job in planned.jobs()})
        if table_path is not None:
            table.write(found_rows, table_path)
            show_line(console, f"table written to {table_path}")
        if rank is not None:
            rankings = table.ranked(found_rows)
            for ranking in rankings:
                _show_ranking(Console(stderr=bool(json_path)), ranking, rank)
            if not rankings:
                show_line(console, "no job has a time to rank; --device gpu measures, --kind predict predicts")
    _show_tally(console, tally, resume)
    if json_path:
        click.echo(json.dumps(tally.as_dict()))
    if tally.wrong:
        return EXIT_WRONG_RESULT
    return EXIT_CANNOT_RUN if tally.failed else EXIT_FINDINGS if tally.unsound else EXIT_OK


def _sweep(what: Sequence[str], shapes: Sequence[str], given: dict[str, str]) -> Sweep:
    options = {name.removeprefix("grid_"): text for name, text in given.items() if name.startswith("grid_")}
    asked: dict[str, Any] = {name: text for name, text in given.items() if not name.startswith("grid_")}
    if ":" in options.get("scheduler", ""):
        raise UsageProblem(
            f"--scheduler {options['scheduler']!r} is no scheduler of a kernel; use some of {', '.join(SCHEDULERS)}, "
            "and --cluster-address for a Dask cluster"
        )
    files = [word for word in what if word.endswith(".toml")]
    if not files:
        return make_sweep("-".join(what), kernels=what, shapes=shapes, options=options, **asked)
    if len(what) > 1:
        raise UsageProblem(f"{files[0]} says which kernels there are; leave the other words out")
    by = {**asked, "options": options, **({"shapes": shapes} if shapes else {})}
    return read_sweep(Path(files[0]), by)


def _run(
    console: Console, planned: Plan, path: Path, where: Where, limit: float, resume: bool, retry_failed: bool
) -> Tally:
    def say(message: str) -> None:
        show_line(console, message, "yellow")

    workers = where.engine(planned.sweep.device, say)
    begun = False
    try:
        with (
            journal.Journal(path, say=say) as kept,
            _progress(console, planned.count) as report,
            workers as engine,
        ):
            begun = True
            return run_sweep(
                planned,
                engine,
                kept,
                workers=where.count,
                limit=limit,
                resume=resume,
                retry_failed=retry_failed,
                report=report,
                everywhere=where.cluster_address is not None,
            )
    except KeyboardInterrupt:
        show_line(console, "interrupted; what was done is kept, --resume goes on from here")
        raise
    except CannotRun as error:
        if not begun:
            raise
        raise CannotRun(f"{error}; what was done is kept, --resume goes on from here") from error


@contextmanager
def _progress(console: Console, count: int) -> Iterator[Callable[[str, Tally], None]]:
    """Shows a bar with the rate and the time that is left on a terminal, else a line now and then. The rate does not
    count what comes before the first job: compilations."""
    start, last = time.monotonic(), 0.0

    def watch(tally: Tally) -> None:
        nonlocal start
        if not tally.ran + tally.failed:
            start = time.monotonic()

    def rate(tally: Tally) -> float:
        return (tally.ran + tally.failed) / max(time.monotonic() - start, 1e-9)

    if not console.is_terminal:

        def line(what: str, tally: Tally) -> None:
            nonlocal last
            watch(tally)
            if time.monotonic() - last < TICK:
                return
            last = time.monotonic()
            left = (count - tally.done) / rate(tally) if tally.ran else None
            ahead = "" if left is None else f", {rate(tally):.1f} a second, {left:.0f} s left"
            show_line(console, f"{what}: {tally.done:,} of {count:,}{ahead}")

        yield line
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True, refresh_per_second=4) as bar:
        task = bar.add_task("planned", total=count, rate="")

        def update(what: str, tally: Tally) -> None:
            watch(tally)
            bar.update(task, description=what, completed=tally.done, rate=f"{rate(tally):.1f}/s" if tally.ran else "")

        yield update


def _show_plan(console: Console, planned: Plan, seconds: float) -> None:
    show_line(
        console,
        f"{planned.sweep.id}: {several(planned.count, 'job')}, {several(len(planned.configs), 'configuration')}, "
        f"{sum(planned.refused.values()):,} refused; planned in {seconds:.1f} s",
    )
    if planned.refused:
        rows = [(f"{count:,}", planned.examples[reason]) for reason, count in planned.refused.most_common(SHOWN)]
        show_table(console, "refused beforehand", ("jobs", "reason, and the first of them"), rows)


def _show_ranking(console: Console, ranking: table.Ranking, count: int) -> None:
    """Shows the options in which these configurations differ, and their times."""
    choices, best = ranking.choices, ranking.rows[0][ranking.figure]
    status, flops = ranking.figure.partition("_")[0], 2 * ranking.m * ranking.n * ranking.k
    rows = []
    for row in ranking.rows[:count]:
        seconds = row[ranking.figure]
        times = (f"{1e6 * seconds:.2f}", f"{flops / seconds / 1e12:,.0f}", f"{seconds / best:.3f}")
        rows.append((*(str(row[name]) for name in choices), *times))
    problem = f"C[{ranking.m},{ranking.n}], K={ranking.k}, {ranking.dtype}"
    title = f"{problem} on {ranking.device}: {len(ranking.rows)} with a time"
    words = [name.removeprefix("config_").replace("_", " ") for name in choices]
    show_table(console, title, (*words, f"{status} us", "TFLOPS", "over the best"), rows)


def _show_tally(console: Console, tally: Tally, resume: bool) -> None:
    parts = [f"{tally.ran:,} ran" + (f" ({tally.verdict})" if tally.verdict else ""), f"{tally.failed:,} failed"]
    if resume:
        earlier = ", ".join(f"{count:,} {verdict}" for verdict, count in sorted(tally.earlier.items()))
        parts.append(f"{tally.reused:,} were done already" + (f" ({earlier})" if earlier else ""))
    show_line(console, ", ".join(parts))
    for reason, count in sorted(tally.reasons.items(), key=lambda item: -item[1])[:SHOWN]:
        show_line(console, f"  {count:,} x {reason}", "red")
