"""The warps that let everything else run first, and what runs when nothing is ready or in flight.

The machine detects a warp that only polls. While such a warp runs alone nothing else changes, so if it comes back to a
block with the same registers and has changed nothing itself, it would go on for ever. It stands by until something has
happened; if its loop does nothing but read global memory, until something else is there. A warp that has run for long
without waiting stands by until nothing else can run. It may have written the same again and again, so all that poll
look before it goes on.

Warps that go round a loop with barriers inside always find one of them ready. So after a spell, a number of turns in
which no event has come from outside, all ready warps stand by until everything else has had its turn: asynchronous
operations, warps that stood by already, clusters that have not started (`emugpu.emulator.machine.spinning`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from emugpu.emulator.errors import Livelock
from emugpu.emulator.machine import reports
from emugpu.emulator.machine.events import Agent
from emugpu.emulator.machine.grid import Clusters
from emugpu.emulator.machine.patience import Patience
from emugpu.emulator.machine.spinning import FEWEST_LOOKS, Spinning
from emugpu.emulator.machine.state import Fragment, Grid

SPELL = 1024
"""After this many turns for each running cluster without an event from outside (an operation completes, a cluster
starts or ends), all ready warps stand by.
"""
LONGEST_SPELL = 64
"""The same, in spells, if operations complete meanwhile."""


@dataclass
class _Poller:
    """A fragment that only polls.

    seen: the progress at that time. what: the accesses of its loop. found: the places that it reads, and what it found
    there; None if more than these decide whether it goes on.
    """

    fragment: Fragment
    seen: int
    what: str
    found: list[tuple[NDArray[np.uint8], bytes]] | None

    def finds_another(self) -> bool:
        return self.found is None or any(place.tobytes() != then for place, then in self.found)


class Standby:
    """The warps of a launch that stand by."""

    def __init__(
        self,
        grid: Grid,
        clusters: Clusters,
        patience: Patience,
        spinning: Spinning,
        in_order: bool,
        start_cluster: Callable[[], None],
    ) -> None:
        """in_order: whether fragments run in the order in which they became ready."""
        self._code = grid.code
        self._wakeups = grid.wakeups
        self._clusters = clusters
        self._patience = patience
        self._spinning = spinning
        self._in_order = in_order
        self._start_cluster = start_cluster
        self.progress = 0
        """A counter of everything that happens except fruitless polling."""
        self.pollers: list[_Poller] = []
        self.preempted: deque[Fragment] = deque()
        """Fragments that have run for long without waiting; they go on when nothing else can."""
        self._ready: deque[Fragment] = deque()
        """Fragments that were ready at the end of a spell."""
        self.woken: set[Agent] = set()
        """Fragments that polled and are about to look once more, if they do not run in order."""
        self.spell = 0
        """Turns since the last time that the ready warps stood by."""
        self._quiet_turns = 0
        """Turns since the last event from outside."""
        self._starts = 1
        """The number of clusters that start the next time that the ready warps come back."""

    # ---- who stands by ----

    def had_turns(self, turns: int) -> None:
        """Counts turns of warps."""
        self._quiet_turns += turns
        self.spell += turns

    def event_from_outside(self) -> None:
        """Handles the completion of an operation, or the start or the end of a cluster."""
        self._quiet_turns = 0

    def turns_left(self) -> int:
        """Returns how many turns the spell still has."""
        spell = SPELL * max(1, len(self._clusters.running))
        return min(spell - self._quiet_turns, LONGEST_SPELL * spell - self.spell)

    def end_spell(self) -> None:
        self._ready.extend(self._wakeups.ready)
        self._wakeups.ready.clear()
        self._quiet_turns = self.spell = 0

    def add_poller(
        self, fragment: Fragment, what: str, found: list[tuple[NDArray[np.uint8], bytes]] | None = None
    ) -> None:
        """Handles a fragment that only polls. ``what`` describes the accesses of its loop, ``found`` is what they
        found, if nothing else decides whether it goes on.
        """
        self.pollers.append(_Poller(fragment, self.progress, what, found))

    @property
    def is_empty(self) -> bool:
        """Whether no warp stands by."""
        return not (self.pollers or self.preempted or self._ready)

    # ---- who comes back ----

    def carry_on(self) -> bool:
        """Nothing is ready or in flight: finds something to run, or raises the error. Returns False if all is done."""
        if self._ready:
            self._all_come_back()
            return True
        idle = bool(self._code.between_clusters) or self._patience.are_suspects(self.preempted)
        if self._clusters.can_start and idle and (self.pollers or self.preempted or not self._clusters.running):
            self._start_cluster()
            return True
        awake: list[_Poller] = []
        asleep: list[_Poller] = []
        for p in self.pollers:
            looks = p.seen != self.progress and (self.preempted or p.finds_another())
            (awake if looks else asleep).append(p)
        if awake:
            self.pollers = asleep
            self._wake(awake)
            return True
        if self.preempted:
            self._wakeups.start(self.preempted.popleft())
            return True
        running = self._clusters.living
        if self.pollers:
            polls = [(p.fragment, p.what) for p in self.pollers]
            raise Livelock(reports.livelock(self._code, polls, self._clusters))
        if running:
            self._patience.release()
        return bool(running)

    def _all_come_back(self) -> None:
        """Lets everything else run, and then the fragments that were ready at the end of the spell.

        Twice as many clusters start each time. If CTAs do not seem to depend on one another, they start only when
        those that run are found to spin.
        """
        clusters, start = self._clusters, self._wakeups.start
        ready, self._ready = self._ready, deque()
        alone = self._patience.are_suspects(self.preempted)
        looks = self._spinning.look(ready) if alone else 0
        if clusters.can_start and (self._code.between_clusters or looks >= FEWEST_LOOKS):
            alone = False
            for _ in range(min(self._starts, len(clusters.launched))):
                self._start_cluster()
            self._starts *= 2
        if alone:
            self._patience.time_out(clusters.fragments)
        else:
            self._spinning.forget()
        self._wake(self.pollers)
        self.pollers.clear()
        for fragment in (*self.preempted, *ready):
            start(fragment)
        self.preempted.clear()
        self._spinning.watch()

    def _wake(self, pollers: Iterable[_Poller]) -> None:
        for poller in pollers:
            self._wakeups.start(poller.fragment)
            if not self._in_order:
                self.woken.add(poller.fragment.agent)
