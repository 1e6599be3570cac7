"""How far a command is: a bar on a terminal, else a line now and then, so that a log shows that it lives."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from harness.cli.render import show_line

SECONDS = 30.0
"""Between two lines."""


@contextmanager
def progress_bar(what: str, unit: str) -> Iterator[Callable[[int, int], None]]:
    """Shows on standard error how far the work of this block is. Called with (units done, units)."""
    console = Console(stderr=True)
    if not console.is_terminal:
        with _lines(console, what, unit) as report:
            yield report
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(unit),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextmanager
def _lines(console: Console, what: str, unit: str) -> Iterator[Callable[[int, int], None]]:
    """A thread writes them, as a single unit may take minutes."""
    start, ended, far = time.monotonic(), threading.Event(), ""

    def report(done: int, total: int) -> None:
        nonlocal far
        far = f", {done:,} of {total:,} {unit}"

    def tell() -> None:
        while not ended.wait(SECONDS):
            show_line(console, f"{what}: {time.monotonic() - start:.0f} s{far}")

    thread = threading.Thread(target=tell, daemon=True)
    thread.start()
    try:
        yield report
    finally:
        ended.set()
        thread.join()
