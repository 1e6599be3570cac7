"""The comparison with measurements as a table in Markdown and as a scatter plot in SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from textwrap import fill

from harness.timing.validation import Row, judge

BEGIN, END = "<!-- made by python -m harness.timing.validate -->", "<!-- end -->"
SIZE, MARGIN = 520, 60
COLOURS = {"fit": "#b5651d", "judge": "#1f5fa8"}


def put_between(page: str, text: str) -> str:
    """The page with what lies between its two marks replaced."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{text}\n{END}{after}"


USES = {"judge": "only judged", "fit": "used to fit"}
VERDICTS = ("", "runs", "mean error of the cycles", "largest", "within 12 %", "rank correlation")
RUNS = ("use", "run", "measured cycles", "predicted cycles", "error")


def verdicts(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """Of the judged runs and of those that were there to fit: a row each, under `VERDICTS`."""
    found: list[tuple[str, ...]] = []
    for use, meaning in USES.items():
        some = [row for row in rows if row.measured.use == use]
        of = judge(some)
        within = sum(abs(row.error) <= 0.12 for row in some)
        errors = (f"{100 * of.mean:.1f} %", f"{100 * of.largest:.1f} %")
        found.append((meaning, str(of.runs), *errors, str(within), f"{of.rank:.3f}"))
    return found


def runs(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """A row for each run, under `RUNS`: the judged ones first, the worst first."""
    ordered = sorted(rows, key=lambda each: (each.measured.use != "judge", -abs(each.error)))
    return [
        (one.use, one.name, f"{one.cycles:,.0f}", f"{row.cycles:,.0f}", f"{100 * row.error:+.1f} %")
        for row in ordered
        for one in [row.measured]
    ]


def markdown(rows: Sequence[Row]) -> str:
    """The verdicts, and a row for each run; the judged ones first."""
    lines = [*_table(VERDICTS, verdicts(rows)), "", fill(counters(rows), 120), "", *_table(RUNS, runs(rows))]
    return "\n".join(lines) + "\n"


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    head = "| " + " | ".join(columns) + " |"
    return [head.replace("|  |", "| |", 1), "|" + "---|" * len(columns), *(f"| {' | '.join(row)} |" for row in rows)]


def counters(rows: Sequence[Row]) -> str:
    """DRAM and L2 bytes and the tensor cores' share, against hardware counters of one cold launch."""
    have = [row for row in rows if row.measured.ncu]
    dram = sorted(abs(row.dram / row.measured.ncu["dram_bytes_read"] - 1) for row in have)
    l2 = sorted(row.l2 / row.measured.ncu["l2_bytes"] for row in have)
    tensor = sorted(abs(100 * row.tensor - row.measured.ncu["tensor_percent"]) for row in have)
    half = len(have) // 2
    return (
        f"Against hardware counters of {len(have)} of these runs (one cold launch each): bytes read from DRAM, median "
        f"error {100 * dram[half]:.0f} %, nine of ten within {100 * dram[len(have) * 9 // 10]:.0f} %; bytes asked of "
        f"L2 over counted ones, median {l2[half]:.2f} (from {l2[0]:.2f} to {l2[-1]:.2f}); tensor cores busy, median "
        f"difference {tensor[half]:.1f} points, nine of ten within {tensor[len(have) * 9 // 10]:.1f}."
    )


def scatter(rows: Sequence[Row]) -> str:
    """Predicted over measured cycles, both logarithmic; the lines are no error, and 12 % to either side."""
    values = [value for row in rows for value in (row.measured.cycles, row.cycles)]
    low, high = math.log10(min(values)) - 0.1, math.log10(max(values)) + 0.1
    width = SIZE + 2 * MARGIN

    def at(value: float) -> float:
        return (math.log10(value) - low) / (high - low) * SIZE

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{width}" viewBox="0 0 {width} {width}" '
        'font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<rect x="{MARGIN}" y="{MARGIN}" width="{SIZE}" height="{SIZE}" fill="none" stroke="#999"/>',
    ]
    for factor, style in ((1.0, ""), (1.12, ' stroke-dasharray="4 4"'), (1 / 1.12, ' stroke-dasharray="4 4"')):
        first, last = 10**low, 10**high
        start, end = max(first, first / factor), min(last, last / factor)
        parts.append(
            f'<line x1="{MARGIN + at(start):.1f}" y1="{MARGIN + SIZE - at(start * factor):.1f}" '
            f'x2="{MARGIN + at(end):.1f}" y2="{MARGIN + SIZE - at(end * factor):.1f}" stroke="#888"{style}/>'
        )
    for power in range(math.ceil(low), math.floor(high) + 1):
        place = at(10.0**power)
        parts.append(f'<text x="{MARGIN + place:.0f}" y="{MARGIN + SIZE + 18}" text-anchor="middle">1e{power}</text>')
        parts.append(f'<text x="{MARGIN - 8}" y="{MARGIN + SIZE - place + 4:.0f}" text-anchor="end">1e{power}</text>')
    for row in rows:
        one = row.measured
        title = f"{one.name}: measured {one.cycles:,.0f}, predicted {row.cycles:,.0f}, {100 * row.error:+.1f} %"
        parts.append(
            f'<circle cx="{MARGIN + at(one.cycles):.1f}" cy="{MARGIN + SIZE - at(row.cycles):.1f}" r="4" '
            f'fill="{COLOURS[one.use]}" fill-opacity="0.7"><title>{escape(title)}</title></circle>'
        )
    for n, (use, meaning) in enumerate((("judge", "judged"), ("fit", "used to fit"))):
        parts.append(f'<circle cx="{MARGIN + 16}" cy="{MARGIN + 18 + 18 * n}" r="4" fill="{COLOURS[use]}"/>')
        parts.append(f'<text x="{MARGIN + 26}" y="{MARGIN + 22 + 18 * n}">{meaning}</text>')
    middle = MARGIN + SIZE / 2
    parts += [
        f'<text x="{middle}" y="30" text-anchor="middle" font-weight="bold">Cycles on an H200: predicted over measured'
        "</text>",
        f'<text x="{middle}" y="{MARGIN + SIZE + 42}" text-anchor="middle">measured cycles</text>',
        f'<text x="18" y="{middle}" text-anchor="middle" transform="rotate(-90 18 {middle})">predicted cycles</text>',
        "</svg>\n",
    ]
    return "\n".join(parts)
