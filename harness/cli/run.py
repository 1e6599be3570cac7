"""The command ``harness run``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import click
from rich.console import Console

from emugpu.cli.emulation import Emulation
from emugpu.cli.options import as_json, write_output
from emugpu.cli.outputs import FOLDER, Outputs, output_option
from emugpu.cli.profile import profile_option
from emugpu.cli.program import try_write
from emugpu.cli.render import by, flatten_counters, show_line, show_table
from emugpu.errors import EXIT_CANNOT_RUN, EXIT_OK, UsageProblem
from emugpu.launch.launching import name_schedules
from harness.cli.options import (
    ConfigOptions,
    Problem,
    config_options,
    kernels_argument,
    no_save_option,
    problem_options,
    ptx_option,
    run_options,
)
from harness.cli.repeat import command_of
from harness.cli.running import Prepared, RunOptions, attempt_all, exit_code, prepare, save
from harness.compile.artifacts import OUTPUT
from harness.run import compare
from harness.run.dump import dump as dump_result
from harness.run.runner import Outcome
from harness.validation import Validation


@click.command("run")
@profile_option
@kernels_argument
@problem_options("groups", "masked", "inputs", "seed")
@config_options
@run_options
@ptx_option
@output_option("json", folder="a wrong result")
@no_save_option
def run_command(
    kernels: tuple[str, ...],
    problem: Problem,
    config: ConfigOptions,
    device: str,
    emulation: Emulation,
    ptx_file: Path | None,
    outputs: Outputs,
    no_save: bool,
) -> int:
    """Run each KERNEL, or FILE.mojo, and check its result."""
    several = prepare(kernels, problem, [config], RunOptions(device, emulation, ptx_file, no_save))
    if outputs.asks_for(FOLDER) and several[0].request.gpu:
        raise UsageProblem("-o DIR/ keeps results of the emulator, but a GPU would run this; add --device emulator")
    entries: list[compare.ComparedKernel] = []
    written = True
    for entry in attempt_all(several, [_label(one, len(several)) for one in several]):
        entries.append(entry)
        if entry.outcome:
            written &= _keep(entry.outcome, entries, len(several), outputs, no_save)
    if not outputs.shows_report and any(entry.outcome for entry in entries):
        written &= try_write(lambda: write_output(_records(entries, len(several)), "-"))
    return exit_code(entries) or (EXIT_OK if written else EXIT_CANNOT_RUN)


def _label(one: Prepared, kernels: int) -> str:
    """Returns the prefix of an error message: the kernel, and the edited file."""
    parts = [one.request.config.kernel] * (kernels > 1) + [str(one.request.ptx)] * (one.request.ptx is not None)
    return "".join(f"{part}: " for part in parts)


def _keep(
    outcome: Outcome, entries: Sequence[compare.ComparedKernel], kernels: int, outputs: Outputs, no_save: bool
) -> bool:
    """Saves a result before showing it, so a closed pipe cannot lose it. Returns whether everything was written."""
    record_file = None if no_save else save(outcome)
    files = Outputs(tuple(one for one in outputs.places if one[1] != "-"))
    dump = None if outcome.validation.passed else partial(_dump, outcome)
    written = files.write(dump, json=lambda: _records(entries, kernels))
    places = [f"record written to {place}" for place in written.places if not place.endswith("/")]
    if record_file:
        places.append(f"record added to {record_file}")
    return try_write(lambda: _show(outcome, not outputs.shows_report, places)) and written.complete


def _show(outcome: Outcome, as_json: bool, places: Sequence[str]) -> None:
    console = Console(stderr=as_json)
    if not as_json:
        show_outcome(console, outcome)
    elif not outcome.validation.passed:
        show_mistakes(console, outcome.validation)
    if not outcome.validation.passed:
        show_line(console, f"to repeat: {command_of(outcome.request)}")
    if as_json:
        return
    for line in places:
        show_line(console, line)


def _dump(outcome: Outcome, folder: Path) -> None:
    place = dump_result(outcome, folder)
    show_line(Console(stderr=True), f"inputs, output, reference, PTX and plan are in {place}")


def _records(entries: Sequence[compare.ComparedKernel], kernels: int) -> str:
    """Returns the record, or a list of the records of several kernels."""
    found = [entry.outcome.record for entry in entries if entry.outcome]
    return as_json(found if kernels > 1 else found[0])


GRANTING = "--shape 4096,2048,512"
"""This shape has more clusters than an emulated B200 holds at once, so launch control grants further tiles."""


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
    """Shows the measured times beside those of the vendor's library, or the reason why there are none."""
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
        share = f"{vendor['tflops']:.1f} TFLOPS; the kernel runs at {vendor['ratio']:.3f}x its speed"
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
