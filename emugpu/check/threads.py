"""Warps and their parts: maps the agent of an event to a component with a clock.

A converged warp is one component. If it diverges, one part keeps the component and the other parts get their own. If
parts reconverge, they know what all of them knew. Lanes that execute together are taken as ordered, as compilers do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from emugpu.check.clocks import (
    ALL,
    BEFORE,
    EXECUTION,
    ONLY_EXECUTION,
    ORDER,
    OWN,
    Clock,
    Components,
    Rows,
    including,
    larger,
    publish,
)
from emugpu.check.history import Observer
from emugpu.check.record import Record
from emugpu.check.signals_for_lanes import Behind, Found, LaneRelease, Part, joined, latecomers
from emugpu.emulator.machine.events import Agent, Site
from emugpu.emulator.machine.lanes import FULL_MASK

UNMET_KEPT = 64
"""Of what a warp has done since its lanes met, the checker follows this many moments for signal-for-lanes."""
PENDING_KEPT = 256
"""What relaxed reads have found is joined by instruction and lanes when it is more than this."""
MEETINGS_KEPT = 64
"""After this many meetings of some lanes only, all lanes count as met."""
COMPONENTS_OF_WARP = 2
COMPONENTS_OF_CTA = 20
"""Room for the mbarriers, pipes and bulk groups that most kernels need. There may be more."""


class Moment:
    """A thread between two synchronisations: its knowledge, and the records of its accesses.

    ``lanes`` have made accesses; if one strong read has made all of them, it is ``polls``. ``released`` holds the
    releases since then by which only some of them pass these on, if there is one, and the meetings of all lanes after
    it. ``met`` holds the meetings of some lanes since then.
    """

    __slots__ = (
        "clock", "lanes", "met", "observer", "order", "polls", "records", "released", "space", "time", "version", "who",
    )  # fmt: skip

    def __init__(
        self, clock: Clock, who: int, time: int, version: int = 0, behind: tuple[Behind, ...] = ()
    ) -> None:  # fmt: skip
        self.version = version
        self.clock = clock
        self.space, self.order = clock.space, clock.rows[ORDER]
        self.who, self.time = who, time
        self.observer = Observer(clock, behind=behind)
        self.records: dict[tuple[int, int, bool, tuple[object, ...] | None], Record] = {}
        self.lanes = 0
        self.polls: Site | None = None
        self.released: list[LaneRelease] = []
        self.met: list[int] = []

    def row(self, row: int) -> Rows:
        """Returns what all lanes know of their cluster in the sense of a row."""
        known: Rows = self.clock.rows[row]
        for one in self.observer.behind:
            mine = one.clock.rows[row][: len(known)]
            known = known.copy()
            np.minimum(known[: len(mine)], mine, out=known[: len(mine)])
            known[self.who] = self.time
        return known

    def known_to(self, lanes: int) -> int:
        """Returns these lanes, and those whose accesses at this moment they know to be over."""
        for members in reversed(self.met):
            if members & lanes:
                lanes |= members
        return lanes

    def forget_lanes(self, who: int, time: int) -> None:
        """What is released from now on passes on the accesses of all lanes."""
        if self.released:
            self.released.append(LaneRelease(FULL_MASK, who, time))


@dataclass(slots=True, eq=False)
class Thread:
    """A part of a warp that executes together, as a component with a clock.

    ``tensor`` holds the tcgen05 operations that its own may follow, by tcgen05.fence::after_thread_sync. ``fenced`` is
    what its fences released, each with its scope: the last fence, and before it the last ones of wider scopes.
    ``pending`` is what its next fences acquire; ``heard_own`` says whether lanes of its own warp released any of it.
    ``version`` changes whenever the thread acquires or releases. ``unmet`` holds its moments with accesses since the
    lanes of its warp met. ``fence`` is its last fence: the component, the time, and what was unmet then. ``behind``
    holds the lanes that know less than ``clock``. ``heard`` is the last instruction by which the thread has learned
    something since it split, ``heard_together`` the last before. ``learned`` holds what was released at the places that
    it polls, by place and instruction, as it last found it.
    """

    own: int
    clock: Clock
    tensor: Rows
    cta: int
    lanes: int
    time: int = field(init=False)
    fenced: tuple[tuple[Clock, int], ...] = ()
    pending: list[Found] = field(default_factory=list)
    heard_own: bool = False
    version: int = 0
    unmet: list[Moment] = field(default_factory=list)
    fence: tuple[int, int, list[Moment]] | None = None
    behind: tuple[Behind, ...] = ()
    heard: Site | None = None
    heard_together: Site | None = None
    learned: dict[tuple[object, int], object] = field(default_factory=dict)
    _moment: Moment | None = None
    _is_shared: bool = False

    def __post_init__(self) -> None:
        rows = self.clock.rows
        known = int(rows[ORDER, self.own]) if self.own < rows.shape[1] else 0
        self.time = known + 1
        self.clock.set(self.own, self.time, ONLY_EXECUTION)
        self._tick_rows()

    def _tick_rows(self) -> None:
        self.clock.rows[OWN, self.own] = self.time

    def peek(self) -> Clock:
        """Returns the clock as it is now; the returned clock will not change."""
        self._is_shared = True
        return self.clock

    def moment(self) -> Moment:
        """Returns the current moment."""
        if self._moment is None or self._moment.version != self.version:
            self._moment = Moment(self.peek(), self.own, self.time, self.version, self.behind)
        return self._moment

    def accessing(self, lanes: int, polls: Site | None = None) -> Moment:
        """Returns the current moment, in which lanes make an access. ``polls`` is the instruction of a strong read.

        A loop that polls reads at ever new moments, of which the last stands for all.
        """
        moment = self.moment()
        if not moment.lanes:
            last = self.unmet[-1] if self.unmet else None
            if polls is not None and last is not None and last.polls is polls and not last.released:
                self.unmet.pop()
            self.unmet.append(moment)
            self._drop_oldest()
            moment.polls = polls
        elif moment.polls is not polls:
            moment.polls = None
        moment.lanes |= lanes
        return moment

    def releasing(self, release: LaneRelease, moments: list[Moment]) -> list[Moment]:
        """Handles a release by some lanes of what was done at some moments.

        Returns the moments of which it is the first to pass on only a part.
        """
        unmet, new = [], []
        for moment in self.unmet:
            known = moment.known_to(release.lanes)
            if moment not in moments:
                unmet.append(moment)
            elif moment.released or moment.lanes & ~known:
                unmet.append(moment)
                if not moment.released:
                    new.append(moment)
                passed = release._replace(lanes=known)
                if passed not in moment.released:
                    moment.released.append(passed)
        self.unmet = unmet
        return new

    def _drop_oldest(self) -> None:
        for moment in self.unmet[:-UNMET_KEPT]:
            moment.forget_lanes(self.own, self.time)
        del self.unmet[:-UNMET_KEPT]

    def lanes_met(self, members: int = FULL_MASK) -> None:
        """Handles a meeting of lanes: they know together what any of them knows, and a later release of one passes on
        what all of them have done so far.
        """
        if self.behind:
            left = (one._replace(lanes=one.lanes & ~members) if members & ~one.lanes else one for one in self.behind)
            self.behind = tuple(one for one in left if one.lanes)
            self._moment = None
        self.pending = [one._replace(lanes=one.lanes | members) if one.lanes & members else one for one in self.pending]
        if not self.unmet:
            return
        unmet = []
        for moment in self.unmet:
            if not moment.lanes & ~members or len(moment.met) == MEETINGS_KEPT:
                moment.forget_lanes(self.own, self.time)
                continue
            unmet.append(moment)
            if moment.met[-1:] != [members]:  # else another part of the warp has noted the meeting
                moment.met.append(members)
        self.unmet = unmet
        self._moment = None

    def become(self, moment: Moment) -> None:
        """Sets the thread to its state at a moment."""
        self.clock, self.time = moment.clock.copy(), moment.time
        self._is_shared = False
        self.version += 1

    def release(self) -> Clock:
        """Returns the thread's knowledge, with its own actions so far; its later actions are not included."""
        known = self.clock
        self.clock = known.copy()
        self._is_shared = False
        self.time += 1
        self._tick_rows()
        self.version += 1
        return known

    def own_clock(self) -> Clock:
        """Returns the thread's clock for the caller to change."""
        if self._is_shared:
            self.clock = self.clock.copy()
            self._is_shared = False
        self.version += 1
        return self.clock

    def acquire(self, clock: Clock, rows: slice = ALL) -> None:
        self.own_clock().join(clock, rows)
        if self.behind:
            kept = [one._replace(clock=one.clock.copy()) for one in self.behind]
            for one in kept:
                one.clock.join(clock, rows)
            self.behind = tuple(kept)

    def hear(self, lanes: int, learn: Callable[[Clock], None], site: Site, silent: Sequence[int]) -> None:
        """Lets some lanes learn something by an instruction; others of the thread are behind.

        ``learn`` adds it to a clock. ``silent`` holds the `silent_meetings` of the kernel.
        """
        rest = self.lanes & ~lanes
        behind = []
        for one in self.behind:
            if one.lanes & lanes:
                clock = one.clock.copy()
                learn(clock)
                behind.append(one._replace(lanes=one.lanes & lanes, clock=clock))
            behind.append(one._replace(lanes=one.lanes & ~lanes))
            rest &= ~one.lanes
        if rest:
            behind.append(Behind(rest, self.peek(), site, silent))
        learn(self.own_clock())
        self.behind = tuple(one for one in behind if one.lanes and one.clock.lacks(self.clock))

    def find(self, found: Found) -> None:
        """Keeps what a relaxed read or wait has found for the next fences."""
        if found not in self.pending:
            self.pending.append(found)
            if len(self.pending) > PENDING_KEPT:
                self.pending = joined(self.pending)

    def may_follow(self, who: int, time: int) -> None:
        """Marks a tcgen05 operation of the thread as known to be over."""
        self.tensor = including(self.tensor, who, time)

    def fence_after(self) -> None:
        """Handles tcgen05.fence::after_thread_sync."""
        self.tensor = larger(self.tensor, self.clock.rows[BEFORE])
        self.version += 1

    def fence_before(self) -> None:
        """Handles tcgen05.fence::before_thread_sync."""
        clock = self.own_clock()
        publish(clock, self.tensor)


