"""The timeline that a kernel's own events make: the same rows and names as a predicted one, to be laid over it.

What a warp did is known to the cycle. Of the units only that is known which a warp has seen: a load ends here when a
warp that waited for it went on, a multiplication when the warp that started it did.
"""

from __future__ import annotations

import bisect
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from emugpu.emulator.machine.state import Region
from emugpu.errors import UsageProblem
from harness.compile.artifacts import regions_of
from harness.compile.config import KernelConfig, configure, parse_settings
from harness.compile.planner import Plan, parse_plan
from harness.model.survey_archive import BEGIN, GLOBAL_TIMER, POINT, SM, START, STOP, Site, Survey
from harness.model.timeline import CtaKey, Span, Timeline, whole
from harness.problem import Shape, parse_shape

RANK_BITS = 24
"""The bits of a shared address from here on are the CTA's rank in its cluster."""
MULTIPLY, WAIT, WAIT_FOR_MMA = "multiply", "wait", "wait for MMA"
ISSUE_LOAD = "issue load "
_WAIT_FULL = re.compile(r"wait full(?:\[(\d+)\])?")
"""A single barrier has no number."""
KINDS = {MULTIPLY: "issue", "load": "issue", "store": "store"}
"""Kinds of the spans that are no waits."""
POINT_CYCLES = 20.0
"""How long something is drawn that has no end."""


Events = Mapping[str, np.ndarray]
"""Columns of equal length, in the order of CTAs, warps and time: cta and warp; site, the number of a `Site`; operand,
an address in shared memory, or what else the site says; clock, of the SM, and of the site "global timer" that timer, in
nanoseconds."""


def parse_run(name: str, arch: str = "sm_90a") -> tuple[KernelConfig, Shape]:
    """Reads the name of a measured run, as ``kernel7 stages=3 cluster=1x1 at 4096x4096x4096``."""
    words, _, size = name.partition(" at ")
    kernel, *asked = words.split()
    shape = parse_shape(size.replace("x", ","))
    return configure(kernel, arch=arch, shape=shape, **parse_settings(asked)), shape


@dataclass(frozen=True)
class Event:
    """One event of a warp. clock: cycles of its SM."""

    site: Site
    operand: int
    clock: int


@dataclass(frozen=True)
class Trace:
    """A run whose events were recorded. hertz: SM cycles a second, about. same_result: as without the writing.
    slowdown: its time over that of the same kernel without the writing; None: nobody knows.
    """

    name: str
    plan: Plan
    sites: Sequence[Site]
    events: Events
    hertz: float
    same_result: bool = True
    slowdown: float | None = None


def find_traces(survey: Survey) -> list[str]:
    """Returns the names of the runs that an archive has events of."""
    with survey.reading():
        return [str(about["name"]) for _, about in _traces(survey)]


def read_trace(survey: Survey, name: str) -> Trace:
    """Returns the events of a run of `find_traces`. Raises UsageProblem if the archive has lost or damaged them."""
    with survey.reading():
        file, about = next((file, about) for file, about in _traces(survey) if about["name"] == name)
        plan = parse_plan(json.dumps({"tiles": None, **about["plan"]}))
        sites = [Site(**site) for site in about["sites"]]
        events = survey.arrays(file.replace(".json", ".npz"))
        if not events:
            raise UsageProblem(f"{survey.path}: the events of '{name}' are not in it")
        if events["site"].size and int(events["site"].max()) >= len(sites):
            raise IndexError("an event of a site that is not listed")
        seconds, traced = about.get("seconds"), about.get("seconds_traced")
        slowdown = traced / seconds if seconds and traced else None
        return Trace(name, plan, sites, events, _hertz(survey, name), bool(about["same_result"]), slowdown)


def _traces(survey: Survey) -> Iterator[tuple[str, Any]]:
    for file in survey.names(".json"):
        if file.startswith("trace-") and (about := survey.json(file)):
            yield file, about


def _hertz(survey: Survey, name: str) -> float:
    """The clock that the same kernel had when it was timed; else what an H200 has under load."""
    kernels = survey.json("kernels.json") or {"runs": []}
    return float(next((1e6 * run["zeros"]["mhz"] for run in kernels["runs"] if run["name"] == name), 1.8e9))


