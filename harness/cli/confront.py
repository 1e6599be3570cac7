"""The command ``harness confront`` compares the emulator and the timing model with published figures of a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from emugpu.cli.options import as_json
from emugpu.cli.outputs import Outputs, output_option
from emugpu.cli.render import progress_bar, show_line, show_table
from emugpu.errors import UsageProblem
from harness.model.constants import find_gpu
from harness.model.silicon.tables import SHIPPED, TableSource, find_tables, gpus_with_tables, read_sources, read_table
from harness.model.silicon.times import Confrontation, confront


@click.command("confront")
@click.argument("gpu_name", metavar="b200")
@click.option(
    "--data",
    "folder",
    metavar="DIR",
    help="A folder with tables of the same names and columns: .json files of sums, mma_intervals.csv, mma_depth.csv, "
    "mainloops.csv, multicast.csv, tma_latency_all_sms.csv, tma_throughput_dram.csv.  [default: those shipped]",
)
@output_option("json")
def confront_command(gpu_name: str, folder: str | None, outputs: Outputs) -> int:
    """Compare emulator and model with published figures of a GPU.

    Sums of the tensor core are compared bit by bit. Times are predicted; the error is the predicted minus the published
    value, relative to the published value.
    """
    if gpu_name not in gpus_with_tables():
        raise UsageProblem(
            f"GPU '{gpu_name}': it has no published tables; these GPUs have: {', '.join(gpus_with_tables())}"
        )
    sums_files, table_files = find_tables(SHIPPED / gpu_name if folder is None else Path(folder))
    tables = [read_table(path) for path in table_files]
    gpu = find_gpu(gpu_name)
    sums = _confront_sums(sums_files)
    found: list[Confrontation] = []
    done, total = 0, sum(len(table.rows) for table in tables)
    with progress_bar("predicting", "rows") as report:
        for table in tables:
            found += confront(table, gpu, partial(_report, report, done, total))
            done += len(table.rows)
    data = {"sums": sums, "tables": [each.as_dict() for each in found]}
    written = outputs.write(json=lambda: as_json(data))
    if outputs.shows_report:
        _show(Console(), gpu.title, sums, found, read_sources(gpu_name) if folder is None else None)
        written.show(Console())
    return written.exit_code


def _report(report: Callable[[int, int], None], before: int, total: int, ready: int) -> None:
    """Reports progress within a table: ``ready`` of its rows, after ``before`` rows of earlier tables."""
    report(before + ready, total)


def _confront_sums(files: Sequence[Path]) -> list[dict[str, Any]]:
    """Compares the sums of each file and returns plain data for JSON."""
    if not files:
        return []
    from harness.model.silicon.sums import confront_sums

    answers = [(path, confront_sums(path)) for path in files]
    return [
        {"file": path.name, "cases": each.cases, "different": each.different, "refused": each.refused}
        for path, each in answers
    ]


def _show(
    console: Console,
    title: str,
    sums: Sequence[dict[str, Any]],
    found: Sequence[Confrontation],
    sources: dict[str, TableSource] | None,
) -> None:
    """Shows the comparison. ``sources`` are those of the shipped tables, or None for a reader's own tables."""
    show_line(console, f"Published of an {title} by others, against what the model predicts. Nothing here is measured.")
    if sums:
        rows = ([each["file"], *(f"{each[key]:,}" for key in ("cases", "different", "refused"))] for each in sums)
        show_table(console, "\nsums of the tensor core, bit by bit", ("file", "cases", "different", "refused"), rows)
    if found:
        columns = (
            "table",
            "rows",
            "mean error",
            "largest",
            "refused",
            "the row with the largest: published, predicted",
        )
        show_table(console, "\ntimes", columns, map(_line, found))
    if sources is not None:
        show_table(console, "\nwhose they are", ("table", "source", "what it shows"), _sources(sums, found, sources))


def _line(found: Confrontation) -> list[str]:
    mean, worst = found.mean_error, found.worst
    refused = len(found.rows) - len(found.answered)
    if mean is None or worst is None or worst.predicted is None:
        return [found.name, f"{len(found.rows):,}", "", "", f"{refused:,}", ""]
    last = f"{worst.what}: {worst.published:,.5g}, {worst.predicted:,.5g} {found.unit}"
    return [
        found.name,
        f"{len(found.rows):,}",
        f"{100 * mean:.1f} %",
        f"{100 * worst.error:+.1f} %",
        f"{refused:,}",
        last,
    ]


def _sources(
    sums: Sequence[dict[str, Any]], found: Sequence[Confrontation], sources: dict[str, TableSource]
) -> Iterable[list[str]]:
    names = dict.fromkeys([Path(each["file"]).stem for each in sums] + [each.name for each in found])
    for name in names:
        if name in sources:
            source = sources[name]
            yield [name, f"{source.source}, {source.date}, {source.licence}", source.what]
