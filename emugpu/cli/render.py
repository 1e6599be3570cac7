"""Shows tables on a terminal and plain lines elsewhere, and reports progress by a bar or by a line now and then."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

NARROW = 16
"""Columns of the terminal that each column of a table needs on average to be readable."""


def show_table(console: Console, title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Shows a table on a terminal; elsewhere shows lines whose columns are aligned by spaces, with nothing cut off."""
    rows = [list(row) for row in rows]
    if console.is_terminal and console.width < NARROW * len(columns):
        _show_below_each_other(console, title, columns, rows)
        return
    if console.is_terminal:
        table = Table(title=title, title_justify="left")
        for column in columns:
            table.add_column(column, overflow="fold")
        for row in rows:
            table.add_row(*(escape(cell) for cell in row))
        console.print(table)
        return
    widths = [max(len(row[i]) for row in [columns, *rows]) for i in range(len(columns))]
    lines = [
        title,
        *("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in [columns, *rows]),
    ]
    console.print("\n".join(line.rstrip() for line in lines), markup=False, highlight=False, soft_wrap=True)


def _show_below_each_other(console: Console, title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Shows a paragraph for each row, on a terminal too narrow for a table."""
    console.print(f"[bold]{escape(title)}[/]")
    for first, *rest in rows:
        console.print(escape(first) or "-", style="bold", highlight=False)
        for column, cell in zip(columns[1:], rest, strict=True):
            if cell:
                text = escape(f"{column}: {cell}" if column else cell)
                console.print(Padding(text, (0, 0, 0, 2)), highlight=False)


def show_line(console: Console, text: str, style: str = "") -> None:
    """Prints text unchanged, without wrapping."""
    console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)


def several(count: int, what: str) -> str:
    """Returns a number with its noun: ``1 case``, ``2,000 cases``."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def flatten_counters(counters: dict[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Returns the rows of a table. The name of a nested counter starts with the names of its groups."""
    rows: list[tuple[str, str]] = []
    for name, value in counters.items():
        if isinstance(value, dict):
            rows += flatten_counters(value, f"{prefix}{name}: ")
        else:
            rows.append((f"{prefix}{name}".replace("_", " "), f"{value:,}" if isinstance(value, int) else str(value)))
    return rows


def by(sizes: Iterable[int]) -> str:
    return "x".join(str(size) for size in sizes)


SECONDS = 30.0
"""Seconds between two progress lines."""


@contextmanager
def progress_bar(what: str, unit: str) -> Iterator[Callable[[int, int], None]]:
    """Shows the progress of a block on standard error. Yields a function to call with (units done, units)."""
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
    """Writes lines from a thread, because a single unit may take minutes."""
    start, ended, far = time.monotonic(), threading.Event(), ""

    def report(done: int, total: int) -> None:
        nonlocal far
        far = f", {done:,} of {total:,} {unit}"

    def print_lines() -> None:
        while not ended.wait(SECONDS):
            show_line(console, f"{what}: {time.monotonic() - start:.0f} s{far}")

    thread = threading.Thread(target=print_lines, daemon=True)
    thread.start()
    try:
        yield report
    finally:
        ended.set()
        thread.join()
