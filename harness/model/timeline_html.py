"""Draws a timeline as one HTML page without other files: a reader can zoom, move, and ask what a span is."""

from __future__ import annotations

import json
from html import escape
from pathlib import Path

from harness.model.timeline import KINDS, Timeline

TEMPLATE = Path(__file__).parent / "viewer.html"


def html(timeline: Timeline) -> str:
    """Returns the page, with the spans in it as JSON."""
    rows: list[str] = []
    index = {}
    for cta in timeline.ctas:
        for row in timeline.rows(cta):
            index[cta, row] = len(rows)
            rows.append(f"{cta[0]}/{cta[1]} {row}")
    kinds = {span.kind for span in timeline.spans}
    data = {
        "end": round(timeline.end),
        "rows": rows,
        "colours": {name: kind.light for name, kind in KINDS.items()},
        "names": {name: kind.words for name, kind in KINDS.items() if name in kinds},
        "spans": [
            [index[s.cta, s.row], s.kind, round(s.start, 1), round(s.end, 1), s.name] for s in timeline.spans
        ],
        "flows": [
            [index[f.source.cta, f.source.row], round(min(f.source.end, f.target.start)),
             index[f.target.cta, f.target.row], round(f.target.start)]
            for f in timeline.flows
        ],
    }  # fmt: skip
    text = json.dumps(data, allow_nan=False, separators=(",", ":")).replace("</", "<\\/")
    page = TEMPLATE.read_text(encoding="utf-8")
    status = "predicted, not measured" if timeline.unit == "cycles" else "the order of a run, no times"
    for mark, value in (
        ("@TITLE@", escape(timeline.title)),
        ("@UNIT@", timeline.unit),
        ("@STATUS@", status),
        ("@DATA@", text),
    ):
        page = page.replace(mark, value)
    return page
