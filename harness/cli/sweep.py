"""The command ``harness sweep`` runs many configurations, shapes and schedules on many cores, GPUs and machines."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from emugpu.cli.emulation import parse_schedules
from emugpu.cli.options import Command, FiniteRange, group
from emugpu.cli.outputs import Outputs, output_option
from emugpu.cli.render import several, show_line, show_table
from emugpu.errors import EXIT_CANNOT_RUN, EXIT_FINDINGS, EXIT_OK, EXIT_WRONG_RESULT, CannotRun, UsageProblem
from emugpu.processes.engine import Engine, Processes
from harness.cli.options import SEVERAL, problem_option, read_settings, settings_option
from harness.cli.progress import job_progress
from harness.compile.catalog import SCHEDULERS
from harness.compile.compiler import find_gpus
from harness.experiments import journal
from harness.experiments import sweep_table as table
from harness.experiments.cluster import DaskCluster
from harness.experiments.job import KINDS
from harness.experiments.sweep import SweepPlan, Tally, plan
from harness.experiments.sweep import sweep as run_sweep
from harness.experiments.sweep_spec import DEVICES, Sweep, make_sweep, read_sweep
from harness.problem import DTYPES
from harness.run.runner import NoDevice

LIMIT = 600.0
SHOWN = 8
FASTEST, RESULTS = 10, 20
"""Most rows of a table of times, and of other results."""
MOST_JOBS_SHOWN = 20_000
"""The screen shows no table of a sweep with more jobs; a file has it."""
TICK = 10.0
"""Seconds between two progress lines if there is no terminal."""


@dataclass(frozen=True)
class Where:
    """What executes the jobs."""

    jobs: int | None
    cluster_address: str | None

    @property
    def count(self) -> int:
        return self.jobs or os.cpu_count() or 1

    def engine(self, device: str, say: Callable[[str], None]) -> Engine:
        """Returns the engine that executes the jobs: processes of this machine, or the workers of a cluster."""
        if self.cluster_address is not None:
            return DaskCluster(self.cluster_address, say=say)
        gpus = _own_gpus() if device == "gpu" else []
        if device == "gpu" and not gpus:
            raise NoDevice(
                "no NVIDIA GPU was found (nvidia-smi lists none); --cluster-address uses GPUs of other machines"
            )
        return Processes(self.count, gpus)


def _own_gpus() -> list[str]:
    """Returns the names of our GPUs, each as CUDA_VISIBLE_DEVICES names it to a process that may use this GPU alone."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    count = len(find_gpus())
    return [word.strip() for word in visible.split(",")][:count] if visible else [str(n) for n in range(count)]


