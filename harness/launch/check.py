"""Checks the synchronisation of what a launch file launches."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from harness.check.checker import Checked, Checker, together
from harness.errors import CannotRun
from harness.launch.launching import Options, run
from harness.launch.spec import LaunchFile
from harness.processes.engine import in_order
from harness.run.check import Progress, counted


def check_launch_file(file: LaunchFile, options: Options, schedules: int, progress: Progress | None = None) -> Checked:
    """Under fifo, and under random schedules from ``options.seed`` on; ``options.jobs`` of them side by side.

    Raises UsageProblem for what the file asks wrongly.
    """
    once = partial(_check_once, file, options)
    found = in_order(once, range(schedules), min(options.jobs, schedules))
    return together(list(counted(found, schedules, progress)))


def _check_once(file: LaunchFile, options: Options, number: int) -> Checked:
    checker = Checker()
    failure, correct = "", None
    try:
        outcome = run(
            file,
            replace(
                options,
                schedule="random" if number else "fifo",
                seed=options.seed + number,
                jobs=1,
                strict=False,
                sinks=(checker,),
            ),
        )
        correct = outcome.passed
    except CannotRun as error:
        failure = str(error)
        if isinstance(error.__cause__, Exception):
            checker.failed(error.__cause__)
    kernels = ", ".join(dict.fromkeys(launch.kernel or file.ptx.name for launch in file.launches))
    about = {"kernel": kernels, "config": {"launch_file": str(file.path), "ptx": str(file.ptx)}}
    return Checked(f"{file.path}: {kernels}", about, str(file.ptx), checker.report(), failure, correct)
