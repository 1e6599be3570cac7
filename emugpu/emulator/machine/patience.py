"""How long warps may poll, watch a clock or wait at an mbarrier while nothing else happens.

A warp that reads the same few places again and again, but counts or computes meanwhile, may end by itself. It runs on
for a long time, but only while nothing else can happen, before it counts as polling. The emulated clock runs the faster
the longer warps do nothing but read it. Waits that need not last for ever end when nothing else can happen.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from emugpu.emulator.errors import Deadlock, Livelock
from emugpu.emulator.machine import lifetime, reports
from emugpu.emulator.machine.barriers import MBarrier
from emugpu.emulator.machine.divergence import go_on_alone
from emugpu.emulator.machine.events import Agent
from emugpu.emulator.machine.grid import Clusters
from emugpu.emulator.machine.spinning import same
from emugpu.emulator.machine.state import Fragment, Grid

CLOCK_ROUNDS = 1000
"""How often in a row warps that watch a clock may loop while nothing else happens."""
PATIENCE = 1000
"""For how many windows in a row a warp may read the same places while nothing else happens."""
PATIENCE_WITH_SIBLINGS = 16
"""The same limit for try_wait, which times out by itself, if other lanes of the warp could go on alone instead."""


@dataclass
class _Look:
    """A fruitless test of an mbarrier. changes: the machine's count then. times: tests in a row without a change."""

    block: int
    registers: list[Any]
    changes: int
    times: int = 1


class Patience:
    """What the warps of a launch have done in vain since something happened last."""

    def __init__(self, grid: Grid, clusters: Clusters) -> None:
        self._grid = grid
        self._code = grid.code
        self._clusters = clusters
        self._wakeups = grid.wakeups
        self.suspects: dict[Agent, tuple[int, int]] = {}
        """For each warp that may be polling or watches a clock: the count of changes, and its windows since."""
        self._clock_rounds = 0
        self._gave_up: dict[Agent, _Look] = {}
        """For each warp whose wait on an mbarrier timed out because nothing else could happen: its last test."""
        self._was_stuck: tuple[Deadlock, int] | None = None
        """The report of the moment when lanes had to leave their siblings behind, and the count of changes then. If
        nothing has changed since, leaving them did not help.
        """

    # ---- warps that run ----

    def are_suspects(self, fragments: Iterable[Fragment]) -> bool:
        return all(f.agent in self.suspects for f in fragments)

    def ends_soon(self, fragment: Fragment) -> bool:
        """Returns whether the next window of the fragment may be the last one."""
        _, rounds = self.suspects.get(fragment.agent, (-1, 0))
        return rounds >= PATIENCE - 1

    def ends(self, fragment: Fragment) -> bool:
        """Returns whether the fragment has read the same places for too long while nothing else happened."""
        since, rounds = self.suspects.get(fragment.agent, (-1, 0))
        rounds = rounds + 1 if since == self._wakeups.changes else 1
        self.suspects[fragment.agent] = (self._wakeups.changes, rounds)
        return rounds > PATIENCE

    def watch_clock(self, fragment: Fragment, changed: bool) -> None:
        """Advances the clock, the faster the longer warps do nothing but read it."""
        self.suspects.setdefault(fragment.agent, (self._wakeups.changes, 0))
        alone = not self._wakeups.ready and not changed
        self._clock_rounds = self._clock_rounds + 1 if alone else 0
        self._grid.clock += max(1000, self._grid.clock // 8)
        if self._clock_rounds > CLOCK_ROUNDS:
            site = self._code.sites[self._code.first[fragment.block]]
            what = f"waits for a time that the clock never reaches, PTX line {site.line}: {site.text}"
            raise Livelock(reports.livelock(self._code, [(fragment, what)], self._clusters))

    # ---- warps that wait ----

    def release(self) -> None:
        """Lets warps go on that need not wait for ever. If there are none, raises the report.

        If the finding phase-lapped is tolerated, waits are released whose phase ended so long ago that the next phase
        has ended too. If there are none, tests of an mbarrier time out. If there are none of these either, lanes that
        wait for their siblings go on without them.
        """
        fragments = self._clusters.fragments
        if self._grid.findings.tolerates("phase-lapped"):
            lapped = [f for f in fragments if f.waiting is not None and lifetime.release_if_lapped(f)]
            if lapped:
                return
        joins = list(
            {f.joins[-1]: None for f in fragments if f.waiting is None and f.joins and f in f.joins[-1].arrived}
        )
        if self.time_out(fragments, PATIENCE_WITH_SIBLINGS if joins else PATIENCE):
            return
        report = (
            Livelock(reports.livelock(self._code, [], self._clusters))
            if any(f.polls for f in fragments)
            else reports.deadlock(self._code, self._clusters)
        )
        report = self.stuck_report() or report
        if not any([go_on_alone(join) for join in joins]):
            raise report
        self._was_stuck = (report, self._wakeups.changes)

    def stuck_report(self) -> Deadlock | None:
        """Returns the report of the moment when lanes had to leave their siblings behind, if nothing has changed
        since.
        """
        if self._was_stuck is None or self._was_stuck[1] != self._wakeups.changes:
            return None
        return self._was_stuck[0]

    def time_out(self, fragments: Iterable[Fragment], patience: int | None = None) -> bool:
        """Lets tests of an mbarrier time out. Returns whether any did.

        The ISA leaves open after what time they do. If a warp comes back with the same registers and nothing has
        happened, timing out again would not help.
        """
        released = False
        for fragment in fragments:
            on = fragment.waiting.on if fragment.waiting is not None else None
            if isinstance(on, MBarrier) and self._may_give_up(fragment, patience or PATIENCE):
                fragment.timed_out = True
                if fragment in on.waiters:
                    on.waiters.remove(fragment)
                self._wakeups.resume(fragment)
                released = True
        return released

    def _may_give_up(self, fragment: Fragment, patience: int) -> bool:
        registers = fragment.values(self._code.live_in[fragment.block])
        now = _Look(fragment.block, registers, self._wakeups.changes)
        then = self._gave_up.get(fragment.agent)
        if then is not None and then.changes == now.changes:
            now.times = then.times + 1
            alike = then.block == now.block and same(then.registers, now.registers, fragment)
            if alike or now.times > (PATIENCE if fragment.polls else patience):
                return False
        self._gave_up[fragment.agent] = now
        return True