def _address(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    if value is None or re.fullmatch(r"((tcp|tls|ws|wss|ucx)://)?[^\s/]+:\d{1,5}", value):
        return value
    raise UsageProblem(
        f"--cluster-address {value!r} is not the address of a Dask scheduler, such as tcp://10.0.0.1:8786; leave it "
        "out for processes of this machine"
    )


where_options = group(
    "where",
    Where,
    click.option(
        "--jobs", type=click.IntRange(1, 1024), metavar="N", help="Processes on this machine.  [default: one per core]"
    ),
    click.option(
        "--cluster-address",
        metavar="ADDRESS",
        callback=_address,
        help="Address of a running Dask cluster, such as tcp://10.0.0.1:8786.  [default: processes of this machine]",
    ),
)


def job_timeout_option(command: Command) -> Command:
    return click.option(
        "--timeout",
        type=FiniteRange(0, min_open=True),
        default=LIMIT,
        show_default=True,
        metavar="SECONDS",
        help="Time limit of an emulated launch or a job on a GPU, in seconds.",
    )(command)


@click.command("sweep")
@click.argument("what", nargs=-1, required=True, metavar="SWEEP.toml|KERNEL...|all")
@click.option(
    "--shape",
    "shapes",
    multiple=True,
    metavar="M,N,K",
    help="Sizes or ranges of sizes, FIRST:LAST:STEP, LAST included; a single one gives cubes. Repeatable.",
)
@problem_option(("inputs", "seed"), " Lists and ranges give several values: seed=0:9.")
@settings_option(SEVERAL)
@click.option("--dtype", metavar="TYPE,...", help=f"Types of A and B: {', '.join(DTYPES)}.")
@click.option(
    "--kind", type=click.Choice(KINDS), help="Run and validate, check the synchronisation, or predict.  [default: run]"
)
@click.option("--device", type=click.Choice(DEVICES), metavar="DEVICE", help="gpu, emulator or model, which predicts.")
@click.option(
    "--schedules",
    metavar="SCHEDULES",
    help="One job per schedule: fifo, random:SEED, random:FIRST:LAST, or a number, 10 or 10@SEED: fifo and random "
    "ones.  [default: fifo]",
)
@job_timeout_option
@where_options
@click.option(
    "--resume",
    type=click.Choice(["missing", "failed"]),
    is_flag=False,
    flag_value="missing",
    metavar="[failed]",
    help="Run the jobs that the last run of this sweep did not record; with failed, repeat failed jobs, too.",
)
@click.option("--dry-run", is_flag=True, help="Plan the sweep and run nothing.")
@output_option("json", "csv")
def sweep(
    what: tuple[str, ...],
    shapes: tuple[str, ...],
    settings: tuple[tuple[str, str], ...],
    words: tuple[str, ...],
    dtype: str | None,
    timeout: float,
    where: Where,
    resume: str | None,
    dry_run: bool,
    outputs: Outputs,
    **asked: str | None,
) -> int:
    """Run all combinations of KERNELs, shapes and configurations.

    Lists are written 2,4,8 and ranges 3:6 or 512:8192:512. Combinations that a kernel refuses are counted by reason and
    left out. A record of each job goes to results/sweeps/; -o FILE.csv writes a table of them, FILE.json their counts.
    """
    problem = dict(settings)
    given = {**asked, "inputs": problem.get("inputs"), "seeds": problem.get("seed")}
    found = _sweep(what, shapes, read_settings(words, dtype), given)
    console = Console(stderr=True)
    start = time.monotonic()
    planned = plan(found)
    _show_plan(console, planned, time.monotonic() - start)
    path = journal.folder() / f"{found.id}.jsonl"
    tally = Tally(planned.count, sum(planned.refused.values()))
    if not dry_run:
        tally = _run(console, planned, path, where, timeout, resume)
        show_line(console, f"records are in {path}")
    rows: list[table.Row] = []
    if outputs.asks_for("csv") or (planned.count <= MOST_JOBS_SHOWN and not dry_run):
        rows = table.load(path, keys={job.key for job in planned.jobs()})
    if not dry_run:
        show_results(Console(stderr=not outputs.shows_report), rows)
    _show_tally(console, tally, resume is not None)
    written = outputs.write(json=lambda: f"{json.dumps(tally.as_dict())}\n", csv=lambda: table.as_csv(rows))
    written.show(console)
    if tally.wrong:
        return EXIT_WRONG_RESULT
    return EXIT_CANNOT_RUN if tally.failed or not written.complete else EXIT_FINDINGS if tally.unsound else EXIT_OK


def _sweep(
    what: Sequence[str], shapes: Sequence[str], options: dict[str, str], given: Mapping[str, str | None]
) -> Sweep:
    asked: dict[str, Any] = {name: text for name, text in given.items() if text is not None}
    asked |= {name: options.pop(name) for name in ("arch", "preset") if name in options}
    schedules, fifo_first = asked.pop("schedules", None), False
    if schedules == "fifo":
        asked["schedule_seeds"] = None
    elif schedules is not None and schedules.startswith("random:"):
        asked["schedule_seeds"] = schedules.removeprefix("random:")
    elif schedules is not None:
        counted = parse_schedules(schedules)
        if counted.schedule != "fifo" or counted.count == 1:
            raise UsageProblem(f"--schedules {schedules}: a sweep takes fifo, random:SEED, a range of them, or 10@SEED")
        seed = counted.seed or 0
        asked["schedule_seeds"], fifo_first = f"{seed}:{seed + counted.count - 2}", True
    if ":" in options.get("scheduler", ""):
        raise UsageProblem(
            f"scheduler {options['scheduler']!r} is no scheduler of a kernel; use some of {', '.join(SCHEDULERS)}, "
            "and --cluster-address for a Dask cluster"
        )
    files = [word for word in what if word.endswith(".toml")]
    if len(files) < len(what) and files:
        raise UsageProblem(f"{files[0]} names the kernels; leave the other words out")
    if files:
        by = {**asked, "options": options, **({"shapes": shapes} if shapes else {})}
        found = read_sweep(Path(files[0]), by)
    else:
        found = make_sweep("-".join(what), kernels=what, shapes=shapes, options=options, **asked)
    return replace(found, schedule_seeds=(None, *(found.schedule_seeds or ()))) if fifo_first else found


def _run(console: Console, planned: SweepPlan, path: Path, where: Where, limit: float, resume: str | None) -> Tally:
    def say(message: str) -> None:
        show_line(console, message, "yellow")

    workers = where.engine(planned.sweep.device, say)
    begun = False
    try:
        with (
            journal.Journal(path, say=say) as kept,
            job_progress(console, planned.count, TICK) as report,
            workers as engine,
        ):
            begun = True
            return run_sweep(
                planned,
                engine,
                kept,
                workers=where.count,
                limit=limit,
                resume=resume is not None,
                retry_failed=resume == "failed",
                report=lambda what, tally: report(what, tally.done, tally.ran + tally.failed),
                everywhere=where.cluster_address is not None,
            )
    except KeyboardInterrupt:
        show_line(console, "interrupted; the finished jobs are kept, --resume continues from here")
        raise
    except CannotRun as error:
        if not begun:
            raise
        raise CannotRun(f"{error}; the finished jobs are kept, --resume continues from here") from error


def _show_plan(console: Console, planned: SweepPlan, seconds: float) -> None:
    show_line(
        console,
        f"{planned.sweep.id}: {several(planned.count, 'job')}, {several(len(planned.configs), 'configuration')}, "
        f"{sum(planned.refused.values()):,} refused; planned in {seconds:.1f} s",
    )
    if planned.refused:
        rows = [(f"{count:,}", planned.examples[reason]) for reason, count in planned.refused.most_common(SHOWN)]
        show_table(console, "refused beforehand", ("jobs", "reason, and the first of them"), rows)


def show_results(console: Console, rows: Sequence[table.Row]) -> None:
    """Shows the fastest configurations of each problem if there are times, otherwise the results of the first jobs."""
    rankings = table.ranked(rows)
    for ranking in rankings:
        _show_ranking(console, ranking)
    if rankings or not rows:
        return
    names = table.differing(rows, ("kernel", "m", "n", "k", "inputs", "seed", "schedule_seed"))
    cells = [(*(_cell(row.get(name)) for name in names), table.result_of(row)) for row in rows[:RESULTS]]
    more = f", the first {RESULTS} of them" if len(rows) > RESULTS else ""
    show_table(console, f"{several(len(rows), 'job')}{more}", (*map(_word, names), "result"), cells)


def _show_ranking(console: Console, ranking: table.Ranking) -> None:
    """Shows the options in which these configurations differ, and their times."""
    choices, best = ranking.choices, ranking.rows[0][ranking.figure]
    status, flops = ranking.figure.partition("_")[0], 2 * ranking.m * ranking.n * ranking.k
    rows = []
    for row in ranking.rows[:FASTEST]:
        seconds = row[ranking.figure]
        times = (f"{1e6 * seconds:.2f}", f"{flops / seconds / 1e12:,.0f}", f"{seconds / best:.3f}")
        rows.append((*(_cell(row.get(name)) for name in choices), *times))
    problem = f"C[{ranking.m},{ranking.n}], K={ranking.k}, {ranking.dtype}"
    shown = f", the fastest {FASTEST} of them" if len(ranking.rows) > FASTEST else ""
    title = f"{problem} on {ranking.device}: {len(ranking.rows)} with a time{shown}"
    show_table(console, title, (*map(_word, choices), f"{status} us", "TFLOPS", "over the best"), rows)


def _word(column: str) -> str:
    return column.removeprefix("config_").replace("_", " ")


def _cell(value: object) -> str:
    return "" if value is None else str(value)


def _show_tally(console: Console, tally: Tally, resume: bool) -> None:
    parts = [f"{tally.ran:,} ran" + (f" ({tally.verdict})" if tally.verdict else ""), f"{tally.failed:,} failed"]
    if resume:
        earlier = ", ".join(f"{count:,} {verdict}" for verdict, count in sorted(tally.earlier.items()))
        parts.append(f"{tally.reused:,} were done already" + (f" ({earlier})" if earlier else ""))
    show_line(console, ", ".join(parts))
    for reason, count in sorted(tally.reasons.items(), key=lambda item: -item[1])[:SHOWN]:
        show_line(console, f"  {count:,} x {reason}", "red")
