"""Shows the tables of ``emugpu ptx list``, ``emugpu run`` and ``emugpu verify DIR``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from emugpu.cli.render import flatten_counters, show_line, show_table
from emugpu.emulator.isa import NEWEST
from emugpu.emulator.names import readable_name, short_name
from emugpu.launch.corpus import NOT_LAUNCHED, Row
from emugpu.launch.coverage import ISA_COLUMNS
from emugpu.launch.expectation import Comparison
from emugpu.launch.launching import LaunchOutcome, ScheduleOutcome, name_schedules
from emugpu.launch.listing import ListedKernel, Listing

SHOWN_REFUSALS = 20


def show_listing(console: Console, file: Path, listing: Listing) -> None:
    """Shows a PTX file: a line for the file, and a table per kernel."""
    wrote = f", written by {listing.compiler}" if listing.compiler else ""
    count = len(listing.kernels)
    show_line(
        console,
        f"{file}: PTX {listing.version} for {listing.target}{wrote}, {count} kernel{'' if count == 1 else 's'}",
    )
    for kernel in listing.kernels:
        show_line(console, "")
        _show_kernel(console, kernel)
    if listing.symbols:
        show_line(console, "")
        show_table(
            console,
            "variables a host may set",
            ("space", "name", "bytes"),
            [(space, readable_name(name), str(size)) for space, name, size in listing.symbols],
        )


def show_coverage(console: Console, rows: Sequence[Sequence[str]]) -> None:
    """Shows the table of the ISA."""
    runs = sum(row[-1] == "runs" for row in rows)
    show_table(console, f"PTX ISA {NEWEST}: {runs} of {len(rows)} families and forms run", ISA_COLUMNS, rows)


def _show_kernel(console: Console, kernel: ListedKernel) -> None:
    title = f"kernel {short_name(kernel.name)}, line {kernel.line}"
    # Compilers repeat the kernel's name in that of each parameter.
    rows = [
        (str(p.index), p.name.removeprefix(kernel.name).lstrip("_") or p.name, str(p.bytes), str(p.align), p.seems)
        for p in kernel.parameters
    ]
    if rows:
        show_table(console, title, ("parameter", "name", "bytes", "align", "seems to be"), rows)
    else:
        show_line(console, title)
        show_line(console, "parameters: " + ("not known" if kernel.problem else "none"))
    directives = " ".join(f".{name} {','.join(map(str, n))}".rstrip() for name, n in kernel.directives.items())
    show_line(console, f"directives: {directives or 'none'}")
    if kernel.static_shared is not None:
        dynamic = ", and dynamic" if kernel.dynamic_shared else ""
        show_line(console, f"shared memory: {kernel.static_shared} bytes static{dynamic}")
    if kernel.problem:
        show_line(console, f"cannot be launched: {kernel.problem}", "bold red")
    elif not kernel.unimplemented:
        show_line(console, f"all {kernel.instructions} instructions are implemented", "green")
    else:
        refused = kernel.unimplemented
        show_line(console, f"{len(refused)} of {kernel.instructions} instructions are not implemented:", "yellow")
        for refusal in refused[:SHOWN_REFUSALS]:
            show_line(console, f"  line {refusal.line}: {refusal.text}: {refusal.why}")
        if len(refused) > SHOWN_REFUSALS:
            show_line(console, f"  ... and {len(refused) - SHOWN_REFUSALS} more; -o FILE.json has them all")


def show_outcome(console: Console, outcome: LaunchOutcome, tried: Sequence[ScheduleOutcome]) -> None:
    """Shows the report of a run."""
    kernels = ", ".join(dict.fromkeys(short_name(one.kernel) for one in outcome.launched))
    if outcome.output:
        show_line(console, outcome.output.rstrip("\n"))
    show_table(
        console,
        f"{outcome.what.file}: {kernels}",
        ("", "value"),
        [
            *_device(outcome, tried),
            ("compiler", outcome.compiler or "not known"),
            ("launches", str(len(outcome.launched))),
            ("time on the GPU", outcome.why_no_time),
        ],
    )
    counters = {name: value for name, value in outcome.counters.items() if value}
    if counters:
        show_table(console, "counters", ("counter", "count"), flatten_counters(counters))
    if outcome.warnings:
        show_table(
            console,
            "warnings: broken rules that hardware is known to tolerate",
            ("rule", "line", "count", "what"),
            [(w.rule, str(w.line), str(w.count), w.message.replace("\n", " ")) for w in outcome.warnings],
        )
    for verdict in outcome.verdicts:
        if isinstance(verdict, Comparison):
            wrong = f"WRONG in {verdict.mismatches:,} of {verdict.elements:,} elements"
            state = "as expected" if verdict.passed else wrong
            text = f"{verdict.buffer} = {verdict.expected}: {state} ({verdict.rule})"
            show_line(console, text, "" if verdict.passed else "red")
    show_mistakes(console, outcome)
    name = outcome.what.file.name if outcome.what.file else outcome.what.label
    if not outcome.verdicts:
        show_line(console, f"{name}: RAN, no result was expected", "bold")
    elif outcome.passed:
        show_line(console, f"{name}: PASSED", "bold green")
    else:
        show_line(console, f"{name}: WRONG RESULT", "bold red")


def show_mistakes(console: Console, outcome: LaunchOutcome) -> None:
    """Shows which elements of the buffers are wrong."""
    for verdict in outcome.verdicts:
        if isinstance(verdict, Comparison) and verdict.mistakes:
            show_table(
                console,
                f"first wrong elements of {verdict.buffer}",
                ("place", "got", "expected"),
                [(str(list(m.index)), f"{m.got:g}", f"{m.expected:g}") for m in verdict.mistakes],
            )


def show_corpus(console: Console, folder: Path, rows: Sequence[Row]) -> None:
    """Shows a table of kernels, and below it the reasons of verdicts that are not clean."""
    show_table(
        console,
        f"{folder}: {len({row.file for row in rows})} files, {len({(row.file, row.kernel) for row in rows})} kernels",
        ("file", "kernel", "compiler", "implemented", "verdict", "warnings", "seconds"),
        [
            (
                row.file,
                short_name(row.kernel),
                row.compiler or "?",
                row.implemented,
                row.result,
                "-" if row.warnings is None else str(row.warnings),
                "-" if row.seconds is None else f"{row.seconds:.2f}",
            )
            for row in rows
        ],
    )
    for launch, (result, reason) in {row.launch: (row.result, row.reason) for row in rows}.items():
        if reason:
            show_line(console, f"{launch}: {result}: {reason}")
    counts = Counter(row.result for row in rows)
    found = ", ".join(f"{count} {'not launched' if name == NOT_LAUNCHED else name}" for name, count in counts.items())
    show_line(console, found, "bold")


def _device(outcome: LaunchOutcome, tried: Sequence[ScheduleOutcome]) -> list[tuple[str, str]]:
    device = outcome.device
    if "accumulation" not in device:
        return [("device", f"{device['name']}, compute capability {device['compute_capability']}")]
    schedules = name_schedules(device["schedule"], device["schedule_seed"])
    if len(tried) > 1:
        right = sum(one.passed for one in tried)
        wrong = [one.name for one in tried if not one.passed]
        failed = f"; not {', '.join(wrong[:10])}" if wrong else ""
        schedules = (
            f"{name_schedules('fifo', tried[1].options.seed, len(tried))}; {right} of {len(tried)} right{failed}"
        )
    return [
        ("device", f"{device['name']}, {device['accumulation']} accumulation"),
        ("schedule", schedules),
        ("time to emulate", f"{outcome.seconds:.3f} s"),
    ]
