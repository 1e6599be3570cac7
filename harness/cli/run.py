"""``harness run``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import click
from rich.console import Console

from emugpu.cli.options import NamedPath, as_json, check_folder, profile_option, write_output
from emugpu.cli.program import try_write
from emugpu.cli.render import by, flatten_counters, show_line, show_table
from emugpu.errors import EXIT_CANNOT_RUN, EXIT_OK, UsageProblem
from emugpu.launch.launching import name_schedules
from harness.cli.options import (
    ConfigOptions,
    OutputOptions,
    RunOptions,
    config_options,
    output_options,
    ptx_option,
    run_options,
    shape_option,
    what_argument,
)
from harness.cli.repeat import command_of
from harness.cli.run_file import run_file
from harness.cli.running import (
    attempt_all,
    exit_code,
    kernels_named,
    make_requests,
    one_launch_file,
    read_edited_for,
    save,
)
from harness.compile.artifacts import OUTPUT, build_with_notice
from harness.problem import Shape
from harness.run import compare
from harness.run.dump import dump as dump_result
from harness.run.edited import put_in_place
from harness.run.runner import Outcome, Request
from harness.validation import Validation


@click.command("run")
@profile_option
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

    FILE.mojo in place of a name is a kernel of your own.

    --ptx runs FILE's PTX instead of the compiled kernel. A LAUNCH.toml runs all of its launches, on the emulated GPU or
    with --device gpu on this machine's, and checks its expectations.
    """
    check_folder(dump, "--dump")
    file = one_launch_file(kernels)
    if file:
        return run_file(file, run, output, dump)
    edited, run = read_edited_for(ptx_file, run)
    requests = make_requests(kernels_named(kernels, config.dtype), shape, config, run, output)
    if dump and requests[0].gpu:
        raise UsageProblem("--dump keeps what the emulator computed, and a GPU would run this; add --device emulator")
    compiled = build_with_notice([request.config for request in requests])
    pairs = list(zip(requests, compiled, strict=True))
    if ptx_file and edited:
        for position, artifact in put_in_place(ptx_file, edited, compiled, shape).items():
            pairs[position] = (replace(requests[position], ptx=artifact.edited), artifact)
    entries: list[compare.Entry] = []
    written = True
    labels = [_label(request, len(requests)) for request, _ in pairs]
    for entry in attempt_all(pairs, labels):
        entries.append(entry)
        if entry.outcome:
            written &= _keep(entry.outcome, entries, len(requests), output)
            if dump and not entry.outcome.validation.passed:
                written &= try_write(partial(_dump, entry.outcome, dump))
    if output.json_path == "-":
        written &= try_write(lambda: _write_records(entries, len(requests), "-"))
    return exit_code(entries) or (EXIT_OK if written else EXIT_CANNOT_RUN)


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
        written = try_write(lambda: _write_records(entries, kernels, path))
        if written:
            places.append(("written", path))
    if record_file:
        places.append(("added", record_file))
    return try_write(lambda: _show(outcome, output.json_path == "-", places)) and written


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


GRANTING = "--shape 4096,2048,512"
"""Has more clusters than an emulated B200 holds at once, so that who asks for the next tile is given one."""


def show_outcome(console: Console, outcome: Outcome) -> None:
    """Shows the report of one run."""
    request, record, validation = outcome.request, outcome.record, outcome.validation
    title = f"{request.config.kernel}  {request.shape.title}"
    show_table(console, title, ("", "value"), _summary(outcome))
    if record["counters"]:
        show_table(console, "counters", ("counter", "count"), flatten_counters(record["counters"]))
        if request.config.scheduler == "clc" and not record["counters"]["clusters_granted"]:
            show_line(console, f"Launch control granted no cluster: all fit on the GPU at once. {GRANTING} has more.")
    if not validation.passed:
        show_mistakes(console, validation)
    verdict, style = ("PASSED", "bold green") if validation.passed else ("WRONG RESULT", "bold red")
    edited = f" with PTX of {outcome.artifact.edited}" if outcome.artifact.edited else ""
    show_line(console, f"{request.config.kernel}{edited} on {record['device']['name']}: {verdict}", style)


