"""The state at a position: warps and their waits, barriers and their arrivals, and the causes of a hang."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from emugpu.debug.names import LaunchNames, line_of, mnemonic
from emugpu.emulator.machine import events
from emugpu.emulator.machine.events import Agent, Site
from emugpu.emulator.machine.lanes import FULL_MASK

BarrierKey = tuple[int, int, int]
"""Cluster, CTA, offset."""
SHOWN = 4


@dataclass
class WarpState:
    """Lanes of a warp.

    ``site`` is that of their last event. ``waits`` is what they wait for, or None if they can continue.
    """

    agent: Agent
    site: Site | None = None
    waits: events.Suspended | None = None
    left: bool = False


@dataclass
class BarrierState:
    """An mbarrier.

    ``pending`` and ``nbytes`` are what its phase still needs. ``arrived`` holds the arrivals in this phase,
    ``before`` those in each earlier phase.
    """

    key: BarrierKey
    expected: int
    phase: int = 0
    pending: int = 0
    nbytes: int = 0
    arrived: list[BarrierArrival] = field(default_factory=list)
    before: list[list[BarrierArrival]] = field(default_factory=list)


@dataclass(frozen=True)
class BarrierArrival:
    """An arrival, or bytes that landed. ``event`` is its number, ``operation`` the operation that makes it, if any."""

    event: int
    agent: Agent
    site: Site
    arrivals: int
    landed: int
    operation: events.Operation | None = None

    @property
    def what(self) -> tuple[Any, ...]:
        """Returns a key that is the same in every phase."""
        return (*self.agent[:3], self.site.line, bool(self.landed))


@dataclass
class GroupState:
    """A barrier of threads: the arrivals in its generation, and in the previous one."""

    arrived: list[Agent] = field(default_factory=list)
    before: list[Agent] = field(default_factory=list)


class Status:
    """The state of a launch at a position, derived from its events."""

    def __init__(self, happened: Sequence[Any], first: int, names: LaunchNames) -> None:
        """``happened`` holds the events of the launch, ``first`` the number of the first of them."""
        self.names = names
        self.warps: dict[Agent, WarpState] = {}
        self.barriers: dict[BarrierKey, BarrierState] = {}
        self.groups: dict[tuple[int, int, int], GroupState] = {}
        self.seen: dict[tuple[Agent, BarrierKey], int] = {}
        """The last phase of a barrier whose end a warp has seen."""
        self.loads: dict[tuple[int, int], list[events.Operation]] = {}
        """Copies that signal barriers at an offset, by cluster."""
        self._blocked_by: dict[Agent, list[Agent]] = {}
        self._missing: Counter[Agent] = Counter()
        """By warp that waits for no mbarrier itself: the number of waits that need an arrival from it."""
        self._within: dict[Agent, Agent] = {}
        for number, event in enumerate(happened, first):
            self._take(number, event)

    def _take(self, number: int, event: Any) -> None:
        match event:
            case events.Diverged(agent, parts):
                self._within.clear()
                state = self.warps.pop(agent, WarpState(agent))
                for part in parts:
                    self.warps[part] = WarpState(part, state.site)
            case events.Rejoined(parts, agent):
                self._within.clear()
                states = [self.warps.pop(part, WarpState(part)) for part in parts]
                self.warps[agent] = WarpState(agent, states[-1].site)
            case events.Suspended(agent, site):
                state = self._warp(agent)
                state.site, state.waits = site, event
            case events.Resumed(agent):
                self._warp(agent).waits = None
            case events.Exited(agent):
                self._warp(agent).left = True
            case events.BarrierInit(_, _, cta, offset, arrivals):
                key = event.agent.cluster, cta, offset
                self.barriers[key] = BarrierState(key, arrivals, pending=arrivals)
            case events.Arrived(agent, site, _, cta, offset, _, arrivals, nbytes, drop):
                self._arrive(
                    BarrierArrival(number, agent, site, arrivals, 0), cta, offset, nbytes, arrivals if drop else 0
                )
            case events.Signalled(operation, cta, offset):
                self._arrive(BarrierArrival(number, operation.agent, operation.site, 1, 0, operation), cta, offset, 0)
            case events.BytesLanded(operation, agent, site, cta, offset, _, nbytes):
                self._arrive(BarrierArrival(number, agent, site, 0, nbytes, operation), cta, offset, -nbytes)
            case events.ArrivalExpected(agent, _, _, cta, offset):
                self.barriers[agent.cluster, cta, offset].pending += 1
            case events.PhaseCompleted(cluster, cta, offset, phase):
                barrier = self.barriers[cluster, cta, offset]
                barrier.phase = phase + 1
                barrier.before.append(barrier.arrived)
                barrier.arrived, barrier.pending, barrier.nbytes = [], barrier.expected, 0
            case events.Waited(agent, _, _, cta, offset, phase):
                self.seen[agent, (agent.cluster, cta, offset)] = phase
            case events.GroupArrived(agent, _, barrier):
                self._group(agent.cluster, agent.cta if barrier >= 0 else -1, barrier).arrived.append(agent)
            case events.GroupCompleted(cluster, cta, barrier):
                group = self._group(cluster, cta, barrier)
                group.before, group.arrived = group.arrived, []
        if isinstance(event, events.Issued):
            self._warp(event.agent).site = event.operation.site
            if event.operation.kind in ("tma.load", "bulk.load"):
                for offset in {offset for _, offset in event.operation.detail["signals"]}:
                    self.loads.setdefault((event.agent.cluster, offset), []).append(event.operation)
        elif hasattr(event, "agent") and hasattr(event, "site") and not isinstance(event, events.BytesLanded):
            self._warp(event.agent).site = event.site

    def _warp(self, agent: Agent) -> WarpState:
        """Returns the state of the lanes that execute together; a guard may be true for a part of them only."""
        if agent not in self.warps and agent not in self._within:
            around = (a for a in self.warps if a[:3] == agent[:3] and a.lanes & agent.lanes == agent.lanes)
            self._within[agent] = next(around, agent)
        agent = self._within.get(agent, agent)
        return self.warps.setdefault(agent, WarpState(agent))

    def _arrive(self, arrival: BarrierArrival, cta: int, offset: int, nbytes: int, drop: int = 0) -> None:
        """Records an arrival. If it completes a phase, the event of the phase has come before it."""
        barrier = self.barriers[arrival.agent.cluster, cta, offset]
        barrier.arrived.append(arrival)
        barrier.pending -= arrival.arrivals
        barrier.nbytes += nbytes
        barrier.expected -= drop

    def _group(self, cluster: int, cta: int, barrier: int) -> GroupState:
        return self.groups.setdefault((cluster, cta, barrier), GroupState())

    # ---- as text ----

    def warp_lines(self, wanted: Callable[[Agent], bool]) -> Iterator[str]:
        for agent in sorted(filter(wanted, self.warps)):
            yield f"{self.names.agent(agent)}: {self.where(self.warps[agent])}"

    def where(self, state: WarpState) -> str:
        if state.left:
            return "has left the kernel"
        if state.waits is not None:
            return f"{self.waits_for(state.waits)}, {line_of(state.waits.site)}"
        return f"was last seen at {line_of(state.site)}: {state.site.text}" if state.site else "has not started"

    def waits_for(self, waits: events.Suspended) -> str:
        if waits.mbarrier is None:
            return f"{waits.what} ({mnemonic(waits.site)})"
        return f"{waits.what} ({self.names.barrier(waits.mbarrier[0])}, phase {waits.mbarrier[1]})"

    def barrier_lines(self, of: tuple[int, int] | None) -> Iterator[str]:
        """Yields a line for each barrier of a cluster and CTA, or of all if ``of`` is None."""
        for barrier in sorted(self.barriers.values(), key=lambda b: b.key):
            if of in (None, barrier.key[:2]):
                yield self.barrier(barrier)

    def barrier(self, barrier: BarrierState) -> str:
        cluster, cta, offset = barrier.key
        of = f" of cluster {cluster}" if cluster else ""
        pending = [f"{barrier.pending} of {barrier.expected} arrivals"] if barrier.pending else []
        pending += [f"{barrier.nbytes:,} bytes"] if barrier.nbytes else []
        who = sorted({self.names.agent(a.agent) for a in barrier.arrived})
        more = f" and {len(who) - SHOWN} more" if len(who) > SHOWN else ""
        arrived = f"; has got something from {', '.join(who[:SHOWN])}{more}" if who else ""
        return (
            f"{self.names.barrier(offset)} of CTA {cta}{of}: phase {barrier.phase}, "
            f"pending: {' and '.join(pending) or 'nothing'}{arrived}"
        )

    # ---- causes of a hang ----

    def waits(self) -> Iterator[str]:
        """Yields for each waiting warp what it waits for, who would have to arrive, and where that warp is.

        The missing warp comes first, then a cycle of waits if there is one.
        """
        groups: dict[str, list[Agent]] = {}
        self._blocked_by = {}
        self._missing = Counter()
        for state in self.warps.values():
            if state.waits is not None and not state.left:
                groups.setdefault("\n".join(self._why(state.waits)), []).append(state.agent)
        for agent, count in self._missing.most_common(1):
            states = ", and ".join(dict.fromkeys(map(self.where, self._states(agent)))) or "has not started"
            waiting = "1 wait needs it" if count == 1 else f"{count} waits need it"
            yield f"{self.names.warp(*agent[:3])} is missing: {waiting}, and it {states}"
        circle = self._circle()
        if circle:
            yield f"in a circle: {', which waits for '.join(self.names.agent(agent) for agent in circle)}"
        for text, agents in sorted(groups.items(), key=lambda one: self._rank(one[1][0])):
            first, *more = (self.names.agent(agent) for agent in sorted(agents))
            yield f"{first}{f' and {len(more)} more' if more else ''} {text}"

    def _rank(self, agent: Agent) -> int:
        """Returns the position of a wait in the output; a wait that follows from no other wait comes first.

        The first ones lack bytes, the next ones arrivals that no waiting warp would make.
        """
        waits = self.warps[agent].waits
        if waits is None or waits.mbarrier is None:
            return 3
        barrier = self.barriers.get((agent.cluster, agent.cta, waits.mbarrier[0]))
        if barrier is not None and barrier.nbytes and not self._blocked_by.get(agent):
            return 0
        return 2 if self._blocked_by.get(agent) else 1

    def _circle(self) -> list[Agent]:
        """Returns warps that wait for one another, or []."""
        for start in sorted(self._blocked_by):
            path = [start]
            while (following := next(iter(self._blocked_by.get(path[-1], ())), None)) is not None:
                if following in path:
                    return [*path[path.index(following) :], following]
                path.append(following)
        return []

    def _why(self, waits: events.Suspended) -> Iterator[str]:
        agent = waits.agent
        yield f"{waits.what}, {line_of(waits.site)}"
        if waits.mbarrier is None:
            yield from self._why_group(agent)
            return
        key = agent.cluster, agent.cta, waits.mbarrier[0]
        barrier = self.barriers.get(key)
        if barrier is None:
            yield "    the mbarrier is not initialised"
            return
        yield f"    {self.barrier(barrier)}"
        if barrier.phase > waits.mbarrier[1]:
            yield f"    phase {waits.mbarrier[1]} is over: it can continue"
            return
        seen = self.seen.get((agent, key), -1)
        if waits.mbarrier[1] > seen + 1:
            last = f"phase {seen}" if seen >= 0 else "none"
            yield f"    phase {waits.mbarrier[1] - 1} ended without it: the last whose end it has seen is {last}"
        usual, from_where = self._usual(barrier)
        missing = {a.what: a for a in usual if a.landed or barrier.pending}
        # In an unrolled loop, the same arrival comes from another line.
        elsewhere = [a.what for a in barrier.arrived if a.what not in missing]
        for arrival in barrier.arrived:
            missing.pop(arrival.what, None)
        for *who, _, landed in elsewhere:
            alike = next((what for what in missing if [*what[:3]] == who and what[-1] == landed), None)
            missing.pop(alike, None)  # type: ignore[arg-type]
        for arrival in [] if missing else barrier.arrived[:SHOWN]:
            yield f"    got {_what(arrival)} by {self._by(arrival)}"
        if not missing and not barrier.arrived:
            yield "    no thread has ever arrived there"
        reported: set[Agent] = set()
        for arrival in list(missing.values())[:SHOWN]:
            yield f"    misses {_what(arrival)} by {self._by(arrival)}, {from_where}"
            if arrival.agent not in reported:
                yield from (f"      which {self.where(state)}" for state in self._states(arrival.agent))
            reported.add(arrival.agent)
        self._blocked_by[agent] = [s.agent for a in reported for s in self._states(a) if s.waits is not None]
        silent = {a._replace(lanes=FULL_MASK) for a in reported} | (self._silent(key) if barrier.nbytes else set())
        self._missing.update(a for a in silent if not any(self._waits_at_mbarrier(s) for s in self._states(a)))
        if barrier.nbytes:
            yield from self._loads(key)

    @staticmethod
    def _waits_at_mbarrier(state: WarpState) -> bool:
        return not state.left and state.waits is not None and state.waits.mbarrier is not None

    def _silent(self, key: BarrierKey) -> set[Agent]:
        """Returns the warps that have issued fewer loads for these barriers than those of other CTAs in their place."""
        issued = Counter(operation.agent[:3] for operation in self.loads.get((key[0], key[2]), []))
        most = max(issued.values(), default=0)
        numbers = {warp for _, _, warp in issued}
        found = {agent[:3] for agent in self.warps if agent.cluster == key[0] and agent.warp in numbers}
        return {Agent(*who, FULL_MASK) for who in found if issued[who] < most}

    def _loads(self, key: BarrierKey) -> Iterator[str]:
        """Yields the cluster's last loads that signal these barriers, and their warps: one may have the wrong mask."""
        for operation in self.loads.get((key[0], key[2]), [])[-2 * SHOWN :]:
            ranks = sorted({cta for cta, _ in operation.detail["signals"]})
            to = f"CTA{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
            here = "" if key[1] in ranks else ", not here"
            yield f"    {self.names.operation(operation)} of {self.names.agent(operation.agent)} goes to {to}{here}"

    def _by(self, arrival: BarrierArrival) -> str:
        kind = arrival.operation.kind if arrival.operation is not None else arrival.site.verb
        return f"{kind} of {self.names.agent(arrival.agent)}, {line_of(arrival.site)}"

    def _usual(self, barrier: BarrierState) -> tuple[list[BarrierArrival], str]:
        """Returns the usual arrivals: in the previous phase, or at the other barriers of the ring, or in other CTAs."""
        if barrier.before:
            return barrier.before[-1], f"as in phase {barrier.phase - 1}"
        cluster, cta, offset = barrier.key
        ring = self.names.barrier(offset).partition("[")[0]
        for other in self.barriers.values():
            mine = other.key[:2] == (cluster, cta) and self.names.barrier(other.key[2]).partition("[")[0] == ring
            if other.before and "[" in self.names.barrier(offset) and mine:
                return other.before[0], f"as at {self.names.barrier(other.key[2])}"
        for other in self.barriers.values():
            if other.before and other.key[2] == offset:
                # The source of the bytes differs between CTAs.
                arrivals = [arrival for arrival in other.before[0] if not arrival.landed]
                return arrivals, f"as in CTA {other.key[1]} of cluster {other.key[0]}"
        return [], ""

    def _states(self, agent: Agent) -> list[WarpState]:
        return [s for a, s in self.warps.items() if a[:3] == agent[:3] and (a.lanes & agent.lanes or a == agent)]

    def _why_group(self, agent: Agent) -> Iterator[str]:
        for (cluster, cta, barrier), group in self.groups.items():
            if cluster != agent.cluster or cta not in (-1, agent.cta) or agent not in group.arrived:
                continue
            name = f"barrier {barrier}" if barrier >= 0 else "the cluster barrier"
            here = {a[:3] for a in group.arrived}
            # The participants of the previous generation, or else all warps of the CTA or cluster.
            others = group.before or [a for a in self.warps if a.cluster == cluster and cta in (-1, a.cta)]
            missing = [s for a in dict.fromkeys(a for a in others if a[:3] not in here) for s in self._states(a)]
            for state in missing[:SHOWN]:
                yield f"    {name} misses {self.names.agent(state.agent)}, which {self.where(state)}"
            if len(missing) > SHOWN:
                yield f"    and {len(missing) - SHOWN} more"


def _what(arrival: BarrierArrival) -> str:
    return f"{arrival.landed:,} bytes" if arrival.landed else "the arrival"
