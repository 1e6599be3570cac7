"""Draws a timeline as a picture: one bar per row, one colour per kind."""

from __future__ import annotations

import math
from collections.abc import Sequence

from harness.drawing import Drawing
from harness.model.timeline import KINDS, Span, Timeline

LEFT, WIDTH, ROW, GAP, TOP = 150, 1100, 13, 22, 46
MOST_TICKS = 12
LEAST = 0.3
"""Spans below this width in pixels are drawn together with their neighbours of the same kind."""
COLOURS = {name: (kind.light, kind.dark) for name, kind in KINDS.items()}
STYLE = """text { font-size: 10px; }
.title { font-size: 12px; font-weight: 600; }
.row { text-anchor: end; }
.tick { text-anchor: middle; }
"""


def svg(timelines: Sequence[Timeline], first: float | None = None, last: float | None = None) -> str:
    """Draws timelines one above the other, on one scale, from ``first`` to ``last``, or their whole length if these are
    None.
    """
    begin = min((span.start for timeline in timelines for span in timeline.spans), default=0.0)
    begin = begin if first is None else first
    end = max((timeline.end for timeline in timelines), default=begin) if last is None else last
    end = max(end, begin + 1.0)
    drawing = Drawing(18)
    kinds = {span.kind for timeline in timelines for span in timeline.spans}
    _legend(drawing, [kind for kind in KINDS if kind in kinds])
    drawing.y = TOP
    for timeline in timelines:
        _one(drawing, timeline, begin, end)
    _axis(drawing, begin, end, timelines[0].unit if timelines else "cycles")
    title = "; ".join(timeline.title for timeline in timelines)
    return drawing.svg(LEFT + WIDTH + 20, title, "A row for each warp and each unit of a CTA.", COLOURS, STYLE)


def _one(drawing: Drawing, timeline: Timeline, begin: float, end: float) -> None:
    drawing.text(8, timeline.title, "title")
    drawing.y += 8
    scale = WIDTH / (end - begin)
    for cta in timeline.ctas:
        drawing.y += 12
        drawing.text(8, f"CTA {cta[1]} of cluster {cta[0]}", "soft")
        drawing.y += 4
        for row in timeline.rows(cta):
            drawing.text(LEFT - 6, row, "row", down=ROW - 3)
            for span in _visible([s for s in timeline.spans if s.cta == cta and s.row == row], scale):
                left, right = max(span.start, begin), min(span.end, end)
                x, width = LEFT + (left - begin) * scale, max(LEAST, (right - left) * scale)
                title = f"{span.name}: {span.start:.0f} to {span.end:.0f}"
                drawing.box(x, drawing.y + 1, width, ROW - 2, span.kind, title)
            drawing.y += ROW
    drawing.y += GAP


def _visible(spans: list[Span], scale: float) -> list[Span]:
    shown: list[Span] = []
    for span in spans:
        last = shown[-1] if shown else None
        if last is not None and last.kind == span.kind and (span.start - last.end) * scale < LEAST:
            shown[-1] = Span(span.cta, span.row, last.name, span.kind, last.start, max(last.end, span.end))
        else:
            shown.append(span)
    return shown


def _axis(drawing: Drawing, begin: float, end: float, unit: str) -> None:
    bottom = drawing.y - GAP
    for value in round_numbers(begin, end):
        x = LEFT + WIDTH * (value - begin) / (end - begin)
        drawing.line(x, TOP, x, bottom + 4)
        drawing.text(x, f"{value:,.0f}", "tick soft", down=16 - GAP)
    drawing.text(LEFT + WIDTH / 2, unit, "tick soft", down=30 - GAP)
    drawing.y += 16


def round_numbers(begin: float, end: float) -> list[float]:
    """Returns the multiples of 1, 2 or 5 times a power of ten within a range, at most `MOST_TICKS`."""
    least = (end - begin) / MOST_TICKS
    power = 10.0 ** math.floor(math.log10(least))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least)
    return [number * step for number in range(math.ceil(begin / step), math.floor(end / step) + 1)]


def _legend(drawing: Drawing, kinds: Sequence[str]) -> None:
    x = 8
    for kind in kinds:
        drawing.box(x, drawing.y - 10, 12, 12, kind)
        drawing.text(x + 16, KINDS[kind].words)
        x += 34 + 6 * len(KINDS[kind].words)
