"""``harness run``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import click
from rich.console import Console

from harness.build.artifacts import build_with_notice
from harness.cli.clear_errors import written_clearly
from harness.cli.launch_files import one_launch_file
from harness.cli.options import (
    ConfigOptions,
    NamedPath,
    OutputOptions,
    RunOptions,
    as_json,
    check_folder,
    config_options,
    output_options,
    ptx_option,
    run_options,
    shape_option,
    what_argument,
    write_output,
)
from harness.cli.render import show_line
from harness.cli.repeat import command_of
from harness.cli.run_file import run_file
from harness.cli.run_output import show_mistakes, show_outcome
from harness.cli.running import attempt_all, edited_pair, kernels_named, make_requests, read_edited_for, save
from harness.errors import EXIT_CANNOT_RUN, EXIT_OK, UsageProblem
from harness.problem.shape import Shape
from harness.run import compare
from harness.run.dump import dump as dump_result
from harness.run.edited import put_in_place
from harness.run.runner import Outcome, Request


@click.command("run")
@what_argument
@shape_option
@config_options
@ptx_option
@run_options
@output_options
@click.option(
    "--dump",
    type=NamedPath(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Keep inputs, output, reference, PTX and plan of a wrong result there; of LAUNCH.toml what buffers hold at "
    "the end, as .npy files.",
)
def run_command(
    kernels: tuple[str, ...],
    shape: Shape,
    config: ConfigOptions,
    ptx_file: Path | None,
    run: RunOptions,
    output: OutputOptions,
    dump: Path | None,
) -> int:
    """Run each KERNEL, check its result and log a record.

    --ptx runs FILE's PTX instead of the compiled kernel. A LAUNCH.toml runs all of its launches, on the emulated GPU or
    with --device gpu on this machine's, and checks its expectations.
    """
    check_folder(dump, "--dump")
    file = one_launch_file(kernels)
    if file:
        return run_file(file, run, output, dump)
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
        show_outcome(console, outcome)
    elif not outcome.validation.passed:
        show_mistakes(console, outcome.validation)
    if not outcome.validation.passed:
        show_line(console, f"to repeat: {command_of(outcome.request)}")
    if as_json:
        return
    for what, place in places:
        show_line(console, f"record {what} to {place}")


def _dump(outcome: Outcome, folder: Path) -> None:
    place = dump_result(outcome, folder)
    show_line(Console(stderr=True), f"inputs, output, reference, PTX and plan are in {place}")


def _write_records(entries: Sequence[compare.Entry], kernels: int, path: str) -> None:
    """The record, or a list of the records of several kernels; nothing if there is none."""
    found = [entry.outcome.record for entry in entries if entry.outcome]
    if found:
        write_output(as_json(found if kernels > 1 else found[0]), path)