def show_mistakes(console: Console, validation: Validation) -> None:
    """Shows where an output is wrong."""
    rows, columns = validation.tile
    wrong = validation.wrong_tiles
    show_table(
        console,
        f"wrong tiles{'' if validation.buffer == OUTPUT else f' of {validation.buffer}'}: {len(wrong)} of "
        f"{validation.tiles} (a tile is {rows} rows x {columns} columns)",
        ("tile", "rows", "columns", "wrong elements"),
        (
            (
                f"{tile.row},{tile.column}",
                f"from {tile.row * rows}",
                f"from {tile.column * columns}",
                f"{tile.mismatches} of {tile.elements}",
            )
            for tile in wrong[:10]
        ),
    )
    if len(wrong) > 10:
        show_line(console, f"... and {len(wrong) - 10} more tiles")
    show_table(
        console,
        "first wrong elements",
        ("row", "column", "got", "expected", "may differ by"),
        (
            (str(m.row), str(m.column), f"{m.got:g}", f"{m.expected:g}", f"{m.allowed:.3g}")
            for m in validation.first_mismatches
        ),
    )


def _summary(outcome: Outcome) -> list[tuple[str, str]]:
    request, validation, plan, record = outcome.request, outcome.validation, outcome.plan, outcome.record
    device, ptxas, toolchain = record["device"], record["ptx"]["ptxas"], record["toolchain"]
    config = request.config
    built = "just now" if outcome.artifact.compiled_now else "earlier, taken from the build cache"
    compiled = f"{built}; Mojo {toolchain['mojo']}"
    if outcome.artifact.edited:
        compiled = f"no: edited PTX from {outcome.artifact.edited}"
    rule = "equal to the rounded reference" if validation.exact else f"within {validation.tolerance}"
    launch = f"grid {by(plan.grid)}, cluster {by(plan.cluster)}, block {by(plan.block)}"
    return [
        ("device", _device(device)),
        ("config", config.label.removeprefix(f"{config.kernel} ")),
        ("compiled", compiled),
        ("ptxas", ptxas.get("error") or _registers(ptxas)),
        ("launch", f"{launch}, {plan.dynamic_smem} bytes of shared memory"),
        ("inputs", f"{request.inputs}, seed {request.seed}"),
        ("rule", f"every element {rule}"),
        ("wrong elements", f"{validation.mismatches:,} of {validation.elements:,}"),
        ("not finite", f"{validation.non_finite:,}"),
        ("max abs error", f"{validation.max_abs_error:g}"),
        ("relative Frobenius error", f"{validation.relative_frobenius_error:.3g}"),
        *_timing(record),
    ]


def _device(device: dict) -> str:
    if "accumulation" in device:
        schedules = name_schedules(device["schedule"], device["schedule_seed"], device["schedules"])
        return f"{device['name']}, {device['accumulation']} accumulation, {schedules}"
    return f"{device['name']}, compute capability {device['compute_capability']}, driver {device['driver']}"


def _timing(record: dict) -> list[tuple[str, str]]:
    """Shows what was measured, with the vendor's; or why nothing was."""
    timing, device = record["timing"], record["device"]
    if timing["seconds"] is None:
        rows = [("time on the GPU", timing["reason"])]
        if "emulation_seconds" in device:
            rows.append(("time to emulate", f"{device['emulation_seconds']} s"))
        return rows
    summary = timing["summary"]
    spread = f"quartiles {summary['lower_quartile'] * 1e6:.1f} to {summary['upper_quartile'] * 1e6:.1f}"
    rows = [
        (
            "time on the GPU",
            f"{timing['seconds'] * 1e6:.1f} us, median of {summary['samples']} samples, {spread}",
        ),
        ("TFLOPS", f"{timing['tflops']:.1f}"),
    ]
    for name, vendor in timing["vendor"].items():
        share = f"{vendor['tflops']:.1f} TFLOPS; the kernel has {vendor['ratio']:.3f} of it"
        rows.append((f"{name}, same process", share))
    after = timing.get("after")
    if after:
        state = f"{after['sm_clock_mhz']} MHz, {after['power_w']:.0f} W, {after['temperature_c']} C"
        rows.append(("GPU afterwards", state))
    if timing.get("reason"):
        rows.append(("ended early", timing["reason"]))
    return rows


def _registers(ptxas: dict) -> str:
    spills = ptxas["spill_store_bytes"] + ptxas["spill_load_bytes"]
    return f"{ptxas['registers']} registers, {spills} bytes of spills, {ptxas['stack_bytes']} bytes of stack"
