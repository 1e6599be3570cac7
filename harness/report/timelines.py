"""One CTA of a kernel as the timing model predicts it and as a GPU did it, in the same rows and on one scale."""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from harness.model.timeline import Span, Timeline, row_order

WINDOW = 14_000.0
"""Cycles of each of the two parts that are shown."""
BEFORE_STORE = 2_000.0
"""Cycles of the second part before the first tile is written out, at least."""
ROLES = (
    ("loads", "issue load"),
    ("MMA", "issue MMA"),
    ("writes C", "issue store"),
    ("writes C", "load accumulator"),
    ("writes C", "convert"),
)
"""What a warp is there for, by the name of its spans."""
_LOAD = re.compile(r"TMA load [AB](?: (stage \d+))?(?: \+ \d+)?")
_WARP = re.compile(r"(?:.*, )?warp (\d+)")
_INNER = re.compile(r"tensor core, warp \d+")

Lane = tuple[Span, ...]


@dataclass(frozen=True)
class Row:
    """A warp or a unit. None: that source tells nothing of it."""

    name: str
    predicted: Lane | None
    measured: Lane | None


@dataclass(frozen=True)
class Compared:
    """What there is of one kernel. sources: predicted, measured or both, in this order. windows: first and last cycle
    of the parts that are worth a look. figures: name, and for each source what it says.
    """

    sources: tuple[str, ...]
    rows: tuple[Row, ...]
    windows: tuple[tuple[float, float], ...]
    figures: tuple[tuple[str, ...], ...]


def compare(*timelines: Timeline) -> Compared:
    """Of one CTA: what is predicted, what was measured, or both, in this order. Cycle 0 becomes that of the CTA's first
    instruction in both: what was measured knows nothing of the launch before.
    """
    told = {timeline.status: _from_first_instruction(timeline) for timeline in timelines}
    by_row = {status: _by_row(timeline.spans) for status, timeline in told.items()}
    roles = _roles(timelines[0].spans)
    warps = _shown_warps(roles, told.get("measured"))
    names = dict.fromkeys(name for rows in by_row.values() for name in rows if not name.startswith("warp "))
    rows = [_row(name, name, by_row) for name in sorted(names, key=row_order)]
    rows += [
        _row(f"warp {warp}: {', '.join(roles.get(warp, ()))}".rstrip(": "), f"warp {warp}", by_row) for warp in warps
    ]
    multiplying = next((warp for warp in warps if "MMA" in roles.get(warp, ())), None)
    loading = next((warp for warp in warps if "loads" in roles.get(warp, ())), None)
    columns = [_figures(timeline.spans, loading, multiplying) for timeline in told.values()]
    figures = tuple((name, *(column[name] for column in columns)) for name in columns[0])
    return Compared(tuple(told), tuple(rows), _windows(list(told.values())), figures)


def _from_first_instruction(timeline: Timeline) -> Timeline:
    if timeline.status == "measured":
        return timeline  # as it is: its zero is when the first warp starts
    zero = min((span.start for span in timeline.spans if _WARP.fullmatch(span.row)), default=0.0)
    spans = [replace(span, start=span.start - zero, end=span.end - zero) for span in timeline.spans]
    return replace(timeline, spans=spans, flows=[], samples=[])


def _row(shown: str, name: str, by_row: dict[str, dict[str, list[Span]]]) -> Row:
    lanes = {status: tuple(rows[name]) for status, rows in by_row.items() if name in rows}
    return Row(shown, lanes.get("predicted"), lanes.get("measured"))


def _by_row(spans: Sequence[Span]) -> dict[str, list[Span]]:
    """A and B of a stage are one row, and so are the multiplications of all warps."""
    found: dict[str, list[Span]] = {}
    for span in sorted(spans, key=lambda span: span.start):
        row = span.row
        if match := _LOAD.fullmatch(row):
            row = f"loads, {match[1]}" if match[1] else "loads"
        elif _INNER.fullmatch(row):
            row = "tensor core"
        found.setdefault(row, []).append(span)
    return found


def _roles(spans: Sequence[Span]) -> dict[int, tuple[str, ...]]:
    """What each warp is there for."""
    names: dict[int, set[str]] = {}
    for span in spans:
        if match := _WARP.fullmatch(span.row):
            names.setdefault(int(match[1]), set()).add(span.name)
    return {
        warp: tuple(dict.fromkeys(role for role, start in ROLES if any(name.startswith(start) for name in found)))
        for warp, found in sorted(names.items())
    }


def _shown_warps(roles: dict[int, tuple[str, ...]], measured: Timeline | None) -> list[int]:
    """Those that the GPU told of; else the first of each role."""
    if measured:
        return sorted(_roles(measured.spans))
    first: dict[tuple[str, ...], int] = {}
    for warp, role in roles.items():
        if role:
            first.setdefault(role, warp)
    return sorted(first.values())


def _windows(timelines: Sequence[Timeline]) -> tuple[tuple[float, float], ...]:
    """The start, and where the first tile is written out; one part if these are near each other, or nothing is."""
    stores = [store for timeline in timelines if (store := _first_store(timeline.spans)) is not None]
    if not stores:
        return ((0.0, WINDOW),)
    begin = min(min(stores) - BEFORE_STORE, statistics.fmean((min(stores), max(stores))) - WINDOW / 2)
    return ((0.0, WINDOW),) if begin < WINDOW / 2 else ((0.0, WINDOW), (begin, begin + WINDOW))


def _first_store(spans: Sequence[Span]) -> float | None:
    return min((span.start for span in spans if span.kind == "store"), default=None)


def _figures(spans: Sequence[Span], loading: int | None, multiplying: int | None) -> dict[str, str]:
    """In cycles, for those who would rather read than look."""
    first = {kind: min((s.start for s in spans if s.kind == kind), default=None) for kind in ("load", "mma", "store")}
    last = max((span.end for span in spans), default=None)
    return {
        "first load begins, cycle": _number(first["load"]),
        "first multiplication begins, cycle": _number(first["mma"]),
        "a K step, cycles (median)": _number(_step(spans, multiplying, first["store"])),
        "first store of C, cycle": _number(first["store"]),
        "the CTA's last event, cycle": _number(last),
        f"warp {loading} (loads) waits, of the time before the first store": _waits(spans, loading, first["store"]),
    }


def _step(spans: Sequence[Span], warp: int | None, until: float | None) -> float | None:
    """Between two groups of multiplications that a warp issues."""
    row = f"warp {warp}"
    starts = sorted(s.start for s in spans if s.row == row and s.name == "issue MMA" and s.start < (until or s.end))
    steps = [later - earlier for earlier, later in pairwise(starts)]
    return statistics.median(steps) if steps else None


def _waits(spans: Sequence[Span], warp: int | None, until: float | None) -> str:
    mine = [span for span in spans if span.row == f"warp {warp}" and until and span.start < until]
    if not mine or not until:
        return ""
    waited = sum(min(span.end, until) - span.start for span in mine if span.kind == "wait")
    return f"{100 * waited / until:.0f} %"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"
