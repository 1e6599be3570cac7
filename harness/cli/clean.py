"""The command ``harness clean``."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import click
from rich.console import Console

from emugpu import cache
from emugpu.cli.render import show_line, show_table
from emugpu.errors import EXIT_OK, UsageProblem


@click.command()
@click.option("--yes", is_flag=True, help="Do not ask.")
def clean(yes: bool) -> int:
    """Delete the build cache: compiled programs, PTX, MAX models. Records are not touched."""
    console = Console()
    folder = cache.root()
    kept = sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []
    if not kept:
        show_line(console, f"the build cache at {cache.root()} is empty")
        return EXIT_OK
    rows = [(path.name, f"{len(list(path.iterdir())):,}", _size(path)) for path in kept]
    show_table(console, f"the build cache at {folder}", ("", "entries", "size"), rows)
    if not yes:
        if not sys.stdin.isatty():
            raise UsageProblem("clean asks before it deletes, but there is no terminal; add --yes")
        click.confirm("delete it?", abort=True)
    shutil.rmtree(folder)
    show_line(console, "deleted; later commands compile again what they need")
    return EXIT_OK


def _size(folder: Path) -> str:
    files = (path for path in folder.rglob("*") if path.is_file())
    return f"{sum(path.stat().st_size for path in files) / 2**20:,.1f} MiB"
