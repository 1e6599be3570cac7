"""Draws a compared timeline as SVG with the colours of the page: hollow what is predicted, solid what is measured.

Spans of one kind in one row are one path, and those too small to see are drawn together, so that a picture stays small.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from harness.report.timelines import Compared, Lane
from harness.timing.timeline import Span

KINDS = {
    "load": "TMA loads",
    "mma": "multiplications",
    "store": "stores",
    "control": "asks for the next tile",
    "issue": "issues",
    "convert": "reads and converts C",
    "work": "other instructions",
    "wait": "waits",
}
"""What there is to be seen, in the order of the legend; each is a colour of the page."""
LEFT, PLOT, RIGHT = 184.0, 740.0, 8.0
TOP, LANE, BETWEEN, ROW_GAP, PART_GAP = 22.0, 9.0, 1.0, 6.0, 34.0
LEAST = 0.5
"""Units of the picture below which a gap between spans of one kind is closed, and to which a span is widened."""
TICK = 2_000
EDGE = 20.0
"""Ticks nearer to an edge have their number to one side."""


def picture(compared: Compared, name: str, title: str, description: str) -> str:
    """The <svg> element, to be put into the page. name: of its ids."""
    parts: list[str] = []
    y = 0.0
    for window in compared.windows:
        y = _part(compared, window, y, parts)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="timeline" viewBox="0 0 {LEFT + PLOT + RIGHT:g} {y:g}" '
        f'role="img" aria-labelledby="{name}-title {name}-desc"><title id="{name}-title">{escape(title)}</title>'
        f'<desc id="{name}-desc">{escape(description)}</desc>'
    )
    return head + "\n".join(parts) + "</svg>"


def _part(compared: Compared, window: tuple[float, float], y: float, parts: list[str]) -> float:
    """Rows within a window below y, under an axis. Returns where the next part begins."""
    first, last = window
    y += TOP
    height = LANE * len(compared.sources) + BETWEEN * (len(compared.sources) - 1)
    bottom = y + len(compared.rows) * (height + ROW_GAP)
    ticks = range(int(-(-first // TICK)) * TICK, int(last) + 1, TICK)
    for tick in ticks:
        x = _x(tick, window)
        parts.append(f'<path class="grid" d="M{x:.1f} {y - 4:g}V{bottom:g}"/>')
        anchor = "end" if x > LEFT + PLOT - EDGE else "start" if x < LEFT + EDGE else "middle"
        parts.append(f'<text class="muted" x="{x:.1f}" y="{y - 8:g}" text-anchor="{anchor}">{tick:,}</text>')
    parts.append(f'<text class="muted" x="{LEFT - 8:g}" y="{y - 8:g}" text-anchor="end">cycle</text>')
    for row in compared.rows:
        parts.append(f'<text x="{LEFT - 8:g}" y="{y + height / 2 + 4:g}" text-anchor="end">{escape(row.name)}</text>')
        for source, lane in (("predicted", row.predicted), ("measured", row.measured)):
            if source in compared.sources:
                parts += _lane(lane, source, window, y)
                y += LANE + BETWEEN
        y += ROW_GAP - BETWEEN
    return bottom + PART_GAP - TOP


def _lane(lane: Lane | None, source: str, window: tuple[float, float], y: float) -> list[str]:
    if lane is None:
        return [f'<text class="muted none" x="{LEFT + 4:g}" y="{y + LANE - 1:g}">not {source}</text>']
    found = []
    for kind in KINDS:
        pieces = _pieces([span for span in lane if span.kind == kind], window)
        if pieces:
            top, high = (y + LANE / 2 - 0.75, 1.5) if kind == "wait" else (y, LANE)
            d = "".join(f"M{x:.1f} {top:g}h{w:.1f}v{high:g}h-{w:.1f}z" for x, w in pieces)
            found.append(f'<path class="{source} {kind}" d="{d}"/>')
    return found


def _pieces(spans: Sequence[Span], window: tuple[float, float]) -> list[tuple[float, float]]:
    """Left edges and widths; spans that overlap or nearly touch are one."""
    first, last = window
    found: list[tuple[float, float]] = []
    for span in spans:
        if span.end <= first or span.start >= last:
            continue
        start, end = _x(max(span.start, first), window), _x(min(span.end, last), window)
        if found and start - sum(found[-1]) < LEAST:
            x, width = found[-1]
            found[-1] = (x, max(width, end - x))
        else:
            found.append((start, max(LEAST, end - start)))
    return found


def _x(cycle: float, window: tuple[float, float]) -> float:
    first, last = window
    return LEFT + (cycle - first) / (last - first) * PLOT
