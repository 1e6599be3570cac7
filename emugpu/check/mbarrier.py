"""An mbarrier as the checker sees it: the knowledge that the end of each phase passes on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from emugpu.check.clocks import (
    ALL,
    BEFORE,
    COMPLETED,
    EXECUTION,
    NARROW,
    ONLY_EXECUTION,
    UNFENCED,
    WIDE,
    Clock,
    Components,
    Rows,
    including,
    larger,
    publish,
    set_generic,
)
from emugpu.check.record import ACQUIRES, RELEASES, SCOPES, Record
from emugpu.check.signals_for_lanes import Found
from emugpu.check.threads import Thread
from emugpu.emulator.machine.events import Agent, Site

ENDS_KEPT = 4
NO_TIMES: Rows = np.zeros(0, np.int32)


@dataclass
class Arrival:
    """An arrival of component ``who`` at ``time``, in a phase whose end no thread of the barrier's CTA has seen."""

    phase: int
    who: int
    time: int
    site: Site
    agent: Agent
    commit: bool


class Use(NamedTuple):
    """An arrival or a wait of a thread."""

    time: int
    site: Site
    agent: Agent


class Signal(NamedTuple):
    """An asynchronous operation that has signalled or will signal the mbarrier.

    An agent knows that it is over if its clock knows one of ``ends``, which are components with times.
    """

    ends: tuple[tuple[int, int], ...]
    site: Site
    agent: Agent


@dataclass
class Wait:
    """An agent's wait that has seen the end of a phase."""

    phase: int
    thread: Thread
    time: int
    site: Site
    agent: Agent


