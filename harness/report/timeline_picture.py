"""Draws a compared timeline as SVG with the colours of the page: hollow what is predicted, solid what is measured.

Spans of one kind in one row are one path, and those too small to see are drawn together, so that a picture stays small.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from harness.model.timeline import KINDS, Span
from harness.report.timelines import Compared, Lane

LEFT, PLOT, RIGHT = 180.0, 740.0, 8.0
TOP, LANE, BETWEEN, ROW_GAP, PART_GAP = 22.0, 9.0, 1.0, 6.0, 34.0
LEAST = 0.5
"""Units of the picture below which a gap between spans of one kind is closed, and to which a span is widened."""
SVG = "http://www.w3.org/2000/svg"
TICK = 2_000
EDGE = 20.0
"""Ticks nearer to an edge have their number to one side."""


def picture(compared: Compared, name: str, title: str, description: str) -> str:
    """Two <svg> elements side by side, to be put into the page: the names of the rows, which stay where they are when a
    narrow screen scrolls, and the lanes. name: of the ids.
    """
    names: list[str] = []
    lanes: list[str] = []
    y = 0.0
    for window in compared.windows:
        y = _part(compared, window, y, names, lanes)
    share = 100 * LEFT / (LEFT + PLOT + RIGHT)
    return (
        f'<div class="timeline"><svg xmlns="{SVG}" class="names" style="width:{share:.3f}%" '
        f'viewBox="0 0 {LEFT:g} {y:g}" aria-hidden="true">{"".join(names)}</svg>'
        f'<svg xmlns="{SVG}" class="lanes" style="width:{100 - share:.3f}%" '
        f'viewBox="0 0 {PLOT + RIGHT:g} {y:g}" role="img" aria-labelledby="{name}-title {name}-desc">'
        f'<title id="{name}-title">{escape(title)}</title><desc id="{name}-desc">{escape(description)}</desc>'
        + "\n".join(lanes)
        + "</svg></div>"
    )


def _part(compared: Compared, window: tuple[float, float], y: float, names: list[str], lanes: list[str]) -> float:
    """Rows within a window below y, under an axis. Returns where the next part begins."""
    first, last = window
    y += TOP
    height = LANE * len(compared.sources) + BETWEEN * (len(compared.sources) - 1)
    bottom = y + len(compared.rows) * (height + ROW_GAP)
    names.append(_name("cycle", y - 8, "muted"))
    for tick in range(int(-(-first // TICK)) * TICK, int(last) + 1, TICK):
        x = _x(tick, window)
        anchor = "end" if x > PLOT - EDGE else "start" if x < EDGE else "middle"
        lanes.append(f'<path class="grid" d="M{x:.1f} {y - 4:g}V{bottom:g}"/>')
        lanes.append(f'<text class="muted" x="{x:.1f}" y="{y - 8:g}" text-anchor="{anchor}">{tick:,}</text>')
    for row in compared.rows:
        names.append(_name(row.name, y + height / 2 + 4, "row"))
        for source, lane in (("predicted", row.predicted), ("measured", row.measured)):
            if source in compared.sources:
                lanes += _lane(lane, source, window, y)
                y += LANE + BETWEEN
        y += ROW_GAP - BETWEEN
    return bottom + PART_GAP - TOP


def _name(text: str, y: float, kind: str) -> str:
    return f'<text class="{kind}" x="{LEFT - 8:g}" y="{y:g}" text-anchor="end">{escape(text)}</text>'


def _lane(lane: Lane | None, source: str, window: tuple[float, float], y: float) -> list[str]:
    if lane is None:
        return [f'<text class="muted none" x="4" y="{y + LANE - 1:g}">not {source}</text>']
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
    return (cycle - first) / (last - first) * PLOT
