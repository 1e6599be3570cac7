"""A run as spans in time: what each warp does and waits for, and when the units are busy.

Rows are warps and units of the selected CTAs. Times are cycles of the SM from the start of the launch.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from emugpu.emulator.machine.code import Code
from emugpu.emulator.machine.events import PhaseCompleted
from emugpu.emulator.machine.state import AsyncOperation, Cta, Fragment
from emugpu.emulator.machine.warpgroup import WarpgroupMma
from emugpu.emulator.memory.bytes import CHUNK
from emugpu.emulator.units.mma_instruction import Mma
from harness.model.machine import TimedMachine, TimedTrace

NEAR = 1.0
"""Spans of one kind with a gap of at most this many cycles become one."""

CtaKey = tuple[int, int]
"""The number of the cluster, and the rank in it."""


@dataclass(frozen=True)
class Kind:
    """A kind of span. ``words``: its name in a legend. ``light``, ``dark``: its colour on a light and on a dark
    page.
    """

    words: str
    light: str
    dark: str


KINDS = {
    "load": Kind("TMA load", "#2a66ad", "#6ea8ec"),
    "mma": Kind("MMA", "#1f7a33", "#74c27c"),
    "store": Kind("TMA store", "#a85a00", "#e8a05c"),
    "control": Kind("cluster launch control", "#6d4c9f", "#b79be4"),
    "issue": Kind("issues", "#4a8fd0", "#a5cdf3"),
    "convert": Kind("reads and converts", "#a67c00", "#e2bf5a"),
    "work": Kind("other instructions", "#7d838c", "#858b95"),
    "wait": Kind("waits", "#eceff1", "#30363d"),
}
"""The kinds, by the names in spans, in the order of a legend."""
_ROWS: tuple[str | tuple[str, ...], ...] = (
    ("TMA load", "loads"),
    "tensor core",
    "TMA store",
    "cluster launch control",
    "warp",
)
"""The beginnings of rows in order: units that feed the tensor core come before it, and those that read its results
after it.
"""


def row_order(row: str) -> tuple[int, str, int]:
    """Returns a key to sort rows by: units first, then warps, each kind by number."""
    head = row.rstrip("0123456789")
    number = row[len(head) :]
    first = next((n for n, start in enumerate(_ROWS) if row.startswith(start)), len(_ROWS))
    return first, head, int(number) if number else -1


@dataclass
class Span:
    """``row`` is its row of the CTA; ``kind`` decides the colour."""

    cta: CtaKey
    row: str
    name: str
    kind: str
    start: float
    end: float


@dataclass(frozen=True)
class Flow:
    """An arrow from a span to a later one that needs its result."""

    source: Span
    target: Span
    what: str


@dataclass(frozen=True)
class Sample:
    """The value of a CTA's counter from that cycle on."""

    cta: CtaKey
    name: str
    at: float
    value: float


@dataclass
class Timeline:
    """A timeline. ``unit`` is that of the times: cycles, or steps without a model. ``hertz`` is the number of cycles
    per second.
    """

    title: str
    unit: str
    hertz: float
    spans: list[Span] = field(default_factory=list)
    flows: list[Flow] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)

    @property
    def end(self) -> float:
        return max((span.end for span in self.spans), default=0.0)

    @property
    def ctas(self) -> list[CtaKey]:
        return sorted({span.cta for span in self.spans})

    def rows(self, cta: CtaKey) -> list[str]:
        """Returns the rows of a CTA: units first, then warps, each in a fixed order."""
        return sorted({span.row for span in self.spans if span.cta == cta}, key=row_order)

    def within(self, first: float, last: float) -> Timeline:
        """Returns the part between two times."""
        spans = [s for s in self.spans if s.end > first and s.start < last]
        kept = {id(s) for s in spans}
        flows = [f for f in self.flows if id(f.source) in kept and id(f.target) in kept]
        before = {(s.cta, s.name): replace(s, at=first) for s in self.samples if s.at <= first}
        samples = [*before.values(), *(s for s in self.samples if first < s.at <= last)]
        return Timeline(self.title, self.unit, self.hertz, spans, flows, samples)


