"""A timeline as Chrome trace events, which Perfetto (ui.perfetto.dev) and chrome://tracing open.

Format: "Trace Event Format" (Google): complete events X, metadata M, counters C, flows s and f. A process is a CTA, a
thread a row. Time is in microseconds, at the clock that is predicted; ``args`` have the cycles.
"""

from __future__ import annotations

import json
from typing import Any

from harness.timing.timeline import CtaKey, Timeline


def trace_events(timeline: Timeline) -> dict[str, Any]:
    """The whole document."""
    scale = 1e6 / timeline.hertz
    events: list[dict[str, Any]] = []
    processes = {cta: number for number, cta in enumerate(timeline.ctas, 1)}
    threads: dict[tuple[CtaKey, str], int] = {}
    for cta, pid in processes.items():
        events.append(_about("process_name", pid, 0, name=f"CTA {cta[1]} of cluster {cta[0]}"))
        events.append(_about("process_sort_index", pid, 0, sort_index=pid))
        for tid, row in enumerate(timeline.rows(cta), 1):
            threads[cta, row] = tid
            events.append(_about("thread_name", pid, tid, name=row))
            events.append(_about("thread_sort_index", pid, tid, sort_index=tid))
    for span in timeline.spans:
        events.append(
            {
                "name": span.name,
                "cat": span.kind,
                "ph": "X",
                "ts": _microseconds(span.start, scale),
                "dur": _microseconds(span.end - span.start, scale),
                "pid": processes[span.cta],
                "tid": threads[span.cta, span.row],
                "args": {timeline.unit: [round(span.start), round(span.end)]},
            }
        )
    for number, flow in enumerate(timeline.flows, 1):
        for phase, span, at in (("s", flow.source, flow.source.start), ("f", flow.target, flow.target.start)):
            event = {
                "name": flow.what,
                "cat": "flow",
                "ph": phase,
                "id": number,
                "ts": _microseconds(at, scale),
                "pid": processes[span.cta],
                "tid": threads[span.cta, span.row],
            }
            events.append({**event, "bp": "e"} if phase == "f" else event)
    for sample in timeline.samples:
        events.append(
            {
                "name": sample.name,
                "cat": "counter",
                "ph": "C",
                "ts": _microseconds(sample.at, scale),
                "pid": processes.get(sample.cta, 0),
                "args": {"value": sample.value},
            }
        )
    about = {"title": timeline.title, "status": timeline.status if timeline.unit == "cycles" else "logical steps"}
    return {"traceEvents": events, "displayTimeUnit": "ns", "otherData": about}


def as_json(timeline: Timeline) -> str:
    """One event a line."""
    document = trace_events(timeline)
    lines = ",\n".join(json.dumps(event, allow_nan=False) for event in document["traceEvents"])
    rest = json.dumps({key: value for key, value in document.items() if key != "traceEvents"}, allow_nan=False)
    return f'{{"traceEvents": [\n{lines}\n],\n{rest[1:]}\n'


def _about(what: str, pid: int, tid: int, **args: Any) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": pid, "tid": tid, "args": args}


def _microseconds(cycles: float, scale: float) -> float:
    return round(cycles * scale, 6)