@dataclass(slots=True, eq=False)
class TrackedMBarrier:
    """An mbarrier as the checker sees it. ``component`` stands for its phases, so that a clock can know which are over.

    ``over`` is the knowledge that the ends of its phases pass on, ``ends`` what it was at the ends of the latest ones,
    by phase: a wait acquires no more, though later phases may have ended when it looks. ``now`` is the knowledge that
    arrivals have added in the current phase. Only a wait of cluster scope acquires ``far`` and ``over_far``. ``fenced``
    holds the tcgen05 operations before the fences of arrivals, by the scope that a relaxed wait needs to follow them:
    that of the CTA or of the cluster. ``uses`` holds the last use of each thread. ``coming`` holds the signals of
    operations in flight, by operation, and ``signalled`` the last ones that have arrived, by component. ``stored``
    holds, by CTA, a component for the bytes of its st.async: a wait makes them visible to the generic proxy only.
    """

    cta: int
    offset: int
    expected: int
    init: Record
    component: int = field(init=False)
    pending: int = field(init=False)
    bytes: int = 0
    phase: int = 0
    over: Clock | None = None
    over_far: Clock | None = None
    fenced: tuple[Rows, Rows] = (NO_TIMES, NO_TIMES)
    ends: dict[int, tuple[Clock, Clock | None, tuple[Rows, Rows]]] = field(default_factory=dict)
    now: Clock | None = None
    far: Clock | None = None
    stored: dict[int, int] = field(default_factory=dict)
    unseen: list[Arrival] = field(default_factory=list)
    waits: list[Wait] = field(default_factory=list)
    uses: dict[tuple[Components, int], Use] = field(default_factory=dict)
    coming: dict[int, Signal] = field(default_factory=dict)
    signalled: dict[int, Signal] = field(default_factory=dict)
    seen: dict[tuple[Components, int], Wait] = field(default_factory=dict)
    """The last wait of each thread that has seen the end of a phase."""
    arrivers: set[tuple[int, int]] = field(default_factory=set)
    """The CTA ranks and warps that have arrived in any phase."""
    last: tuple[Site, Agent] | None = None
    last_arrival: tuple[int, int] = (0, 0)
    """The execution of the instruction, as `MBarriers` numbers it, and the phase."""
    last_expect: tuple[Site, Agent] | None = None

    def __post_init__(self) -> None:
        self.component = self.init.space.new(self.cta)
        self.pending = self.expected

    def use(self, thread: Thread, site: Site, agent: Agent) -> None:
        self.uses[thread.clock.space, thread.own] = Use(thread.time, site, agent)

    def unknown_use(self, clock: Clock) -> Use | None:
        """Returns a use that is not known to have happened before, or None."""
        for (space, who), use in self.uses.items():
            if not clock.knows(space, who, use.time, EXECUTION):
                return use
        return None

    def unknown_signal(self, clock: Clock) -> Signal | None:
        """Returns a signal of an asynchronous operation that is not known to have arrived, or None."""
        for signal in (*self.coming.values(), *self.signalled.values()):
            if not any(clock.knows(self.init.space, who, time, EXECUTION) for who, time in signal.ends):
                return signal
        return None

    def signal(self, operation: int, phase: int) -> None:
        """Handles the signal of an operation, which has arrived in a phase."""
        coming = self.coming.pop(operation, None)
        if coming is not None:
            ends = (*coming.ends, (self.component, phase + 1))
            self.signalled[ends[0][0]] = coming._replace(ends=ends)

    def _gather(self, clock: Clock, rows: slice) -> None:
        if self.now is None:
            self.now = Clock(clock.space)
        self.now.join(clock, rows)

    def arrive(self, thread: Thread, semantics: str, scope: int) -> None:
        """Handles an arrival of a thread: threads that wait for the phase learn what the thread has done so far."""
        near = thread.cta == self.cta
        released = thread.release()
        self._fence(released.rows[BEFORE], SCOPES["cta" if near else "cluster"], scope)
        if semantics in RELEASES:
            self._pass_on(released, near, scope)
            return
        self._gather(released, UNFENCED)
        for clock, fence_scope in thread.fenced:
            self._pass_on(clock, near, min(fence_scope, scope))

    def _fence(self, tensor: Rows, needed: int, scope: int) -> None:
        """Lets relaxed waits follow tcgen05 operations, if the arrival has the scope that holds both threads."""
        if scope >= needed and tensor.any():
            near, far = self.fenced
            self.fenced = (near, larger(far, tensor)) if needed else (larger(near, tensor), far)

    def _pass_on(self, clock: Clock, near: bool, scope: int) -> None:
        self._gather(clock, ALL if near else NARROW)
        if not near and scope >= SCOPES["cluster"]:
            if self.far is None:
                self.far = Clock(clock.space)
            self.far.join(clock, WIDE)

    def follow(self, issued: Clock) -> None:
        """Handles the signal of an asynchronous operation.

        The signal follows the issue, and makes only the operation's own accesses visible.
        """
        self._gather(issued, COMPLETED)

    def commit(self, issued: Clock, tensor: Any, pipe: int, count: int) -> None:
        """Handles tcgen05.commit: the MMAs of its thread are over. It implies a tcgen05.fence::before_thread_sync."""
        self.follow(issued)
        assert self.now is not None
        publish(self.now, tensor)
        self.now.set(pipe, count)
        self._fence(including(larger(tensor, issued.rows[BEFORE]), pipe, count), SCOPES["cta"], SCOPES["cta"])

    def store(self, issued: Clock, cta: int, time: int) -> int:
        """Handles the bytes of a CTA's st.async, which have landed. Returns the component in which they count."""
        if cta not in self.stored:
            self.stored[cta] = issued.space.new(cta)
        self.copied(issued, self.stored[cta], time)
        return self.stored[cta]

    def copied(self, issued: Clock, who: int, count: int) -> None:
        """Handles generic-proxy copies that have landed: st.async, or those before a cp.async.mbarrier.arrive."""
        self.follow(issued)
        assert self.now is not None
        set_generic(self.now, who, count)

    def complete(self) -> list[Wait]:
        """Ends the phase. Returns the waits for the previous phase of agents that had no part in ending this one."""
        if self.over is None:
            self.over = Clock(self.init.space)
        if self.now is not None:
            self.over.join(self.now)
        if self.far is not None:
            if self.over_far is None:
                self.over_far = Clock(self.over.space)
            self.over_far.join(self.far, WIDE)
        self.over.set(self.component, self.phase + 1)
        far = self.over_far.copy() if self.over_far is not None else None
        self.ends[self.phase] = (self.over.copy(), far, self.fenced)
        self.ends.pop(self.phase - ENDS_KEPT, None)
        lapped = [w for w in self.waits if w.phase == self.phase - 1 and not self._knows(w)]
        self.waits = [w for w in self.waits if w.phase >= self.phase]
        self.now = self.far = None
        self.phase += 1
        self.pending = self.expected
        return lapped

    def _knows(self, wait: Wait) -> bool:
        return self.now is not None and self.now.knows(wait.thread.clock.space, wait.thread.own, wait.time, EXECUTION)

    def repeats(self, thread: Thread, phase: int, agent: Agent) -> Wait | None:
        """Returns the earlier wait of the thread that has seen the same phase end, if there is one."""
        seen = self.seen.get((thread.clock.space, thread.own))
        return seen if seen is not None and seen.phase == phase and seen.agent.lanes & agent.lanes else None

    def wait(self, thread: Thread, semantics: str, scope: int, phase: int, site: Site, agent: Agent) -> list[Wait]:
        """Handles a wait: the thread learns that a phase is over.

        Returns the wait if the next phase has ended without it.
        """
        self.unseen = [arrival for arrival in self.unseen if arrival.phase > phase]
        if self.over is not None and phase >= 0:
            over, over_far, fenced = self.ends.get(phase, (self.over, self.over_far, self.fenced))
            released = [(over, ALL, SCOPES["cta"])]
            if over_far is not None and scope >= SCOPES["cluster"]:
                released.append((over_far, WIDE, SCOPES["cluster"]))
            for clock, rows, needed in released:
                if semantics in ACQUIRES:
                    thread.acquire(clock, rows)
                else:
                    thread.acquire(clock, ONLY_EXECUTION)
                    thread.find(Found(clock.copy(), rows, needed, agent.lanes, site))
            for tensor in fenced[: scope + 1]:
                if len(tensor):
                    publish(thread.own_clock(), tensor)
        wait = Wait(phase, thread, thread.time, site, agent)
        self.seen[thread.clock.space, thread.own] = wait
        if phase + 1 < self.phase:
            return [wait]
        if not any(w.thread is thread and w.phase == phase for w in self.waits):
            self.waits.append(wait)
        return []
