"""Warps and their parts: who an agent of an event is, as a component with a clock.

A warp is one component while it is converged. Where it splits, one part stays the component and the others get their
own; where parts meet again they know what all of them knew. That lanes which execute together follow one another is
taken for granted, as compilers do.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from emugpu.check.clocks import (
    ALL,
    BEFORE,
    EXECUTION,
    ORDER,
    OWN,
    Clock,
    Components,
    Rows,
    larger,
    publish,
)
from emugpu.check.history import Observer, Record
from emugpu.emulator.machine.events import Agent
from emugpu.emulator.machine.lanes import FULL_MASK

COMPONENTS_OF_WARP = 2
COMPONENTS_OF_CTA = 20
"""What most kernels need: mbarriers, pipes, bulk groups. There may be more."""


class Moment:
    """A thread as long as it learns and tells nothing: what it knows, and the records of what it does."""

    __slots__ = ("clock", "observer", "order", "records", "space", "time", "version", "who")

    def __init__(self, clock: Clock, who: int, time: int, version: int = 0) -> None:
        self.version = version
        self.clock = clock
        self.space, self.order = clock.space, clock.rows[ORDER]
        self.who, self.time = who, time
        self.observer = Observer(clock)
        self.records: dict[tuple[int, int, bool, int | None], Record] = {}


@dataclass(slots=True, eq=False)
class Thread:
    """A part of a warp that executes together, as a component that knows things.

    ``tensor``: tcgen05 operations it may follow by its own, as tcgen05.fence::after_thread_sync says. ``fenced``: what
    its last fence has released, with the fence's scope. ``pending``: what its next fence acquires; ``heard_own``:
    whether lanes of its own warp have told any of it. ``version`` changes whenever it learns or tells something.
    """

    own: int
    clock: Clock
    tensor: Rows
    cta: int
    lanes: int
    time: int = field(init=False)
    fenced: tuple[Clock, int] | None = None
    pending: list[tuple[Clock, slice, int]] = field(default_factory=list)
    heard_own: bool = False
    version: int = 0
    _moment: Moment | None = None
    _lent: bool = False

    def __post_init__(self) -> None:
        rows = self.clock.rows
        known = int(rows[ORDER, self.own]) if self.own < rows.shape[1] else 0
        self.time = known + 1
        self.clock.set(self.own, self.time, slice(EXECUTION, EXECUTION + 1))
        self._tick_rows()

    def _tick_rows(self) -> None:
        self.clock.rows[OWN, self.own] = self.time

    def peek(self) -> Clock:
        """Returns what it knows now; this will not change."""
        self._lent = True
        return self.clock

    def moment(self) -> Moment:
        """Returns the present one."""
        if self._moment is None or self._moment.version != self.version:
            self._moment = Moment(self.peek(), self.own, self.time, self.version)
        return self._moment

    def become(self, moment: Moment) -> None:
        """Be where it is at a moment that nobody has told it of."""
        self.clock, self.time = moment.clock.copy(), moment.time
        self._lent = False
        self.version += 1

    def release(self) -> Clock:
        """Returns what it knows, up to its own actions so far: what it does from now on is not included."""
        told = self.clock
        self.clock = told.copy()
        self._lent = False
        self.time += 1
        self._tick_rows()
        self.version += 1
        return told

    def own_clock(self) -> Clock:
        """Returns its clock, to be changed."""
        if self._lent:
            self.clock = self.clock.copy()
            self._lent = False
        self.version += 1
        return self.clock

    def acquire(self, clock: Clock, rows: slice = ALL) -> None:
        self.own_clock().join(clock, rows)

    def may_follow(self, who: int, time: int) -> None:
        """A tcgen05 operation of its own is known to be over."""
        known = np.zeros(who + 1, np.int32)
        known[who] = time
        self.tensor = larger(self.tensor, known)

    def fence_after(self) -> None:
        """Takes tcgen05.fence::after_thread_sync."""
        self.tensor = larger(self.tensor, self.clock.rows[BEFORE])
        self.version += 1

    def fence_before(self) -> None:
        """Takes tcgen05.fence::before_thread_sync."""
        clock = self.own_clock()
        publish(clock, self.tensor)


@dataclass(slots=True, eq=False)
class TrackedWarp:
    """Holds the parts of a warp. ``spare``: components of parts that have joined others again."""

    parts: list[Thread] = field(default_factory=list)
    spare: list[int] = field(default_factory=list)
    found: dict[int, Thread] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class TrackedCta:
    """Holds a CTA's warps.

    ``started``: the component that stands for its being there. ``ended``: what its threads knew last.
    """

    cluster: TrackedCluster
    rank: int
    started: int
    warps: dict[int, TrackedWarp] = field(default_factory=dict)
    ended: Clock | None = None


class TrackedCluster:
    """Holds a cluster's CTAs by rank, and the components they share."""

    def __init__(self, number: int, warps: int, ctas: int) -> None:
        self.number = number
        self.components = Components(number, ctas * (warps * COMPONENTS_OF_WARP + COMPONENTS_OF_CTA))
        self.ctas: dict[int, TrackedCta] = {}

    def start(self, rank: int, warps: int) -> TrackedCta:
        cta = self.ctas[rank] = TrackedCta(self, rank, self.components.new(rank))
        for index in range(warps):
            clock = Clock(self.components)
            clock.set(cta.started, 1)
            warp = cta.warps[index] = TrackedWarp()
            tensor = np.zeros(self.components.capacity, np.int32)
            warp.parts.append(Thread(self.components.new(rank), clock, tensor, rank, FULL_MASK))
        return cta