class TimelineRecorder(TimedTrace):
    """A trace, and a sink for the machine's events: collects the timeline of some CTAs.

    ``stages`` is the depth of the ring, for its fill level, or 0 if there is none or it is unknown. ``ranks`` are the
    CTAs to record, as (cluster, rank), or None for those of the first cluster that starts.
    """

    def __init__(self, title: str, hertz: float, ctas: Collection[CtaKey] | None, unit: str = "cycles") -> None:
        self.timeline = Timeline(title, unit, hertz)
        self.wanted = set(ctas) if ctas is not None else None
        self.machine: TimedMachine | None = None
        self._kinds: list[tuple[str, str]] | None = None
        self._open: dict[tuple[CtaKey, str], Span] = {}
        self._in_flight: dict[CtaKey, float] = defaultdict(float)
        self._changes: list[tuple[float, CtaKey, str, float]] = []
        self._loads: dict[tuple[CtaKey, str], Span] = {}
        self._multiplied: dict[CtaKey, Span] = {}
        self._converted: dict[CtaKey, Span] = {}
        self._stores: dict[Any, Span] = {}

    # ---- the trace ----

    def attach(self, machine: TimedMachine) -> None:
        self.machine = machine

    def cluster_started(self, cluster: Any, at: float) -> None:
        if self.wanted is None:
            self.wanted = {(cluster.number, cta.rank) for cta in cluster.ctas}

    def ran(self, fragment: Fragment, block: int, start: float, end: float) -> None:
        key = self._key(fragment.cta)
        if key is None or end <= start:
            return
        if self._kinds is None:
            self._kinds = _block_kinds(fragment.grid.code)
        name, kind = self._kinds[block]
        span = self._span(key, f"warp {fragment.warp.index}", name, kind, start, end)
        if kind == "convert":
            done = self._multiplied.get(key)
            if done is not None and done.start <= start:  # not what another warpgroup still multiplies
                del self._multiplied[key]
                self._flow(done, span, "accumulator")
            self._converted[key] = span

    def waited(self, fragment: Fragment, site: Any, since: float, until: float) -> None:
        key = self._key(fragment.cta)
        if key is None or until <= since:
            return
        what = _wait_name(site)
        on = fragment.awaited[0] if fragment.awaited is not None and site.opcode == "mbarrier" else None
        if on is not None:
            named = fragment.grid.region_at(on.offset)
            what = f"wait {named}" if named else f"wait mbarrier 0x{on.offset:x}"
        self._span(key, f"warp {fragment.warp.index}", what, "wait", since, until)

    def submitted(self, operation: AsyncOperation, at: float, done: float) -> None:
        cta = operation.fragment.cta
        match operation.kind:
            case "tma.load":
                self._load(operation, at, done)
            case "mma":
                self._multiply(operation, cta)
            case "tma.store.read":
                key = self._key(cta)
                if key is not None:
                    span = self._span(key, "TMA store", "store", "store", at, done, merge=False)
                    self._stores[operation.subject] = span
                    source = self._converted.get(key)
                    if source is not None:
                        self._flow(source, span, "tile of C")
            case "tma.store.write":
                span_before = self._stores.pop(operation.subject, None)
                if span_before is not None:
                    span_before.end = max(span_before.end, done)
            case "launch-control":
                key = self._key(cta)
                if key is not None:
                    self._span(key, "cluster launch control", "try_cancel", "control", at, done, merge=False)

    # ---- the events ----

    def event(self, event: Any) -> None:
        """Tracks how full the ring is: the stages that are full and not yet read."""
        if type(event) is not PhaseCompleted or self.machine is None:
            return
        key = (event.cluster, event.cta)
        if self.wanted is None or key not in self.wanted:
            return
        name = self.machine.grid.region_at(event.offset)
        if name.startswith("full"):
            self._changes.append((self.machine.effect, key, "ring: full stages", 1))
        elif name.startswith("empty"):
            self._changes.append((self.machine.effect, key, "ring: full stages", -1))

    # ---- how it ends ----

    def finish(self) -> Timeline:
        """Returns the timeline, in order."""
        timeline = self.timeline
        timeline.spans.sort(key=lambda s: (s.cta, row_order(s.row), s.start))
        timeline.samples += _levels(self._changes)
        timeline.samples += [sample for key in timeline.ctas for sample in _busy(timeline, key)]
        return timeline

    # ---- parts ----

    def _key(self, cta: Cta) -> CtaKey | None:
        key = (cta.cluster.number, cta.rank)
        return key if self.wanted is not None and key in self.wanted else None

    def _span(self, key: CtaKey, row: str, name: str, kind: str, start: float, end: float, merge: bool = True) -> Span:
        last = self._open.get((key, row))
        if merge and last is not None and last.name == name and start - last.end <= NEAR:
            last.end = max(last.end, end)
            return last
        span = Span(key, row, name, kind, start, end)
        self.timeline.spans.append(span)
        self._open[key, row] = span
        return span

    def _flow(self, source: Span, target: Span, what: str) -> None:
        self.timeline.flows.append(Flow(source, target, what))

    def _load(self, operation: AsyncOperation, at: float, done: float) -> None:
        load, number = operation.subject
        target = load.routes[number][0]
        key = self._key(target)
        if key is None:
            return
        where = whole(operation.fragment.grid.region_at(load.offset)) or f"0x{load.offset:x}"
        span = self._loads.get((key, where))
        if span is not None and at <= span.end:  # another box of the same stage
            span.start, span.end = min(span.start, at), max(span.end, done)
        else:
            span = self._span(key, f"TMA load {where}", f"load {where}", "load", at, done, merge=False)
            self._loads[key, where] = span
        nbytes = float(load.tmap.box_bytes)
        self._changes += [(at, key, "bytes in flight", nbytes), (done, key, "bytes in flight", -nbytes)]

    def _multiply(self, operation: AsyncOperation, cta: Cta) -> None:
        key = self._key(cta)
        if key is None or self.machine is None:
            return
        start, end = self.machine.units.multiplied
        where = _operand(operation, cta)
        span = self._span(key, "tensor core", f"MMA {where}".rstrip(), "mma", start, end)
        load = self._loads.pop((key, where), None)
        if load is not None:
            self._flow(load, span, "stage")
        self._multiplied[key] = span


