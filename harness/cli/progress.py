"""Reports the progress of many jobs: a bar on a terminal, lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from emugpu.cli.render import show_line

Report = Callable[[str, int, int], None]
"""Called with the current activity, the number of jobs that are done, and how many of them this command ran."""


@contextmanager
def job_progress(console: Console, total: int, pause: float = 0.0) -> Iterator[Report]:
    """Yields a function that shows the progress, the rate and the remaining time. Without a terminal it prints a line,
    but none within ``pause`` seconds of the last one.

    The rate excludes the time before the first job, which compiles.
    """
    start, last = time.monotonic(), 0.0

    def ahead(done: int, ran: int) -> str:
        nonlocal start
        if not ran:
            start = time.monotonic()
            return ""
        rate = ran / max(time.monotonic() - start, 1e-9)
        return f", {rate:.1f} a second, {(total - done) / rate:.0f} s left"

    if not console.is_terminal:

        def line(what: str, done: int, ran: int) -> None:
            nonlocal last
            rest = ahead(done, ran)
            if time.monotonic() - last >= pause:
                last = time.monotonic()
                show_line(console, f"{what}: {done:,} of {total:,}{rest}")

        yield line
        return
    columns = BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}", markup=False)
    with Progress(*columns, console=console, transient=True, refresh_per_second=4) as bar:
        task = bar.add_task("", total=total)
        yield lambda what, done, ran: bar.update(task, completed=done, description=f"{what}{ahead(done, ran)}")
