"""What is shown of a run: its figures, its counters, and where a wrong result is wrong."""

from __future__ import annotations

from rich.console import Console

from harness.cli.render import by, flatten_counters, show_line, show_table
from harness.launch.options import name_schedules
from harness.problem.validation import Validation
from harness.run.runner import Outcome


def show_outcome(console: Console, outcome: Outcome) -> None:
    """Shows the report of one run."""
    request, record, validation = outcome.request, outcome.record, outcome.validation
    title = f"{request.config.kernel}  C[{request.shape.m},{request.shape.n}], K={request.shape.k}"
    show_table(console, title, ("", "value"), _summary(outcome))
    if record["counters"]:
        show_table(console, "counters", ("counter", "count"), flatten_counters(record["counters"]))
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
        f"wrong tiles: {len(wrong)} of {validation.tiles} (a tile is {rows} rows x {columns} columns)",
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
