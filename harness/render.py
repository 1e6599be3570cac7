"""Turns results into text: tables on a terminal, plain lines otherwise."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from harness.catalog import Kernel
from harness.doctor import Finding
from harness.runner import Outcome
from harness.validation import Validation


def show_table(console: Console, title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A table on a terminal; otherwise lines with the columns aligned by spaces and nothing cut off."""
    rows = [list(row) for row in rows]
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
        *(
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            for row in [columns, *rows]
        ),
    ]
    console.print("\n".join(line.rstrip() for line in lines), markup=False, highlight=False, soft_wrap=True)


def show_line(console: Console, text: str, style: str = "") -> None:
    """Text as it is, without wrapping."""
    console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)


def show_outcome(console: Console, outcome: Outcome) -> None:
    """The report of one run."""
    request, record, validation = outcome.request, outcome.record, outcome.validation
    title = f"{request.config.kernel}  C[{request.shape.m},{request.shape.n}], K={request.shape.k}"
    show_table(console, title, ("", "value"), _summary(outcome))
    show_table(console, "counters", ("counter", "count"), _flatten(record["counters"]))
    if not validation.passed:
        show_mistakes(console, validation)
    verdict, style = ("PASSED", "bold green") if validation.passed else ("WRONG RESULT", "bold red")
    show_line(console, f"{request.config.kernel} on {record['device']['name']}: {verdict}", style)


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


def show_findings(console: Console, findings: Iterable[Finding]) -> None:
    """What the doctor found."""
    show_table(
        console,
        "what is available, and what it is used for",
        ("", "found", "use"),
        ((f.name, f.found or ("MISSING" if f.needed else "none"), f.use) for f in findings),
    )


def _summary(outcome: Outcome) -> list[tuple[str, str]]:
    request, validation, plan, record = outcome.request, outcome.validation, outcome.plan, outcome.record
    device, ptxas, toolchain = record["device"], record["ptx"]["ptxas"], record["toolchain"]
    config = request.config
    built = "just now" if outcome.artifact.compiled_now else "earlier, taken from the build cache"
    rule = "equal to the rounded reference" if validation.exact else f"within {validation.tolerance}"
    launch = f"grid {_by(plan.grid)}, cluster {_by(plan.cluster)}, block {_by(plan.block)}"
    return [
        ("device", f"{device['name']}, {device['accumulation']} accumulation, {device['schedule']} schedule"),
        ("config", f"{config.dtype}, cluster {_by(config.cluster)}, {config.stages} stages"),
        ("compiled", f"{built}; Mojo {toolchain['mojo']}"),
        ("ptxas", ptxas.get("error") or _registers(ptxas)),
        ("launch", f"{launch}, {plan.dynamic_smem} bytes of shared memory"),
        ("inputs", f"{request.inputs}, seed {request.seed}"),
        ("rule", f"every element {rule}"),
        ("wrong elements", f"{validation.mismatches:,} of {validation.elements:,}"),
        ("not finite", f"{validation.non_finite:,}"),
        ("max abs error", f"{validation.max_abs_error:g}"),
        ("relative Frobenius error", f"{validation.relative_frobenius_error:.3g}"),
        ("time on the GPU", record["timing"]["reason"]),
        ("time to emulate", f"{device['emulation_seconds']} s"),
    ]


def _registers(ptxas: dict) -> str:
    spills = ptxas["spill_store_bytes"] + ptxas["spill_load_bytes"]
    return f"{ptxas['registers']} registers, {spills} bytes of spills, {ptxas['stack_bytes']} bytes of stack"


def _flatten(counters: dict, prefix: str = "") -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    for name, value in counters.items():
        if isinstance(value, dict):
            rows += _flatten(value, f"{prefix}{name}: ")
        else:
            rows.append(
                (f"{prefix}{name}".replace("_", " "), f"{value:,}" if isinstance(value, int) else str(value))
            )
    return rows


def _by(sizes: Iterable[int]) -> str:
    return "x".join(str(size) for size in sizes)
