"""The command line: options in, reports and exit codes out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

import click
from rich.console import Console

import harness
from harness.build.artifacts import build_with_notice
from harness.build.catalog import KERNELS
from harness.build.presets import PRESETS
from harness.cli import render
from harness.cli.bench import bench
from harness.cli.check import check_command
from harness.cli.clean import clean
from harness.cli.clear_errors import ClearErrors, written_clearly
from harness.cli.doctor import as_dict as doctors_findings
from harness.cli.doctor import examine, is_able
from harness.cli.exec import exec_command
from harness.cli.inspection import build_command, explain
from harness.cli.options import (
    ConfigOptions,
    NamedPath,
    OutputOptions,
    RunOptions,
    check_folder,
    check_output,
    config_options,
    json_option,
    kernels_argument,
    output_options,
    ptx_option,
    run_options,
    shape_option,
    write_output,
)
from harness.cli.predict import for_gpu, predict_command
from harness.cli.predict import show as show_predictions
from harness.cli.ptx import ptx
from harness.cli.repeat import command_of
from harness.cli.report import report
from harness.cli.running import attempt_all, edited_pair, kernels_named, make_requests, read_edited_for, save
from harness.cli.survey import survey_command
from harness.cli.sweep import sweep
from harness.cli.timeline import timeline_command
from harness.cli.tune import tune
from harness.errors import EXIT_CANNOT_RUN, EXIT_OK, UsageProblem
from harness.launch.edited import put_in_place
from harness.problem.shape import Shape
from harness.report.published import PublishedFigure, published_figures
from harness.run import compare
from harness.run.dump import dump as dump_result
from harness.run.runner import Outcome, Request
from harness.timing.constants import find_gpu
from harness.timing.predict import Prediction, predict


class Commands(ClearErrors, click.Group):
    """The program's commands."""


