"""Turns results into text: tables on a terminal, plain lines otherwise."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from harness.build.catalog import Kernel
from harness.build.presets import Preset
from harness.cli.doctor import Finding
from harness.problem.shape import Shape
from harness.problem.validation import Validation
from harness.report.published import PublishedFigure
from harness.run import compare
from harness.run.runner import Outcome

NARROW = 16
"""Columns of a terminal that a column of a table needs on average to be readable."""


def show_table(console: Console, title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A table on a terminal; otherwise lines with the columns aligned by spaces and nothing cut off."""
    rows = [list(row) for row in rows]
    if console.is_terminal and console.width < NARROW * len(columns):
        _show_below_each_other(console, title, columns, rows)
        return
    if console.is_terminal:
        table = Table(title=title, title_justify="left")
        for column in columns:
            table.add_column(column, overflow="fold")
        for row in rows:
            table.add_row(*(escape(cell) for cell in row))
        console.print(table)
        return
    widths = [max(len(row[i]) for row in [columns, *rows]) for i in range(len(columns))]
    lines = [
        title,
        *("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in [columns, *rows]),
    ]
    console.print("\n".join(line.rstrip() for line in lines), markup=False, highlight=False, soft_wrap=True)


def _show_below_each_other(console: Console, title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """For a terminal on which a table would be columns of single words: a paragraph for each row."""
    console.print(f"[bold]{escape(title)}[/]")
    for first, *rest in rows:
        console.print(escape(first) or "-", style="bold", highlight=False)
        for column, cell in zip(columns[1:], rest, strict=True):
            if cell:
                text = escape(f"{column}: {cell}" if column else cell)
                console.print(Padding(text, (0, 0, 0, 2)), highlight=False)


def show_line(console: Console, text: str, style: str = "") -> None:
    """Text as it is, without wrapping."""
    console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)


def several(count: int, what: str) -> str:
    """``1 case``, ``2 cases``."""
    return f"{count} {what}{'' if count == 1 else 's'}"


def show_outcome(console: Console, outcome: Outcome) -> None:
    """The report of one run."""
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
    """Where an output is wrong."""
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


def show_kernels(console: Console, kernels: Iterable[Kernel]) -> None:
    """The kernels that can be run."""
    show_table(
        console,
        "kernels",
        ("kernel", "for", "what it is"),
        ((k.name, ", ".join(k.archs), k.summary) for k in kernels),
    )


def show_presets(console: Console, presets: Iterable[Preset]) -> None:
    """The presets, with what they set."""
    show_table(
        console,
        "presets",
        ("preset", "options", "what it is"),
        ((preset.name, _options(preset), preset.summary) for preset in presets),
    )


def show_comparison(
    console: Console, shape: Shape, entries: Sequence[compare.Entry], published: Sequence[PublishedFigure]
) -> None:
    """Kernels side by side, what each step changes, and what others have published."""
    columns = [compare.figures(entry) for entry in entries]
    speeds = [dict(compare.performance(entry)) for entry in entries]
    names = dict.fromkeys(name for speed in speeds for name in speed)
    rows = [
        ("result", *(compare.verdict(entry) for entry in entries)),
        *((name, *(speed.get(name, "-") for speed in speeds)) for name in names),
        *((figure.name, *(_value(column[figure.name]) for column in columns)) for figure in compare.FIGURES),
    ]
    devices = {entry.outcome.record["device"]["name"]: None for entry in entries if entry.outcome}
    title = f"C[{shape.m},{shape.n}], K={shape.k} on {', '.join(devices) or 'nothing'}"
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


def show_findings(console: Console, findings: Iterable[Finding]) -> None:
    """What the doctor found."""
    show_table(
        console,
        "what is available, and what it is used for",
        ("", "found", "use"),
        ((f.name, f.shown, f.use) for f in findings),
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
    launch = f"grid {_by(plan.grid)}, cluster {_by(plan.cluster)}, block {_by(plan.block)}"
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
        return f"{device['name']}, {device['accumulation']} accumulation, {device['schedule']} schedule"
    return f"{device['name']}, compute capability {device['compute_capability']}, driver {device['driver']}"


def _timing(record: dict) -> list[tuple[str, str]]:
    """What was measured, beside the vendor's; or why nothing was."""
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


def flatten_counters(counters: dict, prefix: str = "") -> list[tuple[str, str]]:
    """Rows of a table: nested counters with the names of what they are in before theirs."""
    rows: list[tuple[str, str]] = []
    for name, value in counters.items():
        if isinstance(value, dict):
            rows += flatten_counters(value, f"{prefix}{name}: ")
        else:
            rows.append((f"{prefix}{name}".replace("_", " "), f"{value:,}" if isinstance(value, int) else str(value)))
    return rows


def _options(preset: Preset) -> str:
    """As one would write them on the command line."""
    words = []
    for name, value in preset.options.items():
        option = f"--{name.replace('_', '-')}"
        if isinstance(value, bool):
            words.append(option if value else option.replace("--", "--no-"))
        else:
            words.append(f"{option} {_by(value) if isinstance(value, tuple) else value}")
    depths = sorted(set(preset.stages.values()))
    if depths:
        words.append(f"--stages {'|'.join(map(str, depths))}")
    return " ".join(words)


def _value(value: int | float | str | None) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int | float) else value


def _by(sizes: Iterable[int]) -> str:
    return "x".join(str(size) for size in sizes)
