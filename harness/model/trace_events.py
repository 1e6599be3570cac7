"""Writes a timeline as Chrome trace events, which Perfetto (ui.perfetto.dev) and chrome://tracing open.

Format: "Trace Event Format" (Google): complete events X, metadata M, counters C, flows s and f. A process is a CTA, a
thread a row. Times are in microseconds at the predicted clock; ``args`` hold the cycles.

Perfetto counts whole nanoseconds, and expects the spans of one thread one after another: so the ends and starts are
rounded here, not the lengths, and overlapping spans (such as stores of one CTA) get separate threads.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from harness.model.timeline import Span, Timeline

Interval = tuple[Span, int, int]
"""A span, and its first and last nanosecond."""


@dataclass(frozen=True)
class _Clock:
    hertz: float

    def nanosecond(self, cycle: float) -> int:
        return round(cycle * 1e9 / self.hertz)


@dataclass(frozen=True)
class _Placed:
    """A span on its thread. ``start`` and ``end`` are in nanoseconds."""

    span: Span
    pid: int
    tid: int
    start: int
    end: int

    @property
    def anchor(self) -> int:
        """Returns a time at which Perfetto connects a flow to this span, not to a span of no length that is drawn at
        its start.
        """
        return min(self.start + 1, self.end)


def trace_events(timeline: Timeline) -> dict[str, Any]:
    """Returns the whole document."""
    clock = _Clock(timeline.hertz)
    events: list[dict[str, Any]] = []
    processes = {cta: number for number, cta in enumerate(timeline.ctas, 1)}
    placed: list[_Placed] = []
    for cta, pid in processes.items():
        events.append(_about("process_name", pid, 0, name=f"CTA {cta[1]} of cluster {cta[0]}"))
        events.append(_about("process_sort_index", pid, 0, sort_index=pid))
        tid = 0
        for row in timeline.rows(cta):
            spans = [span for span in timeline.spans if span.cta == cta and span.row == row]
            for number, lane in enumerate(_lanes(spans, clock), 1):
                tid += 1
                events.append(_about("thread_name", pid, tid, name=row if number == 1 else f"{row} ({number})"))
                events.append(_about("thread_sort_index", pid, tid, sort_index=tid))
                placed += [_Placed(span, pid, tid, start, end) for span, start, end in lane]
    for at in placed:
        events.append(
            {
                "name": at.span.name,
                "cat": at.span.kind,
                "ph": "X",
                "ts": at.start / 1000,
                "dur": (at.end - at.start) / 1000,
                "pid": at.pid,
                "tid": at.tid,
                "args": {timeline.unit: [round(at.span.start), round(at.span.end)]},
            }
        )
    where = {id(at.span): at for at in placed}
    for number, flow in enumerate(timeline.flows, 1):
        for phase, at in (("s", where[id(flow.source)]), ("f", where[id(flow.target)])):
            event = {
                "name": flow.what,
                "cat": "flow",
                "ph": phase,
                "id": number,
                "ts": at.anchor / 1000,
                "pid": at.pid,
                "tid": at.tid,
            }
            events.append({**event, "bp": "e"} if phase == "f" else event)
    for sample in timeline.samples:
        events.append(
            {
                "name": sample.name,
                "cat": "counter",
                "ph": "C",
                "ts": clock.nanosecond(sample.at) / 1000,
                "pid": processes.get(sample.cta, 0),
                "args": {"value": sample.value},
            }
        )
    about = {"title": timeline.title, "status": "predicted" if timeline.unit == "cycles" else "logical steps"}
    return {"traceEvents": events, "displayTimeUnit": "ns", "otherData": about}


def as_json(timeline: Timeline) -> str:
    """Returns the events as JSON, one per line."""
    document = trace_events(timeline)
    lines = ",\n".join(json.dumps(event, allow_nan=False) for event in document["traceEvents"])
    rest = json.dumps({key: value for key, value in document.items() if key != "traceEvents"}, allow_nan=False)
    return f'{{"traceEvents": [\n{lines}\n],\n{rest[1:]}\n'


def _lanes(spans: Sequence[Span], clock: _Clock) -> list[list[Interval]]:
    """Distributes the spans of a row over threads, so that those of a thread follow one another. One thread is enough
    without overlaps.
    """
    lanes: list[list[Interval]] = []
    for span in sorted(spans, key=lambda span: (span.start, span.end)):
        start, end = clock.nanosecond(span.start), clock.nanosecond(span.end)
        free = next((lane for lane in lanes if lane[-1][2] <= start), None)
        if free is None:
            lanes.append(free := [])
        free.append((span, start, end))
    return lanes


def _about(what: str, pid: int, tid: int, **args: Any) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": pid, "tid": tid, "args": args}
