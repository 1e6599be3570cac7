"""Plants small faults in the emulator, one at a time, and says how many of them the quick and thorough tests see.

    python tests/mutation/mutants.py                                                       300 faults, drawn with seed 1
    python tests/mutation/mutants.py --only emugpu/emulator/units/tma.py --count 9999     every place in one file
    python tests/mutation/mutants.py --only emugpu/emulator/units/tma.py:120              every place on one line

Run it from the root of the checkout, and edit nothing there while it runs. It changes no file: a process that has
imported pytest and NumPy, but nothing of ours, forks a child for every fault, which compiles the one module with the
fault in it and runs the tests. Before that they run once without a fault, where they must pass, and once more to note
which lines each test file executes: a fault is shown to these files only, the fastest first, and to none where no test
gets to the line. A fault is seen if a test fails, crashes or takes too long.

The faults: operators, comparisons and conditions turned round, integers off by one, calls, assignments, ``break`` and
``continue`` left out. Not touched is what is no code: text (docstrings, strings, and f-strings unless they are code),
what is raised, annotations, decorators, assertions, imports. Nor is what no program can notice, whatever is written
there: the -1 of ``reshape``, which any negative number can stand for; on which side the border is when a random number
is compared with a share; and what ``LEFT_OUT`` in ``mutation.py`` names, each with its reason. Some other faults change
nothing either: a survivor is a question, not always a gap. Processes that a test starts have no fault.
"""

from __future__ import annotations

import os

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # before NumPy is imported

import json
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import click
import hypothesis
import ml_dtypes  # noqa: F401  (imported once for all children)
import numpy  # noqa: F401
import pytest
from mutation import Mutant, compiled, draw
from rich.console import Console
from rich.table import Table

# ---- runs of the tests ----


@dataclass
class Run:
    """Test files that one child runs, and what came of it."""

    files: list[str]
    mutant: Mutant | None = None
    trace: str = ""
    """The folder of which executed lines are noted."""
    limits: tuple[int, int] = (0, 0)
    """Seconds for everything and for one test; 0 is no limit."""
    how: str = "no test gets to this line"
    seen: bool = False
    seconds: float = 0.0
    output: str = ""
    durations: dict[str, float] = field(default_factory=dict)
    lines: dict[str, list[int]] = field(default_factory=dict)


