"""``harness compare``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import click
from rich.console import Console

from emugpu.cli.options import as_json, write_output
from emugpu.cli.program import try_write
from emugpu.cli.render import show_line, show_table
from emugpu.errors import EXIT_CANNOT_RUN, EXIT_OK
from harness.cli.options import (
    ConfigOptions,
    OutputOptions,
    RunOptions,
    config_options,
    kernels_argument,
    output_options,
    ptx_option,
    run_options,
    shape_option,
)
from harness.cli.predict import for_gpu
from harness.cli.predict import show as show_predictions
from harness.cli.repeat import command_of
from harness.cli.run import show_mistakes
from harness.cli.running import attempt_all, exit_code, kernels_named, make_requests, read_edited_for, save
from harness.compile.artifacts import build_with_notice
from harness.model.constants import find_gpu
from harness.model.predict import Prediction, predict
from harness.problem import Shape
from harness.report.published import PublishedFigure, published_figures
from harness.run import compare
from harness.run.edited import put_in_place


@click.command("compare")
@kernels_argument
@shape_option
@config_options
@ptx_option
@run_options
@output_options
@click.option("--predict", "gpu_name", metavar="GPU", help="Show what the timing model predicts for that GPU, too.")
def compare_command(
    kernels: tuple[str, ...],
    shape: Shape,
    config: ConfigOptions,
    ptx_file: Path | None,
    run: RunOptions,
    output: OutputOptions,
    gpu_name: str | None,
) -> int:
    """Run KERNELs on one problem and show what each step changes.

    Each result is checked, and logged as by run. Figures that others have published are shown below, as
    theirs. With --ptx the kernel that FILE holds is shown twice: as it is compiled, and as it is there.
    """
    gpu = find_gpu(gpu_name) if gpu_name is not None else None
    if gpu is not None:
        config = for_gpu(config, gpu)
    edited, run = read_edited_for(ptx_file, run)
    requests = make_requests(kernels_named(kernels, config.dtype), shape, config, run, output)
    compiled = build_with_notice([request.config for request in requests])
    in_place = put_in_place(ptx_file, edited, compiled, shape) if ptx_file and edited else {}
    pairs = []
    for position, (request, artifact) in enumerate(zip(requests, compiled, strict=True)):
        pairs.append((request, artifact))
        if position in in_place:
            pairs.append((replace(request, ptx=in_place[position].edited), in_place[position]))
    entries = []
    labels = [f"{compare.name_of(request.config.kernel, request.ptx)}: " for request, _ in pairs]
    for entry in attempt_all(pairs, labels):
        entries.append(entry)
        if entry.outcome and not output.no_save:
            save(entry.outcome)
    predictions = [predict(artifact, shape, gpu) for artifact in compiled] if gpu is not None else []
    written = _report_comparison(shape, entries, output.json_path, predictions)
    return exit_code(entries) or (EXIT_OK if written else EXIT_CANNOT_RUN)


def _report_comparison(
    shape: Shape, entries: list[compare.Entry], json_path: str | None, predictions: Sequence[Prediction]
) -> bool:
    """Whether all could be written. The file first: a reader of the screen that goes away must not cost it."""
    published = published_figures()
    written = True
    if json_path:
        data = {**compare.as_dict(entries), "published": [asdict(figure) for figure in published]}
        if predictions:
            data["predictions"] = [prediction.as_dict() for prediction in predictions]
        written = try_write(lambda: write_output(as_json(data), json_path))
    if json_path == "-":
        return written
    place = json_path if written else None
    return try_write(lambda: _show_comparison(shape, entries, published, predictions, place)) and written


def _show_comparison(
    shape: Shape,
    entries: list[compare.Entry],
    published: Sequence[PublishedFigure],
    predictions: Sequence[Prediction],
    json_path: str | None,
) -> None:
    """Shows kernels side by side, what each step changes, what others have published, and what is predicted."""
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
    if predictions:
        console.print()
        show_predictions(console, predictions)
    for entry in entries:
        if entry.outcome and not entry.outcome.validation.passed:
            show_line(console, f"to repeat: {command_of(entry.outcome.request)}")
    if json_path:
        show_line(console, f"comparison written to {json_path}")


def show_published(console: Console, published: Sequence[PublishedFigure]) -> None:
    """Figures of others, as theirs, with their sources below."""
    show_table(
        console,
        "published by others on their hardware, not measured here",
        ("by", "what", "on", "TFLOPS", "of cuBLAS"),
        (
            (
                figure.author,
                figure.name,
                f"{figure.gpu}, {_cube(figure.shape)} {figure.dtype}",
                f"{figure.tflops:g}",
                f"{figure.tflops / figure.vendor_tflops:.0%}" if figure.vendor_tflops else "-",
            )
            for figure in published
        ),
    )
    for line in dict.fromkeys(_source(figure) for figure in published):
        show_line(console, line)


def _cube(shape: str) -> str:
    """``4096x4096x4096`` as ``4096^3``."""
    sizes = shape.split("x")
    return f"{sizes[0]}^3" if len(set(sizes)) == 1 else shape


def _source(figure: PublishedFigure) -> str:
    return f"{figure.author}: {figure.source}{f', {figure.link}' if figure.link else ''}"


def _value(value: int | float | str | None) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int | float) else value
