"""An mbarrier as its users see it: what the ends of its phases tell."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from emugpu.check.clocks import (
    ALL,
    EXECUTION,
    NARROW,
    RELAXED,
    VISIBLE,
    Clock,
    Components,
    publish,
    set_generic,
)
from emugpu.check.history import ACQUIRES, RELEASES, SCOPES, Record
from emugpu.check.threads import Thread
from emugpu.emulator.machine.events import Agent, Site

LAST_ROW = slice(VISIBLE, VISIBLE + 1)


@dataclass
class Arrival:
    """An arrival in a phase whose end nobody of the barrier's CTA has seen. ``who``: a component, at a time."""

    phase: int
    who: int
    time: int
    site: Site
    agent: Agent
    commit: bool


class Use(NamedTuple):
    """A thread has arrived or waited."""

    time: int
    site: Site
    agent: Agent


@dataclass
class Wait:
    """Somebody has learned of the end of a phase."""

    phase: int
    thread: Thread
    time: int
    site: Site
    agent: Agent


@dataclass(slots=True, eq=False)
class TrackedMBarrier:
    """An mbarrier as its users see it. ``component``: its phases, as something that one can know to be over.

    ``over``: what the ends of its phases tell. ``now``: what has been told in the phase that is not over.
    ``far``, ``over_far``: what only a wait of cluster scope learns. ``uses``: the last one of each thread.
    ``stored``: by CTA, a component for what its st.async bring: a wait makes that visible to the generic proxy only.
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
    now: Clock | None = None
    far: Clock | None = None
    stored: dict[int, int] = field(default_factory=dict)
    unseen: list[Arrival] = field(default_factory=list)
    waits: list[Wait] = field(default_factory=list)
    uses: dict[tuple[Components, int], Use] = field(default_factory=dict)
    last: tuple[Site, Agent] | None = None
    last_arrival: tuple[int, int] = (0, 0)
    """The execution of the instruction, as `MBarriers` numbers them, and the phase."""
    last_expect: tuple[Site, Agent] | None = None

    def __post_init__(self) -> None:
        self.component = self.init.space.new(self.cta)
        self.pending = self.expected

    def use(self, thread: Thread, site: Site, agent: Agent) -> None:
        self.uses[thread.clock.space, thread.own] = Use(thread.time, site, agent)

    def unknown_use(self, clock: Clock) -> Use | None:
        """Finds a use that has not happened before, as far as a clock knows."""
        for (space, who), use in self.uses.items():
            if not clock.knows(space, who, use.time, EXECUTION):
                return use
        return None

    def _gather(self, clock: Clock, rows: slice) -> None:
        if self.now is None:
            self.now = Clock(clock.space)
        self.now.join(clock, rows)

    def arrive(self, thread: Thread, semantics: str, scope: int) -> None:
        """A thread arrives: what it has done so far is told to whoever waits."""
        near = thread.cta == self.cta
        told = thread.release()
        if semantics in RELEASES:
            self._tell(told, near, scope)
            return
        self._gather(told, RELAXED)
        if thread.fenced is not None:
            clock, fence_scope = thread.fenced
            self._tell(clock, near, fence_scope)

    def _tell(self, clock: Clock, near: bool, scope: int) -> None:
        self._gather(clock, ALL if near else NARROW)
        if not near and scope >= SCOPES["cluster"]:
            if self.far is None:
                self.far = Clock(clock.space)
            self.far.join(clock, LAST_ROW)

    def follow(self, issued: Clock) -> None:
        """An asynchronous operation signals: it came after its issue, and makes only its own accesses visible."""
        self._gather(issued, NARROW)

    def commit(self, issued: Clock, tensor: Any, pipe: int, count: int) -> None:
        """tcgen05.commit arrives: the MMAs of its thread are over. It stands for a fence::before_thread_sync, too."""
        self.follow(issued)
        assert self.now is not None
        publish(self.now, tensor)
        self.now.set(pipe, count)

    def store(self, issued: Clock, cta: int, time: int) -> int:
        """The bytes of a CTA's st.async have landed. Returns the component that they count in."""
        if cta not in self.stored:
            self.stored[cta] = issued.space.new(cta)
        self.copied(issued, self.stored[cta], time)
        return self.stored[cta]

    def copied(self, issued: Clock, who: int, count: int) -> None:
        """Copies through the generic proxy have landed: those in front of a cp.async.mbarrier.arrive, or st.async."""
        self.follow(issued)
        assert self.now is not None
        set_generic(self.now, who, count)

    def complete(self) -> list[Wait]:
        """The phase is over. Returns who has waited for the one before without a part in the end of this one."""
        if self.over is None:
            self.over = Clock(self.init.space)
        if self.now is not None:
            self.over.join(self.now)
        if self.far is not None:
            if self.over_far is None:
                self.over_far = Clock(self.over.space)
            self.over_far.join(self.far, LAST_ROW)
        self.over.set(self.component, self.phase + 1)
        lapped = [w for w in self.waits if w.phase == self.phase - 1 and not self._knows(w)]
        self.waits = [w for w in self.waits if w.phase >= self.phase]
        self.now = self.far = None
        self.phase += 1
        self.pending = self.expected
        return lapped

    def _knows(self, wait: Wait) -> bool:
        return self.now is not None and self.now.knows(wait.thread.clock.space, wait.thread.own, wait.time, 0)

    def wait(self, thread: Thread, semantics: str, scope: int, phase: int, site: Site, agent: Agent) -> list[Wait]:
        """A thread learns that a phase is over. Returns that wait if the next phase has ended without it."""
        self.unseen = [arrival for arrival in self.unseen if arrival.phase > phase]
        if self.over is not None and phase >= 0:
            told = [(self.over, ALL)]
            if self.over_far is not None and scope >= SCOPES["cluster"]:
                told.append((self.over_far, LAST_ROW))
            for clock, rows in told:
                if semantics in ACQUIRES:
                    thread.acquire(clock, rows)
                else:
                    thread.acquire(clock, RELAXED)
                    thread.pending.append((clock.copy(), rows, 0))
        wait = Wait(phase, thread, thread.time, site, agent)
        if phase + 1 < self.phase:
            return [wait]
        if not any(w.thread is thread and w.phase == phase for w in self.waits):
            self.waits.append(wait)
        return []