class Threads:
    """Finds who acts."""

    def __init__(self, ctas_of_cluster: int) -> None:
        self.size = ctas_of_cluster
        self.clusters: dict[int, TrackedCluster] = {}

    def cta(self, cluster: int, rank: int) -> TrackedCta:
        return self.clusters[cluster].ctas[rank]

    def start(self, number: int, rank: int, warps: int) -> TrackedCta:
        cluster = self.clusters.get(number)
        if cluster is None:
            cluster = self.clusters[number] = TrackedCluster(number, warps, self.size)
        return cluster.start(rank, warps)

    def of(self, agent: Agent) -> Thread:
        warp = self.clusters[agent.cluster].ctas[agent.cta].warps[agent.warp]
        found = warp.found.get(agent.lanes)
        if found is None:
            found = next(part for part in warp.parts if part.lanes & agent.lanes)
            warp.found[agent.lanes] = found
        return found

    def _warp(self, agent: Agent) -> tuple[TrackedCluster, TrackedWarp]:
        cluster = self.clusters[agent.cluster]
        return cluster, cluster.ctas[agent.cta].warps[agent.warp]

    def split(self, agent: Agent, parts: tuple[Agent, ...]) -> None:
        whole = self.of(agent)
        cluster, warp = self._warp(agent)
        known = whole.release()
        for part in parts[1:]:
            own = warp.spare.pop() if warp.spare else cluster.components.new(whole.cta)
            made = Thread(own, known.copy(), whole.tensor, whole.cta, part.lanes)
            made.fenced, made.pending, made.heard_own = whole.fenced, list(whole.pending), whole.heard_own
            warp.parts.append(made)
        whole.lanes = parts[0].lanes
        warp.found.clear()

    def join(self, parts: tuple[Agent, ...]) -> None:
        """Parts become one, which is the oldest component: that of the warp, where all of it is together again."""
        first, *others = sorted((self.of(part) for part in parts), key=lambda thread: thread.own)
        _, warp = self._warp(parts[0])
        for other in others:
            _learn(first, other)
            first.lanes |= other.lanes
            warp.parts.remove(other)
            warp.spare.append(other.own)
        warp.found.clear()

    def meet(self, agent: Agent, members: int) -> None:
        """Takes bar.warp.sync and the like: those that have met know the same."""
        if agent.lanes & members == members:
            return
        _, warp = self._warp(agent)
        parts = [part for part in warp.parts if part.lanes & members]
        for part in parts:
            for other in parts:
                if other is not part:
                    _learn(part, other)
        for part in parts:
            part.release()

    def leave(self, agent: Agent) -> Thread:
        """Keeps the last clock of a thread with its CTA."""
        thread = self.of(agent)
        cta = self.cta(agent.cluster, agent.cta)
        clock = thread.release()
        if cta.ended is None:
            cta.ended = clock.copy()
        else:
            cta.ended.join(clock)
        warp = cta.warps[agent.warp]
        thread.lanes &= ~agent.lanes
        warp.found.clear()
        return thread


def _learn(one: Thread, other: Thread) -> None:
    one.acquire(other.peek())
    one.tensor = larger(one.tensor, other.tensor)


def has_started(clock: Clock, cta: TrackedCta) -> bool:
    return clock.knows(clock.space, cta.started, 1, EXECUTION)
