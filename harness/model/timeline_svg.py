"""A timeline as a picture: one bar a row, one colour a kind."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from harness.model.timeline import KINDS, Span, Timeline

LEFT, WIDTH, ROW, GAP, TOP = 150, 1100, 13, 22, 46
MOST_TICKS = 12
LEAST = 0.3
"""Pixels below which a span is drawn together with its neighbours of the same kind."""


def svg(timelines: Sequence[Timeline], first: float | None = None, last: float | None = None) -> str:
    """Timelines under one another, on one scale, from ``first`` to ``last``; None: as far as there is something."""
    begin = min((span.start for timeline in timelines for span in timeline.spans), default=0.0)
    begin = begin if first is None else first
    end = max((timeline.end for timeline in timelines), default=begin) if last is None else last
    end = max(end, begin + 1.0)
    parts: list[str] = []
    y = TOP
    for timeline in timelines:
        y = _one(timeline, y, begin, end, parts)
    y = _axis(y, begin, end, timelines[0].unit if timelines else "cycles", parts)
    kinds = {span.kind for timeline in timelines for span in timeline.spans}
    head = _legend([kind for kind in KINDS if kind in kinds])
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + WIDTH + 20}" height="{y + 10}" '
        f'viewBox="0 0 {LEFT + WIDTH + 20} {y + 10}" font-family="sans-serif" font-size="10">\n'
        f'<rect width="100%" height="100%" fill="white"/>\n{head}\n{body}\n</svg>\n'
    )


def _one(timeline: Timeline, y: int, begin: float, end: float, parts: list[str]) -> int:
    parts.append(f'<text x="8" y="{y}" font-size="12" font-weight="bold">{escape(timeline.title)}</text>')
    y += 8
    scale = WIDTH / (end - begin)
    for cta in timeline.ctas:
        y += 12
        parts.append(f'<text x="8" y="{y}" fill="#555">CTA {cta[1]} of cluster {cta[0]}</text>')
        y += 4
        for row in timeline.rows(cta):
            parts.append(f'<text x="{LEFT - 6}" y="{y + ROW - 3}" text-anchor="end">{escape(row)}</text>')
            for span in _visible([s for s in timeline.spans if s.cta == cta and s.row == row], scale):
                left, right = max(span.start, begin), min(span.end, end)
                x, width = LEFT + (left - begin) * scale, max(LEAST, (right - left) * scale)
                title = f"{span.name}: {span.start:.0f} to {span.end:.0f}"
                parts.append(
                    f'<rect x="{x:.1f}" y="{y + 1}" width="{width:.1f}" height="{ROW - 2}" '
                    f'fill="{KINDS[span.kind].colour}"><title>{escape(title)}</title></rect>'
                )
            y += ROW
    return y + GAP


def _visible(spans: list[Span], scale: float) -> list[Span]:
    shown: list[Span] = []
    for span in spans:
        last = shown[-1] if shown else None
        if last is not None and last.kind == span.kind and (span.start - last.end) * scale < LEAST:
            shown[-1] = Span(span.cta, span.row, last.name, span.kind, last.start, max(last.end, span.end))
        else:
            shown.append(span)
    return shown


def _axis(y: int, begin: float, end: float, unit: str, parts: list[str]) -> int:
    for value in round_numbers(begin, end):
        x = LEFT + WIDTH * (value - begin) / (end - begin)
        parts.append(
            f'<line x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{y - GAP + 4}" stroke="#bbb" stroke-width="0.5"/>'
        )
        parts.append(f'<text x="{x:.1f}" y="{y - GAP + 16}" text-anchor="middle" fill="#555">{value:,.0f}</text>')
    parts.append(f'<text x="{LEFT + WIDTH / 2}" y="{y - GAP + 30}" text-anchor="middle" fill="#555">{unit}</text>')
    return y + 14


def round_numbers(begin: float, end: float) -> list[float]:
    """Returns the multiples of 1, 2 or 5 times a power of ten within a range: as many as `MOST_TICKS` at most."""
    least = (end - begin) / MOST_TICKS
    power = 10.0 ** math.floor(math.log10(least))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least)
    return [number * step for number in range(math.ceil(begin / step), math.floor(end / step) + 1)]


def _legend(kinds: Sequence[str]) -> str:
    parts, x = [], 8
    for kind in kinds:
        parts.append(f'<rect x="{x}" y="8" width="12" height="12" fill="{KINDS[kind].colour}" stroke="#ccc"/>')
        parts.append(f'<text x="{x + 16}" y="18">{KINDS[kind].words}</text>')
        x += 34 + 6 * len(KINDS[kind].words)
    return "\n".join(parts)
