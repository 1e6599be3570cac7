"""The comparison with measurements as a table in Markdown and as a scatter plot in SVG."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from html import escape
from textwrap import fill

from harness.markdown import table
from metrology.survey.uses import FIT, JUDGE, JUDGE_FAR, SEEN, TIMED
from metrology.validation.validation import Row, judge
from metrology.validation.validation_seconds import SecondsRow

BEGIN, END = "<!-- made by python -m metrology.validation.validate -->", "<!-- end -->"
SECONDS_BEGIN = "<!-- seconds, made by python -m metrology.validation.validate -->"
SIZE, MARGIN = 520, 60
USES = {
    JUDGE: "only judged, near the defaults",
    JUDGE_FAR: "only judged, anything allowed",
    SEEN: "seen while the model got its form",
    FIT: "used to fit",
}
COLOURS = {JUDGE: "#1f5fa8", JUDGE_FAR: "#8a3fa0", SEEN: "#7a9a3a", FIT: "#b5651d"}
TARGET = 0.12
"""No judged run should be further off."""
LINES = (1.0, 1 + TARGET, 1 - TARGET)
"""Of a plot of predicted over measured: what has no error, and where the target is to either side."""
AXES = ("measured cycles", "predicted cycles")
VERDICTS = ("", "runs", "mean error of the cycles", "largest", "within 12 %", "rank correlation")
RUNS = ("use", "run", *AXES, "error")
SECONDS = ("kernel, problem, inputs", "measured us", "predicted us", "predicted MHz", "error")


def put_between(page: str, text: str, begin: str = BEGIN) -> str:
    """The page with what lies between a mark and the end after it replaced."""
    before, _, rest = page.partition(begin)
    _, _, after = rest.partition(END)
    return f"{before}{begin}\n\n{text}\n{END}{after}"


def markdown(rows: Sequence[Row]) -> str:
    """The verdicts on cycles and counters, and a row for each run; the judged ones first."""
    lines = [*table(VERDICTS, verdicts(rows)), "", fill(counters(rows), 120), "", *table(RUNS, runs(rows))]
    return "\n".join(lines) + "\n"


def seconds_markdown(rows: Sequence[SecondsRow]) -> str:
    """Those that the power model's constants are from are left out of the verdict."""
    errors = [abs(row.error) for row in rows if not row.measured.fitted]
    verdict = (
        f"Of {len(errors)} kernels, problems and kinds of inputs in long rows of launches: mean error of the seconds "
        f"{100 * statistics.fmean(errors):.1f} %, largest {100 * max(errors):.1f} %."
    )
    ordered = sorted(rows, key=lambda row: -abs(row.error))
    return "\n".join([fill(verdict, 120), "", *table(SECONDS, [_seconds(row) for row in ordered])]) + "\n"


def _seconds(row: SecondsRow) -> tuple[str, ...]:
    times = (f"{1e6 * row.measured.seconds:,.1f}", f"{1e6 * row.seconds:,.1f}")
    return (row.measured.name, *times, f"{row.hertz / 1e6:,.0f}", f"{100 * row.error:+.1f} %")


def by_use(rows: Sequence[Row]) -> list[tuple[str, list[Row]]]:
    """The rows of each use that has some."""
    groups = [(use, [row for row in rows if row.measured.use == use]) for use in TIMED]
    return [(use, some) for use, some in groups if some]


def verdicts(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """Of the runs of each use, and of those of them that are whole and ragged: a row each, under `VERDICTS`."""
    found: list[tuple[str, ...]] = []
    for use, some in by_use(rows):
        found.append(_verdict(USES[use], some))
        for kind, part in (("whole", [r for r in some if r.whole]), ("ragged", [r for r in some if not r.whole])):
            if 1 < len(part) < len(some):
                found.append(_verdict(f"... of these, {kind}", part))
    return found


def _verdict(name: str, rows: Sequence[Row]) -> tuple[str, ...]:
    of = judge(rows)
    within = sum(abs(row.error) <= TARGET for row in rows)
    errors = (f"{100 * of.mean:.1f} %", f"{100 * of.largest:.1f} %")
    return (name, str(of.runs), *errors, str(within), f"{of.rank:.3f}")


def runs(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """A row for each run, under `RUNS`: the judged ones first, the worst first."""
    ordered = [row for _, some in by_use(rows) for row in sorted(some, key=lambda each: -abs(each.error))]
    return [
        (one.use, one.name, f"{one.cycles:,.0f}", f"{row.cycles:,.0f}", f"{100 * row.error:+.1f} %")
        for row in ordered
        for one in [row.measured]
    ]


def counters(rows: Sequence[Row]) -> str:
    """DRAM and L2 bytes and the tensor cores' work, against hardware counters of one cold launch."""
    have = [row for row in rows if row.measured.ncu]
    dram = sorted(abs(row.dram / row.measured.ncu["dram_bytes_read"] - 1) for row in have)
    l2 = sorted(row.l2 / row.measured.ncu["l2_bytes"] for row in have)
    tensor = sorted(abs(row.tensor / row.counted_tensor - 1) for row in have)
    cold = sorted(row.measured.ncu["cycles"] / row.measured.cycles - 1 for row in have)
    half, most = len(have) // 2, len(have) * 9 // 10
    return (
        f"Against hardware counters of {len(have)} of these runs (one cold launch each): bytes read from DRAM, median "
        f"error {100 * dram[half]:.0f} %, nine of ten within {100 * dram[most]:.0f} %; bytes asked of L2 over counted "
        f"ones, median {l2[half]:.2f} (from {l2[0]:.2f} to {l2[-1]:.2f}); cycles in which the tensor cores are busy, "
        f"median error {100 * tensor[half]:.1f} %, nine of ten within {100 * tensor[most]:.1f} %. Their share of the "
        f"launch cannot be compared: a cold launch takes longer than one in a row, {100 * cold[half]:.0f} % in the "
        f"median and {100 * cold[most]:.0f} % and more in one of ten."
    )


def scatter(rows: Sequence[Row]) -> str:
    """Predicted over measured cycles, both logarithmic; with `LINES`."""
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
    for factor in LINES:
        dashed = "" if factor == 1 else ' stroke-dasharray="4 4"'
        first, last = 10**low, 10**high
        start, end = max(first, first / factor), min(last, last / factor)
        parts.append(
            f'<line x1="{MARGIN + at(start):.1f}" y1="{MARGIN + SIZE - at(start * factor):.1f}" '
            f'x2="{MARGIN + at(end):.1f}" y2="{MARGIN + SIZE - at(end * factor):.1f}" stroke="#888"{dashed}/>'
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
    for n, (use, meaning) in enumerate(USES.items()):
        parts.append(f'<circle cx="{MARGIN + 16}" cy="{MARGIN + 18 + 18 * n}" r="4" fill="{COLOURS[use]}"/>')
        parts.append(f'<text x="{MARGIN + 26}" y="{MARGIN + 22 + 18 * n}">{meaning}</text>')
    middle = MARGIN + SIZE / 2
    parts += [
        f'<text x="{middle}" y="30" text-anchor="middle" font-weight="bold">Cycles on an H200: predicted over measured'
        "</text>",
        f'<text x="{middle}" y="{MARGIN + SIZE + 42}" text-anchor="middle">{AXES[0]}</text>',
        f'<text x="18" y="{middle}" text-anchor="middle" transform="rotate(-90 18 {middle})">{AXES[1]}</text>',
        "</svg>\n",
    ]
    return "\n".join(parts)
