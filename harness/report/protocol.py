"""The hand-offs of a run for a person: as text, and as a picture."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from textwrap import wrap

from harness.check.protocol import Handover, Protocol
from harness.report.svg import LINE, MARGIN, STYLE, WIDTH

TITLE = "hand-offs of a run: who signals whom, through which barrier, and what has been done to memory before"
COLUMN = 300
"""Width of what tells, of the barrier, and of what waits, in the picture."""
CHARACTERS = 42
"""That fit in a column."""


def as_text(protocol: Protocol, width: int = 110) -> str:
    """Writes the hand-offs in lines of at most this many columns."""
    lines = [TITLE]
    for handover in protocol.handovers.values():
        lines += ["", _head(handover)]
        for label, found in _parts(handover):
            for text in found:
                lines += wrap(text, width, initial_indent=f"  {label:7}  ", subsequent_indent=" " * 11)
    lines += ["", "fences"]
    for text in _counted(protocol.fences.items()) or ["none"]:
        lines += wrap(text, width, initial_indent="  ", subsequent_indent="      ")
    return "\n".join(lines)


def _head(handover: Handover) -> str:
    counted = f", {handover.nbytes:,} bytes counted" if handover.nbytes else ""
    phases = f"{handover.rounds} phase{'s' if handover.rounds != 1 else ''}"
    return f"{handover.barrier}: {phases}{counted}"


def _parts(handover: Handover) -> list[tuple[str, list[str]]]:
    return [
        ("signals", _counted(handover.arrives.items())),
        ("after", list(handover.gives)),
        ("waits", _counted(handover.waits.items())),
    ]


def _counted(found: Iterable[tuple[str, int]]) -> list[str]:
    return [f"{count} x {what}" for what, count in found]


def as_svg(protocol: Protocol, headline: str) -> str:
    """Draws each barrier between those who signal and those who wait."""
    y, elements = 56.0, []

    def text(x: float, at: float, content: str, style: str = "") -> None:
        named = f' class="{style}"' if style else ""
        elements.append(f'<text x="{x:g}" y="{at:g}"{named}>{escape(content)}</text>')

    text(MARGIN, 32, headline, "head")
    for handover in protocol.handovers.values():
        (_, tells), (_, after), (_, waits) = _parts(handover)
        columns = ([*tells], [handover.barrier, _head(handover).partition(": ")[2], *after], [*waits])
        depth = y
        for n, found in enumerate(columns):
            at = y
            for index, entry in enumerate(found):
                style = "name" if n == 1 and not index else "small" if n == 1 else ""
                for line in wrap(entry, CHARACTERS):
                    text(MARGIN + n * COLUMN, at, line, style)
                    at += LINE
            depth = max(depth, at)
        for n in (1, 2):
            if columns[0 if n == 1 else 2]:
                x = MARGIN + n * COLUMN - 14
                elements.append(f'<path d="M{x - 8:g} {y - 9:g} l8 5 l-8 5 z" class="barrier"/>')
        elements.append(
            f'<line x1="{MARGIN}" y1="{depth - 6:g}" x2="{WIDTH - MARGIN}" y2="{depth - 6:g}" class="rule"/>'
        )
        y = depth + 14
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y:g}" width="{WIDTH}" height="{y:g}" '
            'role="img" aria-labelledby="title description">',
            f'<title id="title">{escape(headline)}</title>',
            f'<desc id="description">{escape(as_text(protocol))}</desc>',
            f"<style>{STYLE}</style>",
            f'<rect width="{WIDTH}" height="{y:g}" class="page"/>',
            *elements,
            "</svg>\n",
        ]
    )
