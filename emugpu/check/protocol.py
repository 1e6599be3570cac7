"""The hand-offs of a run: which role signals which, through which barrier, and for which accesses."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from emugpu.check.findings import Names
from emugpu.emulator.machine import events
from emugpu.emulator.machine.events import Agent, SharedBytes, SharedChunks, Site, TensorBlock
from emugpu.emulator.memory.bytes import CHUNK

TENSOR = "tensor memory"
CLUSTER_BARRIER = -1


@dataclass
class Handover:
    """The hand-offs through a barrier or an array of barriers. The keys are agents and instructions, the values count
    them.

    ``gives`` counts what the agents that arrive have done to memory since their last arrival anywhere. ``rounds``
    counts the phases that have ended, ``nbytes`` the bytes of copies in all phases.
    """

    barrier: str
    arrives: Counter[str] = field(default_factory=Counter)
    gives: Counter[str] = field(default_factory=Counter)
    waits: Counter[str] = field(default_factory=Counter)
    rounds: int = 0
    nbytes: int = 0

    def as_dict(self) -> dict[str, Any]:
        return {
            "barrier": self.barrier,
            "arrives": dict(self.arrives),
            "gives": sorted(self.gives),
            "waits": dict(self.waits),
            "rounds": self.rounds,
            "bytes": self.nbytes,
        }


class Protocol:
    """Collects the hand-offs from the events.

    ``handovers`` is by barrier, in the order of first use. ``fences`` counts fences by the role that executes them.
    """

    def __init__(self, roles: Sequence[Any] = ()) -> None:
        self.handovers: dict[str, Handover] = {}
        self.fences: Counter[str] = Counter()
        self._roles = roles
        self._names = Names((), roles)
        self._done: dict[tuple[int, int, int], Counter[str]] = {}
        self._pending: dict[tuple[int, int, int, str], Counter[str]] = {}
        """The effects of a warp's asynchronous operations that no wait has covered yet, by the kind of their groups."""
        self._multiplied: dict[tuple[int, int, int], Counter[str]] = {}
        self._take: dict[type, Callable[[Any], None]] = {
            events.GridStarted: self._started,
            events.Access: self._access,
            events.Issued: self._issued,
            events.Fenced: self._fenced,
            events.Arrived: self._arrived,
            events.BytesLanded: self._landed,
            events.Signalled: self._signalled,
            events.Waited: self._waited,
            events.PhaseCompleted: lambda e: self._round(self._name(e.offset)),
            events.GroupArrived: self._group_arrived,
            events.GroupLeft: self._group_left,
            events.GroupCompleted: lambda e: self._round(_group(e.barrier)),
            events.Awaited: self._awaited,
        }

    def __call__(self, event: Any) -> None:
        take = self._take.get(type(event))
        if take is not None:
            take(event)

    def _started(self, event: events.GridStarted) -> None:
        self._names = Names(event.launch.regions, self._roles)
        self._names.dynamic_start = event.dynamic_shared

    # ---- names ----

    def _name(self, offset: int) -> str:
        return family(self._names.region(offset))

    def _who(self, agent: Agent) -> str:
        return self._names.role(agent.warp) or f"warp {agent.warp}"

    def _of(self, barrier: str) -> Handover:
        return self.handovers.setdefault(barrier, Handover(barrier))

    def _round(self, barrier: str) -> None:
        self._of(barrier).rounds += 1

    # ---- effects on memory ----

    def _note(self, agent: Agent, what: str) -> None:
        self._done.setdefault(agent[:3], Counter())[what] += 1

    def _access(self, event: events.Access) -> None:
        if event.space != "shared":
            return
        where = event.where if isinstance(event.where, int) else int(event.where[0])
        does = "reads" if event.mode == "read" else "writes"
        self._note(event.agent, f"{does} {self._name(where)} ({event.site.opcode})")

    def _issued(self, event: events.Issued) -> None:
        operation, agent = event.operation, event.agent
        if operation.kind == "mma":
            touched = [f"reads {place}" for place in self._places(operation.reads) if place != TENSOR]
            touched += [f"writes {place}" for place in self._places(operation.writes)]
            self._multiplied.setdefault(agent[:3], Counter()).update(f"{what} (MMA)" for what in touched)
        elif operation.kind == "wgmma":
            self._pending.setdefault((*agent[:3], "wgmma"), Counter()).update(
                f"reads {place} (wgmma)" for place in self._places(operation.reads)
            )
        elif operation.kind == "tmem.load":
            self._note(agent, f"reads {TENSOR} (tcgen05.ld)")
        elif operation.kind == "tmem.store":
            self._note(agent, f"writes {TENSOR} (tcgen05.st)")
        elif operation.kind == "tma.store":
            self._pending.setdefault((*agent[:3], "bulk"), Counter()).update(
                f"reads {place} (TMA store)" for place in self._places(operation.reads)
            )

    def _places(self, regions: Sequence[events.Region]) -> list[str]:
        found = []
        for region in regions:
            if isinstance(region, SharedChunks):
                found.append(self._name(int(region.chunks.flat[0]) * CHUNK))
            elif isinstance(region, SharedBytes):
                found.append(self._name(region.offset))
            elif isinstance(region, TensorBlock):
                found.append(TENSOR)
        return list(dict.fromkeys(found))

    # ---- signals ----

    def _add_arrival(self, barrier: str, agent: Agent, how: str, gives: Counter[str] | None) -> None:
        handover = self._of(barrier)
        handover.arrives[f"{self._who(agent)}: {how}"] += 1
        if gives:
            handover.gives.update(gives)
            gives.clear()

    def _arrived(self, event: events.Arrived) -> None:
        where = "" if event.cta == event.agent.cta else " at another CTA"
        how = f"{_verb(event.site)}{where}"
        self._add_arrival(self._name(event.offset), event.agent, how, self._done.get(event.agent[:3]))

    def _landed(self, event: events.BytesLanded) -> None:
        barrier = self._name(event.offset)
        self._of(barrier).nbytes += event.nbytes
        if event.operation is not None:
            places = " and ".join(self._places(event.operation.writes))
            other = {"launch-control": "response", "st.async": event.site.verb}
            what = other.get(event.operation.kind, "TMA copy")
            where = "" if event.cta == event.agent.cta else " from another CTA"
            self._add_arrival(
                barrier, event.agent, f"bytes of a {what}{where}", Counter({f"writes {places} ({what})": 1})
            )

    def _signalled(self, event: events.Signalled) -> None:
        agent = event.operation.agent
        where = "" if event.cta == agent.cta else " at another CTA"
        gives = Counter(self._multiplied.get(agent[:3], Counter()))
        self._add_arrival(self._name(event.offset), agent, f"tcgen05.commit{where}", gives)

    def _waited(self, event: events.Waited) -> None:
        if event.phase >= 0:
            scope = f" ({event.site.scope} scope)" if event.site.scope != "cta" else ""
            self._of(self._name(event.offset)).waits[f"{self._who(event.agent)}{scope}"] += 1

    def _group_arrived(self, event: events.GroupArrived) -> None:
        how = event.site.semantics if event.barrier == CLUSTER_BARRIER else "arrives"
        self._add_arrival(_group(event.barrier), event.agent, how, self._done.get(event.agent[:3]))

    def _group_left(self, event: events.GroupLeft) -> None:
        self._of(_group(event.barrier)).waits[self._who(event.agent)] += 1

    def _awaited(self, event: events.Awaited) -> None:
        agent = event.agent
        handover = self._of(f"{event.kind} groups")
        handover.waits[f"{self._who(agent)}: {_verb(event.site)}"] += 1
        handover.rounds += 1
        pending = self._pending.pop((*agent[:3], event.kind), None)
        if pending:
            handover.gives.update(pending)
            self._done.setdefault(agent[:3], Counter()).update(pending)

    def _fenced(self, event: events.Fenced) -> None:
        self.fences[f"{self._who(event.agent)}: {event.site.opcode}.{'.'.join(event.site.modifiers)}"] += 1


def family(name: str) -> str:
    """Returns the name of the array that an element such as full[2] or A stage 3 belongs to."""
    return re.sub(r"\[\d+\]$| \d+$", "", name)


def _group(barrier: int) -> str:
    return "cluster barrier" if barrier == CLUSTER_BARRIER else f"barrier {barrier}"


def _verb(site: Site) -> str:
    """Returns an instruction's name without its types and state spaces."""
    words = [
        word for word in site.modifiers if "shared" not in word and word not in ("b64", "async", "bulk", "aligned")
    ]
    return ".".join(word for word in words if word != "sync") or site.opcode


def as_dict(protocol: Protocol) -> dict[str, Any]:
    """Returns the hand-offs as plain data."""
    return {
        "handovers": [handover.as_dict() for handover in protocol.handovers.values()],
        "fences": dict(protocol.fences),
    }