@dataclass(slots=True, eq=False)
class TrackedWarp:
    """The parts of a warp. ``spare`` holds components of parts that have joined others again."""

    parts: list[Thread] = field(default_factory=list)
    spare: list[int] = field(default_factory=list)
    found: dict[int, Thread] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class TrackedCta:
    """A CTA with its warps.

    ``started`` is the component that stands for the CTA's presence. ``ended`` is the final knowledge of its threads.
    """

    cluster: TrackedCluster
    rank: int
    started: int
    warps: dict[int, TrackedWarp] = field(default_factory=dict)
    ended: Clock | None = None


class TrackedCluster:
    """A cluster's CTAs by rank, and the components that they share."""

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
    """Finds the thread that an agent belongs to."""

    def __init__(self, ctas_of_cluster: int, silent: Sequence[int] = ()) -> None:
        """``silent`` holds the `silent_meetings` of the kernel."""
        self.size = ctas_of_cluster
        self.silent = silent
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
            made.unmet, made.fence, made.behind = list(whole.unmet), whole.fence, whole.behind
            made.heard_together = whole.heard
            warp.parts.append(made)
        whole.lanes, whole.heard, whole.heard_together = parts[0].lanes, None, whole.heard
        warp.found.clear()

    def join(self, parts: tuple[Agent, ...]) -> None:
        """Joins parts into one.

        It keeps the oldest component, which is the warp's own if the whole warp is together again.
        """
        first, *others = sorted((self.of(part) for part in parts), key=lambda thread: thread.own)
        _, warp = self._warp(parts[0])
        knew = [Part(one.lanes, one.peek(), one.behind, one.heard) for one in (first, *others)]
        first.behind = ()
        for other in others:
            _learn(first, other)
            first.unmet += [moment for moment in other.unmet if moment not in first.unmet]
            first.lanes |= other.lanes
            warp.parts.remove(other)
            warp.spare.append(other.own)
        own = [*(part.own for part in warp.parts), *warp.spare]
        first.behind = latecomers(first.clock, knew, own, self.silent)
        first.heard = next((part.heard for part in knew if part.heard is not None), first.heard_together)
        warp.found.clear()

    def meet(self, agent: Agent, members: int) -> None:
        """Handles bar.warp.sync and the like: the parts that have met share their knowledge."""
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

    def lanes_met(self, agent: Agent, members: int) -> int:
        """Handles a meeting of lanes of a warp. Returns them with those that have exited, which count as met."""
        parts = self._warp(agent)[1].parts
        members |= FULL_MASK & ~sum(part.lanes for part in parts)
        for part in parts:
            part.lanes_met(members)
        return members

    def leave(self, agent: Agent) -> Thread:
        """Adds the last clock of a thread to its CTA."""
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
    one.pending += [found for found in other.pending if found not in one.pending]
    one.heard_own |= other.heard_own


def has_started(clock: Clock, cta: TrackedCta) -> bool:
    return clock.knows(clock.space, cta.started, 1, EXECUTION)