def timeline(trace: Trace, ctas: Collection[CtaKey] | None = None) -> Timeline:
    """ctas: as (cluster, rank); None: those of the first cluster."""
    size = trace.plan.cluster[0] * trace.plan.cluster[1]
    wanted = set(ctas) if ctas is not None else {(0, rank) for rank in range(size)}
    found = Timeline(f"{trace.name}: measured", "cycles", trace.hertz, status="measured")
    warps = {warp: events for warp, events in _by_warp(trace) if _key(trace, warp[0]) in wanted}
    if not warps:
        return found
    zero = min(_zero(events, trace.hertz) for events in warps.values())
    for (cta, warp), events in warps.items():
        shift = _zero(events, trace.hertz) - zero - events[0].clock
        names = _Names(trace.plan, events[0].operand)
        found.spans += _spans(_key(trace, cta), warp, events, shift, names)
    found.spans += [span for key in wanted for span in _loads([s for s in found.spans if s.cta == key])]
    found.spans.sort(key=lambda span: (span.cta, span.row, span.start))
    return found


def _key(trace: Trace, cta: int) -> CtaKey:
    """Cluster and rank of a CTA of the grid. Clusters lie in the grid as their shape says (PTX ISA 2.2.2)."""
    across, down = trace.plan.grid[0], trace.plan.grid[1]
    wide, high = trace.plan.cluster[0], trace.plan.cluster[1]
    x, y, z = cta % across, cta // across % down, cta // (across * down)
    cluster = (z * (down // high) + y // high) * (across // wide) + x // wide
    return cluster, y % high * wide + x % wide


def _by_warp(trace: Trace) -> Iterator[tuple[tuple[int, int], list[Event]]]:
    columns = (trace.events[name].tolist() for name in ("cta", "warp", "site", "operand", "clock"))
    warps: dict[tuple[int, int], list[Event]] = {}
    for cta, warp, site, operand, clock in zip(*columns, strict=True):
        warps.setdefault((cta, warp), []).append(Event(trace.sites[site], operand, clock))
    return iter(warps.items())


def _zero(events: Sequence[Event], hertz: float) -> float:
    """When a warp started, in cycles of the timer that all SMs share."""
    timer = next(e.clock for e in events if e.site.what == GLOBAL_TIMER)
    return timer * 1e-9 * hertz


class _Names:
    """What lies at an address of shared memory. base: where dynamic shared memory starts."""

    def __init__(self, plan: Plan, base: int) -> None:
        self.regions: list[Region] = regions_of(plan)
        self.base = base & ((1 << RANK_BITS) - 1)

    def at(self, address: int) -> str:
        offset = (address & ((1 << RANK_BITS) - 1)) - self.base
        for region in self.regions:
            inside = offset - region.offset
            if 0 <= inside < region.nbytes:
                return f"{region.name} + {inside}" if inside else region.name
        return f"0x{address:x}"


def _spans(key: CtaKey, warp: int, events: Sequence[Event], shift: float, names: _Names) -> Iterator[Span]:
    row = f"warp {warp}"
    begun: dict[str, float] = {}
    issued: list[float] = []  # multiplications that the warp has not seen the end of
    seen = 0.0
    for event in events:
        at, what = event.clock + shift, event.site.what
        if what in (START, GLOBAL_TIMER, SM, STOP):
            continue
        if event.site.edge == BEGIN:
            begun[what] = at
        elif event.site.edge == POINT:
            name = f"{'issue ' if what in KINDS else ''}{what} {names.at(event.operand)}"
            yield Span(key, row, name, KINDS.get(what, "work"), at, at + POINT_CYCLES)
        else:
            start = begun.pop(what, at)
            yield Span(key, row, _name(what, event, names), KINDS.get(what, "wait"), start, at)
            if what == MULTIPLY:
                issued.append(start)
            elif what == WAIT_FOR_MMA:
                while len(issued) > event.operand:
                    yield Span(key, f"tensor core, {row}", "MMA", "mma", max(issued.pop(0), seen), at)
                    seen = at


def _name(what: str, event: Event, names: _Names) -> str:
    if what == WAIT:
        return f"wait {names.at(event.operand)}"
    return "issue MMA" if what == MULTIPLY else what


def _loads(spans: Sequence[Span]) -> Iterator[Span]:
    """Loads of a CTA: of a stage, from the issue of its first box until a warp went on that had waited for it."""
    ends: dict[str, list[float]] = {}
    seen: set[tuple[str, float]] = set()
    for span in spans:
        if match := _WAIT_FULL.fullmatch(span.name):
            ends.setdefault(match.group(1) or "0", []).append(span.end)
    for times in ends.values():
        times.sort()
    for span in spans:
        if not span.name.startswith(ISSUE_LOAD):
            continue
        where = whole(span.name.removeprefix(ISSUE_LOAD))
        stage = re.search(r"stage (\d+)", where)
        times = ends.get(stage.group(1) if stage else "", [])
        later = bisect.bisect_right(times, span.start)
        if later < len(times) and (where, times[later]) not in seen:
            seen.add((where, times[later]))
            yield Span(span.cta, f"TMA load {where}", f"load {where}", "load", span.start, times[later])