@click.group("harness", cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(harness.__version__, prog_name="harness", message="%(prog)s %(version)s")
def main() -> None:
    """Compile, run and validate matmul kernels for Blackwell GPUs.

    Exit codes: 0 ok, 1 check or bench has found something, 2 usage, 3 could not run, measure or write, 4 wrong result,
    130 interrupted.
    """


@main.command()
@kernels_argument
@shape_option
@config_options
@ptx_option
@run_options
@output_options
@click.option(
    "--dump",
    type=NamedPath(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Keep inputs, output, reference, PTX and plan of a wrong result there.",
)
def run(
    kernels: tuple[str, ...],
    shape: Shape,
    config: ConfigOptions,
    ptx_file: Path | None,
    run: RunOptions,
    output: OutputOptions,
    dump: Path | None,
) -> int:
    """Run each KERNEL, check its result and log a record.

    With --ptx the kernel that FILE holds is run as it is there.
    """
    check_folder(dump, "--dump")
    edited, run = read_edited_for(ptx_file, run)
    requests = make_requests(kernels_named(kernels), shape, config, run, output)
    if dump and requests[0].gpu:
        raise UsageProblem("--dump keeps what the emulator computed, and a GPU would run this; add --device emulator")
    compiled = build_with_notice([request.config for request in requests])
    pairs = list(zip(requests, compiled, strict=True))
    if edited:
        for position, artifact in put_in_place(edited, compiled, shape).items():
            pairs[position] = edited_pair(requests[position], artifact)
    entries: list[compare.Entry] = []
    written = True
    labels = [_label(request, len(requests)) for request, _ in pairs]
    for entry in attempt_all(pairs, labels):
        entries.append(entry)
        if entry.outcome:
            written &= _keep(entry.outcome, entries, len(requests), output)
            if dump and not entry.outcome.validation.passed:
                written &= written_clearly(partial(_dump, entry.outcome, dump))
    if output.json_path == "-":
        written &= written_clearly(lambda: _write_records(entries, len(requests), "-"))
    return compare.exit_code(entries) or (EXIT_OK if written else EXIT_CANNOT_RUN)


@main.command("compare")
@kernels_argument
@shape_option
@config_options
@ptx_option
@run_options
@output_options
@click.option("--predict", "gpu_name", metavar="GPU", help="Show what the timing model predicts for that GPU, too.")
def compare_kernels(
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
    requests = make_requests(kernels_named(kernels), shape, config, run, output)
    compiled = build_with_notice([request.config for request in requests])
    in_place = put_in_place(edited, compiled, shape) if edited else {}
    pairs = []
    for position, pair in enumerate(zip(requests, compiled, strict=True)):
        pairs.append(pair)
        if position in in_place:
            pairs.append(edited_pair(pair[0], in_place[position]))
    entries = []
    labels = [f"{compare.name_of(request.config.kernel, request.ptx)}: " for request, _ in pairs]
    for entry in attempt_all(pairs, labels):
        entries.append(entry)
        if entry.outcome and not output.no_save:
            save(entry.outcome)
    predictions = [predict(artifact, shape, gpu) for artifact in compiled] if gpu is not None else []
    written = _report_comparison(shape, entries, output.json_path, predictions)
    return compare.exit_code(entries) or (EXIT_OK if written else EXIT_CANNOT_RUN)


@main.command("list")
@json_option
def list_kernels(json_path: str | None) -> None:
    """List the kernels and the presets."""
    if json_path is not None:
        check_output(json_path, "--json")
        kernels, presets = ([asdict(each) for each in table.values()] for table in (KERNELS, PRESETS))
        write_output(_as_json({"schema": 1, "kernels": kernels, "presets": presets}), json_path)
        return
    console = Console()
    render.show_kernels(console, KERNELS.values())
    render.show_presets(console, PRESETS.values())


@main.command()
@json_option
def doctor(json_path: str | None) -> int:
    """Show what is available and what will be used."""
    check_output(json_path, "--json")
    findings = examine()
    if json_path is None:
        render.show_findings(Console(), findings)
    else:
        write_output(_as_json(doctors_findings(findings)), json_path)
    return EXIT_OK if is_able(findings) else EXIT_CANNOT_RUN


def _label(request: Request, kernels: int) -> str:
    """Of what a problem is, where that is not clear: of which kernel, and of which file that was edited by hand."""
    parts = [request.config.kernel] * (kernels > 1) + [str(request.ptx)] * (request.ptx is not None)
    return "".join(f"{part}: " for part in parts)


def _keep(outcome: Outcome, entries: Sequence[compare.Entry], kernels: int, output: OutputOptions) -> bool:
    """Keeps a result, and then shows it: a reader that goes away must not cost it. Whether all could be written."""
    places: list[tuple[str, object]] = []
    written = True
    record_file = None if output.no_save else save(outcome)
    if output.json_path not in (None, "-"):
        path = str(output.json_path)
        written = written_clearly(lambda: _write_records(entries, kernels, path))
        if written:
            places.append(("written", path))
    if record_file:
        places.append(("added", record_file))
    return written_clearly(lambda: _show(outcome, output.json_path == "-", places)) and written


def _show(outcome: Outcome, as_json: bool, places: Sequence[tuple[str, object]]) -> None:
    console = Console(stderr=as_json)
    if not as_json:
        render.show_outcome(console, outcome)
    elif not outcome.validation.passed:
        render.show_mistakes(console, outcome.validation)
    if not outcome.validation.passed:
        render.show_line(console, f"to repeat: {command_of(outcome.request)}")
    if as_json:
        return
    for what, place in places:
        render.show_line(console, f"record {what} to {place}")


def _dump(outcome: Outcome, folder: Path) -> None:
    place = dump_result(outcome, folder)
    render.show_line(Console(stderr=True), f"inputs, output, reference, PTX and plan are in {place}")


def _write_records(entries: Sequence[compare.Entry], kernels: int, path: str) -> None:
    """The record, or a list of the records of several kernels; nothing if there is none."""
    found = [entry.outcome.record for entry in entries if entry.outcome]
    if found:
        write_output(_as_json(found if kernels > 1 else found[0]), path)


def _report_comparison(
    shape: Shape, entries: list[compare.Entry], json_path: str | None, predictions: Sequence[Prediction] = ()
) -> bool:
    """Whether all could be written. The file first: a reader of the screen that goes away must not cost it."""
    published = published_figures()
    written = True
    if json_path:
        data = {**compare.as_dict(entries), "published": [asdict(figure) for figure in published]}
        if predictions:
            data["predictions"] = [prediction.as_dict() for prediction in predictions]
        written = written_clearly(lambda: write_output(_as_json(data), json_path))
    if json_path == "-":
        return written
    place = json_path if written else None
    return written_clearly(lambda: _show_comparison(shape, entries, published, predictions, place)) and written


def _show_comparison(
    shape: Shape,
    entries: list[compare.Entry],
    published: Sequence[PublishedFigure],
    predictions: Sequence[Prediction],
    json_path: str | None,
) -> None:
    console = Console()
    render.show_comparison(console, shape, entries, published)
    if predictions:
        console.print()
        show_predictions(console, predictions)
    for entry in entries:
        if entry.outcome and not entry.outcome.validation.passed:
            render.show_line(console, f"to repeat: {command_of(entry.outcome.request)}")
    if json_path:
        render.show_line(console, f"comparison written to {json_path}")


def _as_json(data: object) -> str:
    return json.dumps(data, indent=2, allow_nan=False) + "\n"


for command in (
    bench,
    build_command,
    check_command,
    clean,
    exec_command,
    explain,
    predict_command,
    ptx,
    report,
    survey_command,
    sweep,
    timeline_command,
    tune,
):
    main.add_command(command)
