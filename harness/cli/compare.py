"""The command ``harness compare``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click
from rich.console import Console

from emugpu.cli.emulation import Emulation
from emugpu.cli.options import as_json
from emugpu.cli.outputs import Outputs, output_option
from emugpu.cli.program import try_write
from emugpu.cli.render import show_line, show_table
from emugpu.errors import EXIT_CANNOT_RUN, EXIT_OK
from harness.cli.options import (
    ConfigOptions,
    Problem,
    kernels_argument,
    no_save_option,
    problem_options,
    ptx_option,
    run_options,
    several_config_options,
)
from harness.cli.repeat import command_of
from harness.cli.run import show_mistakes
from harness.cli.running import RunOptions, attempt_all, exit_code, prepare, save
from harness.problem import Shape
from harness.report.data import compact
from harness.report.published import PublishedFigure, published_figures
from harness.run import compare


@click.command("compare")
@kernels_argument
@problem_options("groups", "masked", "inputs", "seed")
@several_config_options
@run_options
@ptx_option
@output_option("json")
@no_save_option
def compare_command(
    kernels: tuple[str, ...],
    problem: Problem,
    configs: list[ConfigOptions],
    device: str,
    emulation: Emulation,
    ptx_file: Path | None,
    outputs: Outputs,
    no_save: bool,
) -> int:
    """Run KERNELs on one problem and show what each step changes.

    -c stages=3,4 compares two configurations of a kernel; --ptx compares a compiled kernel with the PTX in FILE. Each
    result is checked, and recorded as by harness run. Published figures are listed below, with their source.
    """
    several = prepare(kernels, problem, configs, RunOptions(device, emulation, ptx_file, no_save), beside=True)
    entries = []
    for entry in attempt_all(several, [f"{one.entry(None).name}: " for one in several]):
        entries.append(entry)
        if entry.outcome and not no_save:
            save(entry.outcome)
    written = _report_comparison(problem.shape, entries, outputs)
    return exit_code(entries) or (EXIT_OK if written else EXIT_CANNOT_RUN)


def _report_comparison(shape: Shape, entries: list[compare.ComparedKernel], outputs: Outputs) -> bool:
    """Writes the file, then the screen, because a closed pipe ends the program. Returns whether both were written."""
    published = published_figures()
    data = {**compare.as_dict(entries), "published": [asdict(figure) for figure in published]}
    written = outputs.write(json=lambda: as_json(data))
    if not outputs.shows_report:
        return written.complete
    shown = try_write(lambda: _show_comparison(shape, entries, published, written.places))
    return shown and written.complete


def _show_comparison(
    shape: Shape,
    entries: list[compare.ComparedKernel],
    published: Sequence[PublishedFigure],
    places: Sequence[str],
) -> None:
    """Shows the kernels side by side, what each step changes, and published figures."""
    console = Console()
    columns = [compare.figures(entry) for entry in entries]
    speeds = [dict(compare.performance(entry)) for entry in entries]
    names = dict.fromkeys(name for speed in speeds for name in speed)
    rows = [
        ("result", *(compare.verdict(entry) for entry in entries)),
        *((name, *(speed.get(name, "-") for speed in speeds)) for name in names),
        *((name, *(_value(column[name]) for column in columns)) for name in compare.FIGURES),
    ]
    devices = {entry.outcome.record["device"]["name"]: None for entry in entries if entry.outcome}
    title = f"{shape.title} on {', '.join(devices) or 'nothing'}"
    show_table(console, title, ("", *(entry.name for entry in entries)), rows)
    for step in compare.steps(entries):
        show_line(console, "")
        changes = ((name, _value(before), _value(after)) for name, before, after in step.changes)
        show_table(
            console,
            f"what changes from {step.before} to {step.after}",
            ("", step.before, step.after),
            changes,
        )
    show_line(console, "")
    show_published(console, published)
    for entry in entries:
        if entry.outcome and not entry.outcome.validation.passed:
            show_line(console, f"\n{entry.config.label}: WRONG RESULT", "bold red")
            show_mistakes(console, entry.outcome.validation)
    for entry in entries:
        if entry.outcome and not entry.outcome.validation.passed:
            show_line(console, f"to repeat: {command_of(entry.outcome.request)}")
    for place in places:
        show_line(console, f"comparison written to {place}")


def show_published(console: Console, published: Sequence[PublishedFigure]) -> None:
    """Shows published figures with their sources."""
    show_table(
        console,
        "published by others on their hardware, not measured here",
        ("by", "what", "on", "TFLOPS", "of cuBLAS"),
        (
            (
                figure.author,
                figure.name,
                f"{figure.gpu}, {compact(figure.shape)} {figure.dtype}",
                f"{figure.tflops:g}",
                f"{figure.tflops / figure.vendor_tflops:.0%}" if figure.vendor_tflops else "-",
            )
            for figure in published
        ),
    )
    for line in dict.fromkeys(_source(figure) for figure in published):
        show_line(console, line)


def _source(figure: PublishedFigure) -> str:
    return f"{figure.author}: {figure.source}{f', {figure.link}' if figure.link else ''}"


def _value(value: int | float | str | None) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int | float) else value