class Recorder:
    """A plugin of pytest that keeps what a run found out, and ends it at a test that takes too long."""

    def __init__(self, limit: int) -> None:
        self.limit, self.failed, self.durations = limit, "", dict[str, float]()

    def pytest_runtest_logstart(self) -> None:
        signal.alarm(self.limit)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.durations[report.nodeid] = self.durations.get(report.nodeid, 0.0) + report.duration
        self.pytest_collectreport(report)

    def pytest_collectreport(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if report.failed and not self.failed:
            self.failed = report.nodeid


def trace_lines(folder: str) -> dict[str, set[int]]:
    """Starts to collect the executed lines of the files in a folder."""
    lines: dict[str, set[int]] = {}
    known: dict[int, tuple[CodeType, Any]] = {}
    """By id: the code, and what notes its lines, or None where there is nothing to be learned (any more)."""

    def enter(frame: FrameType, event: str, arg: object) -> Any:
        code = frame.f_code
        found = known.get(id(code))
        if found is None:
            inside = code.co_filename.startswith(folder)
            found = known[id(code)] = code, noting(code) if inside else None
        return found[1]

    def noting(code: CodeType) -> Any:
        seen = lines.setdefault(code.co_filename, set())
        left = {line for _, _, line in code.co_lines() if line} - {code.co_firstlineno}

        def step(frame: FrameType, event: str, arg: object) -> Any:
            seen.add(frame.f_lineno)
            left.discard(frame.f_lineno)
            if left:
                return step
            known[id(code)] = code, None
            return None

        return step

    sys.settrace(enter)
    return lines


def child(root: Path, run: Run, code: CodeType | None, folder: Path) -> int:
    """The run itself; leaves what it found out in ``folder``."""
    os.setsid()
    output = os.open(folder / "output", os.O_WRONLY | os.O_CREAT)
    os.dup2(output, 1)
    os.dup2(output, 2)
    limit, limit_of_test = run.limits
    signal.alarm(limit)
    resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
    resource.setrlimit(resource.RLIMIT_CPU, (limit or resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    if code is not None:
        path, get_code = code.co_filename, SourceFileLoader.get_code
        SourceFileLoader.get_code = lambda self, name: code if self.path == path else get_code(self, name)  # type: ignore
    lines = trace_lines(str(root / run.trace)) if run.trace else {}
    recorder = Recorder(limit_of_test)
    options = ["-x", "-q", "--tb=short", f"--rootdir={root}", f"--basetemp={folder / 'tmp'}", "-p", "no:cacheprovider"]
    status = pytest.main(
        [*options, "-p", "no:xdist", "-m", "(not slow or thorough) and not gpu", *run.files], [recorder]
    )
    sys.settrace(None)
    noted = {Path(path).relative_to(root).as_posix(): sorted(hit) for path, hit in lines.items()}
    (folder / "found").write_text(json.dumps([recorder.failed, recorder.durations, noted]))
    return int(status)


def execute(root: Path, runs: Iterable[Run], jobs: int) -> Iterator[Run]:
    """Does the runs, ``jobs`` at a time, and yields them as they end."""
    waiting, running = iter(runs), dict[int, tuple[Run, Path, float]]()
    with tempfile.TemporaryDirectory(prefix="mutants-", ignore_cleanup_errors=True) as place:
        try:
            while True:
                while len(running) < jobs and (run := next(waiting, None)):
                    if run.files:
                        folder = Path(tempfile.mkdtemp(dir=place))
                        running[start(root, run, folder)] = run, folder, time.monotonic()
                    else:
                        yield run
                if not running:
                    return
                pid, status = os.wait()
                run, folder, began = running.pop(pid)
                kill_group(pid)  # what its tests left running
                finish(run, status, folder)
                run.seconds = time.monotonic() - began
                shutil.rmtree(folder, ignore_errors=True)
                yield run
        finally:
            for pid in running:
                kill_group(pid)
                os.waitpid(pid, 0)


def start(root: Path, run: Run, folder: Path) -> int:
    """The process id of the child."""
    code = compiled(root, run.mutant) if run.mutant else None
    if pid := os.fork():
        return pid
    status = 99
    try:
        status = child(root, run, code, folder)
    finally:
        os._exit(status)


def finish(run: Run, status: int, folder: Path) -> None:
    """Notes what came of a run that has ended."""
    run.seen, run.how = status != 0, "survived"
    ended = signal.Signals(status & 0x7F).name if status & 0x7F else f"status {status >> 8}"
    if (folder / "found").exists():
        failed, run.durations, run.lines = json.loads((folder / "found").read_text())
        ended = failed or ended
    if run.seen:
        run.how = {"SIGALRM": "takes too long", "SIGXCPU": "takes too long"}.get(ended, ended)
    run.output = (folder / "output").read_text(errors="replace") if (folder / "output").exists() else ""


def kill_group(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


# ---- the command ----


@click.command(context_settings={"show_default": True})
@click.option("--count", default=300, help="How many faults.")
@click.option("--seed", default=1, help="Of the draw.")
@click.option("--jobs", default=2, help="Children at a time.")
@click.option("--under", default="emugpu/emulator", help="The folder to plant faults in.")
@click.option("--only", multiple=True, metavar="FILE[:LINE]", help="Plant them there only; can be repeated.")
@click.option("--tests", multiple=True, default=("tests/emugpu/emulator/test_*.py",),
              metavar="PATTERN", help="The test files; can be repeated.")  # fmt: skip
@click.option("--slack", default=3.0, help="Times the clean run's time, after which a run takes too long.")
@click.option("--at-least", default=0, metavar="PERCENT", help="Exit with 1 if fewer of the faults are seen.")
@click.option("--list-survivors/--no-list-survivors", default=True)
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write every fault and what saw it.")
def main(count: int, seed: int, jobs: int, under: str, only: tuple[str, ...], tests: tuple[str, ...], slack: float,
         at_least: int, list_survivors: bool, json_path: Path | None) -> None:  # fmt: skip
    """Plants small faults, one at a time, and says how many of them the tests see that are quick
    or thorough."""
    root = Path.cwd()
    sys.path.insert(0, str(root))
    phases = [hypothesis.Phase.explicit, hypothesis.Phase.generate]  # the first failure is enough
    hypothesis.settings.register_profile("mutants", derandomize=True, database=None, deadline=None, phases=phases)
    hypothesis.settings.load_profile("mutants")
    files = sorted({file.relative_to(root).as_posix() for pattern in tests for file in root.glob(pattern)})
    mutants = draw(root, under, count, seed, only)
    [clean] = execute(root, [Run(files)], 1)
    if clean.seen or not files:
        click.echo(f"{clean.output}\nThe tests must pass without a fault: {clean.how}", err=True)
        raise SystemExit(2)
    click.echo(f"{len(files)} test files pass in {clean.seconds:.1f} s; {len(mutants)} faults")
    durations = {file: sum(s for test, s in clean.durations.items() if test.startswith(f"{file}::")) for file in files}
    files.sort(key=lambda file: durations[file])
    covered = {run.files[0]: run.lines for run in execute(root, [Run([file], trace=under) for file in files], jobs)}
    if not any(covered.values()):
        click.echo(f"No test runs a line of {root / under}: is another checkout imported?", err=True)
        raise SystemExit(2)

    def prepared(mutant: Mutant) -> Run:
        first, last = mutant.lines
        chosen = [f for f in files if any(first <= line <= last for line in covered[f].get(mutant.path, []))]
        total = int(slack * sum(durations[file] for file in chosen)) + 20
        return Run(chosen, mutant, limits=(total, int(slack * max(clean.durations.values())) + 5))

    ended: list[Any] = []
    for run in execute(root, (prepared(mutant) for mutant in mutants), jobs):
        ended.append(run)
        word = "seen    " if run.seen else "SURVIVED"
        click.echo(f"{len(ended):4}/{len(mutants)} {word} {run.seconds:5.1f} s  {run.mutant}  [{run.how}]")
    ended.sort(key=lambda run: mutants.index(run.mutant))
    total, survived = Counter(run.mutant.path for run in ended), Counter(r.mutant.path for r in ended if not r.seen)
    table = Table("file", "faults", "seen", "survived")
    for path in total:
        table.add_row(path, str(total[path]), str(total[path] - survived[path]), str(survived[path]))
    table.add_section()
    table.add_row("all", str(len(ended)), str(len(ended) - survived.total()), str(survived.total()))
    Console(width=max(100, Console().width)).print(table)
    for run in ended:
        if list_survivors and not run.seen:
            click.echo(f"{run.mutant}  [{run.how}]")
    if json_path:
        rows = [asdict(run.mutant) | {"seen": run.seen, "how": run.how, "seconds": run.seconds} for run in ended]
        json_path.write_text(json.dumps(rows, indent=1) + "\n")
    if 100 * survived.total() > (100 - at_least) * len(ended):
        click.echo(f"Fewer than {at_least} % of the faults are seen", err=True)
        raise SystemExit(1)


if __name__ == "__main__":
    main()