def _operand(operation: AsyncOperation, cta: Cta) -> str:
    """Returns the name of the part of shared memory that holds A."""
    subject = operation.subject
    a = None
    if isinstance(subject, Mma):
        a, _ = subject.operands()
    elif isinstance(subject, WarpgroupMma) and not subject.decoded.form.a_in_registers:
        a = subject.decoded.a
    return "" if a is None else whole(cta.grid.region_at(int(a.positions.min()) * CHUNK))


def whole(region: str) -> str:
    """Returns the part of shared memory that contains ``A stage 0 + 8192``, which several boxes fill."""
    return region.partition(" + ")[0]


def _levels(changes: Sequence[tuple[float, CtaKey, str, float]]) -> list[Sample]:
    """Turns changes of counters into samples: one sample for all simultaneous changes. The ring belongs to the CTA
    whose barriers signal full stages; the other CTA of a pair only has barriers for empty ones.
    """
    filled = {(key, name) for _, key, name, change in changes if change > 0}
    level: dict[tuple[CtaKey, str], float] = defaultdict(float)
    samples: dict[tuple[float, CtaKey, str], Sample] = {}
    for at, key, name, change in sorted(changes):
        if (key, name) in filled:
            level[key, name] += change
            samples[at, key, name] = Sample(key, name, at, level[key, name])
    return list(samples.values())


WINDOW = 1000.0
"""The window over which the busy time of the tensor core is averaged, in cycles."""


def _busy(timeline: Timeline, key: CtaKey) -> list[Sample]:
    busy: dict[int, float] = defaultdict(float)
    last = 0
    for span in timeline.spans:
        if span.cta != key or span.kind != "mma":
            continue
        at = span.start
        while at < span.end:
            window = int(at // WINDOW)
            until = min(span.end, (window + 1) * WINDOW)
            busy[window] += until - at
            at = until
        last = max(last, int(span.end // WINDOW))
    return [Sample(key, "tensor core busy, %", n * WINDOW, round(100 * busy[n] / WINDOW, 1)) for n in range(last + 2)]


def _wait_name(site: Any) -> str:
    """Returns what a warp waits for at an instruction, in the words of a measured timeline."""
    match site.opcode:
        case "wgmma":
            return "wait for MMA"
        case "cp":
            return "wait for store" if "bulk" in site.modifiers else "wait for copies"
        case "bar" | "barrier":
            return "cluster barrier" if "cluster" in site.modifiers else "barrier"
        case "tcgen05":
            return "wait for TMEM"
    return f"{site.opcode}.{site.modifiers[0]}" if site.modifiers else str(site.opcode)


def _block_kinds(code: Code) -> list[tuple[str, str]]:
    """Returns a name and a kind for each block, from its most important instruction."""
    return [_kind(code, first, last) for first, last in zip(code.first, code.last, strict=True)]


def _kind(code: Code, first: int, last: int) -> tuple[str, str]:
    for i in code.kernel.instructions[first : last + 1]:
        words = set(i.modifiers)
        if i.opcode == "mma" or (words & {"mma_async", "mma"} and i.opcode in ("wgmma", "tcgen05")):
            return "issue MMA", "issue"
        if i.opcode == "tcgen05" and "ld" in words:
            return "load accumulator", "convert"
        if i.opcode == "cp" and "bulk" in words and "tensor" in words:
            return ("issue store", "store") if "bulk_group" in words else ("issue load", "issue")
        if i.opcode in ("stmatrix", "cvt") and ("rn" in words or i.opcode == "stmatrix"):
            return "convert", "convert"
    return "work", "work"
