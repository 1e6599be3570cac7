"""The main loop: it runs a grid and asks the schedule what happens next, until all clusters have ended.

After a number of blocks the loop looks whether a warp only polls. Which warps let others run first, and what runs when
nothing else can, is in `emugpu.emulator.machine.standby`; how long warps may do nothing but poll or wait, in
`emugpu.emulator.machine.patience`.
"""

from __future__ import annotations

import gc
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from emugpu.emulator.errors import OF_INSTRUCTIONS, Fault, LimitExceeded
from emugpu.emulator.machine import events, lifetime, reports
from emugpu.emulator.machine.barriers import MBarrier
from emugpu.emulator.machine.blas import one_thread
from emugpu.emulator.machine.block_engine import BlockEngine, Stop
from emugpu.emulator.machine.code import BLOCKED, EXIT
from emugpu.emulator.machine.counters import Counters, add_instructions
from emugpu.emulator.machine.divergence import arrive_at_join
from emugpu.emulator.machine.grid import Clusters
from emugpu.emulator.machine.patience import Patience
from emugpu.emulator.machine.schedule import START, FifoSchedule, RandomSchedule, Schedule
from emugpu.emulator.machine.spinning import Spinning, Watch, same
from emugpu.emulator.machine.standby import SPELL, Standby
from emugpu.emulator.machine.state import AsyncOperation, Cluster, Fragment, Grid
from emugpu.emulator.names import short_name

FIRST_LOOK = 64
"""A warp that has run this many blocks without waiting is checked for polling."""
WINDOW = 256
"""A polling loop is recognised if it comes round within this many blocks."""
SLICE = 16_384
"""After this many blocks a warp gives way to everything else that can happen."""
FEW_PLACES = 4
LIMIT_CHECK = 1024
"""Turns between two checks of the limits."""
NATIVE_TURNS = 8 * LIMIT_CHECK
"""The same when the native engine gives the turns."""
LONGEST_TURN = 100 + WINDOW
"""The most blocks that one turn of a warp has."""
MOST_STEPS = 1_000_000_000
"""The default limit: a launch ends after this many warp instructions."""
ALLOCATIONS = 50_000
"""Python's garbage collector runs after this many surviving allocations while a sink is attached."""
SILENCE = 30.0
"""If no cluster ends for this many seconds, a log line says where the run is. The interval doubles each time."""

_log = logging.getLogger(__name__)

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Limits:
    """How many warp instructions a run may take, for how many seconds it may go on without a cluster ending, and for
    how many in all; None means no limit.

    watch: a function that is called now and then; an exception that it raises ends the run.
    """

    steps: int = MOST_STEPS
    seconds: float | None = None
    all_seconds: float | None = None
    watch: Callable[[], None] | None = None


class Machine:
    """Runs one launch."""

    def __init__(
        self, grid: Grid, schedule: Schedule, clusters: Clusters, limits: Limits, engine: BlockEngine | None = None
    ) -> None:
        """engine: runs the blocks that it can run natively."""
        self.grid = grid
        self.engine = engine
        self.code = grid.code
        self.schedule = schedule
        self.clusters = clusters
        self.limits = limits
        self.wakeups = grid.wakeups
        self.block_counts = [0] * len(self.code.functions)
        self._in_order = isinstance(schedule, FifoSchedule)
        """Whether fragments run in the order in which they became ready."""
        self._random = schedule if isinstance(schedule, RandomSchedule) else None
        self.patience = Patience(grid, clusters)
        self.standby = Standby(grid, clusters, self.patience, Spinning(self), self._in_order, self._start_cluster)
        self._starting: Cluster | None = None
        """The cluster that has just started, of which nothing has run."""
        self.watched = False
        """Whether each turn is watched: it runs in Python, and has its usual length."""
        self._block_sizes = [sum(histogram.values()) for histogram in self.code.families]
        self._largest_block = max(self._block_sizes, default=1) or 1
        self._unchecked = 1
        """Blocks that may run before the step limit is checked again."""
        self._report_progress: Progress = lambda done, total: None
        self._started_at = time.monotonic()
        self._silent_since = self._started_at
        self._silence = SILENCE
        grid.next_granted = self._grant

    # ---- the run ----

    def run(self, progress: Progress | None = None) -> Counters:
        """Runs the grid to its end and returns the counters."""
        if progress:
            self._report_progress = progress
        if self.code.uses_launch_control:
            self._start_all()
        rare = _rare_collections() if self.grid.sink is not None else nullcontext()
        with np.errstate(all="ignore"), one_thread(), rare:
            try:
                self._loop()
            finally:
                if self.engine is not None:
                    self.engine.flush()
        self._check_steps()
        self._count()
        if self.engine is not None:
            self.engine.end()
        return self.grid.counters

    def _loop(self) -> None:
        schedule, ready, clusters, standby = self.schedule, self.wakeups.ready, self.clusters, self.standby
        self._check_steps()
        turns = 0  # since the last check of the limits
        while True:
            if turns >= min(LIMIT_CHECK, max(1, self._unchecked // LONGEST_TURN)) or (turns and standby.preempted):
                self._check_limits()
                turns = 0
            if ready and standby.spell >= SPELL and standby.turns_left() <= 0:
                standby.end_spell()
            if ready and self._in_order and (taken := self._take_turns(turns, ready[0])):
                turns += taken
                continue
            step = schedule.next(ready, bool(clusters.launched))
            if step is None:
                if not standby.carry_on():
                    break
            elif step is START:
                self._start_cluster()
            elif type(step) is Fragment:
                if self._random is not None and (taken := self._take_turns(turns, step)):
                    turns += taken
                    continue
                standby.had_turns(1)
                self.turn(step)
            else:
                self._complete(step)
                standby.progress += 1
            turns += 1

    def turn(self, fragment: Fragment) -> None:
        """Gives a fragment a turn."""
        changes = self.wakeups.changes
        self._starting = None
        if not self._run(fragment) or self.wakeups.changes != changes:
            self.standby.progress += 1

    def _error(self, error: Exception, fragment: Fragment) -> Exception:
        """Returns the error with which the run ends after a block function raised one."""
        placed = reports.located(self.code, error, fragment)
        stuck = self.patience.stuck_report()
        return stuck if stuck is not None and isinstance(placed, Fault) and placed.rule == "convergence" else placed

    def _count(self) -> None:
        counters = self.grid.counters
        families: Counter[str] = Counter()
        for histogram, times in zip(self.code.families, self._times(), strict=True):
            add_instructions(families, histogram, times)
        counters.instructions = dict(sorted(families.items()))
        counters.clusters = self.clusters.total
        counters.clusters_granted = self.clusters.granted

    # ---- clusters ----

    def _start_all(self) -> None:
        while self.clusters.can_start:
            self._start_cluster()

    def _start_cluster(self) -> None:
        grid = self.grid
        cluster = Cluster(grid, self.clusters.start())
        self.clusters.running.append(cluster)
        self._starting = cluster
        self.standby.event_from_outside()
        grid.counters.clusters_launched += 1
        grid.counters.ctas += len(cluster.ctas)
        self.standby.progress += 1
        for cta in cluster.ctas:
            if grid.sink is not None:
                grid.sink(events.CtaStarted(cluster.number, cta.rank, cta.index, len(cta.warps)))
            for warp in cta.warps:
                fragment = Fragment(warp, warp.alive, list(self.code.initial), 0, [])
                warp.fragments.append(fragment)
                self.wakeups.start(fragment)

    def _end_if_done(self, cluster: Cluster) -> None:
        """Ends a cluster if all its threads have exited and nothing of it is in flight."""
        if cluster.in_flight or cluster.living_threads:
            return
        lifetime.check_ended(self.code, cluster)
        self.clusters.end(cluster)
        self.standby.event_from_outside()
        if self.grid.sink is not None:
            self.grid.sink(events.ClusterEnded(cluster.number))
        else:
            for cta in cluster.ctas:
                self.grid.spare.give(cta.shared.data, cta.shared.valid)
                if self.code.uses_tensor_memory:
                    self.grid.spare.give(cta.tmem.data, cta.tmem.valid)
        if self.code.uses_launch_control:
            self._start_all()
        self._report()

    def _grant(self) -> int | None:
        if self.schedule.declines():
            return None
        number = self.clusters.grant()
        if number is not None:
            self._report()
        return number

    def _report(self) -> None:
        self._silent_since, self._silence = time.monotonic(), SILENCE
        self._report_progress(self.clusters.ended + self.clusters.granted, self.clusters.total)

    # ---- native turns ----

    def _take_turns(self, before: int, first: Fragment) -> int:
        """Lets the engine give turns, and finishes the turn that it could not. Returns the number of turns.

        before: turns since the last check of the limits. Together with the new ones they must not exceed the limit.
        first: the fragment whose turn it is.
        """
        starting, self._starting = self._starting, None
        if self.engine is None or not self.engine.may_begin(first):
            return 0
        most = min(NATIVE_TURNS, self._unchecked // LONGEST_TURN - before, self.standby.turns_left())
        if most <= 0:
            return 0
        window = 0 if self.patience.suspects else WINDOW
        about = most, FIRST_LOOK, window, SLICE
        if self._random is not None:
            can_start, woken = bool(self.clusters.launched), self.standby.woken
            stop = self.engine.take_random_turns(first, self.wakeups.ready, self._random, can_start, woken, *about)
        else:
            stop = self.engine.take_turns(self.wakeups.ready, self._starts_after(starting), *about)
        if stop is None:
            return 0
        if stop.starts:
            self.standby.had_turns(stop.turns - stop.since)
            self._take_starts(stop.starts)
            self.standby.had_turns(stop.since)
        else:
            self.standby.had_turns(max(stop.turns, 1))
        fragment = stop.fragment
        self.standby.progress += stop.turns
        if fragment is not None:
            self.standby.progress -= 1
            if not self._go_on(fragment, stop) or self.wakeups.changes != stop.changes:
                self.standby.progress += 1
        return max(stop.turns, 1)

    def _starts_after(self, starting: Cluster | None) -> int:
        """Returns how many clusters the engine may start by itself after one of which nothing has run.

        Only such clusters may start that are one CTA each, wait for nothing but the end of the one before, and keep
        nothing but registers and shared memory.
        """
        code = self.code
        keeps = self.grid.sink is not None or code.uses_launch_control or code.uses_tensor_memory or code.local_bytes
        if starting is None or keeps or self.clusters.size > 1 or not self.standby.is_empty:
            return 0
        return self.clusters.in_row if self.clusters.running == [starting] else 0

    def _take_starts(self, times: int) -> None:
        """Takes over that the engine has ended the only running cluster and started the next one, so many times."""
        clusters, counters = self.clusters, self.grid.counters
        (cluster,) = clusters.running
        for _ in range(times):
            clusters.end(cluster)
            cluster.number = clusters.start()
            clusters.running.append(cluster)
        cluster.restart_as(cluster.number)
        counters.clusters_launched += times
        counters.ctas += times
        counters.warps_finished += times * len(cluster.ctas[0].warps)
        self.standby.event_from_outside()
        self.standby.progress += times
        self._report()

    def _go_on(self, fragment: Fragment, stop: Stop) -> bool:
        """Finishes a turn that the engine began. Returns whether the fragment only polled."""
        assert self.engine is not None
        if stop.reason.name == "HAD_TURN":
            return self._had_turn(fragment)
        if stop.reason.name == "STANDS_BY":
            self._stand_by(fragment)
        elif stop.reason.name == "EXITS":
            self._stop(fragment, EXIT)
        elif stop.reason.name == "ARRIVES":
            self._stop(fragment, fragment.block)
        elif stop.reason.name in ("CANNOT_SPLIT", "SPLITS"):
            following = self.engine.diverge(fragment, fragment.block)
            self.block_counts[fragment.block] += 1
            self._stop(fragment, following)
        else:
            return self._run(fragment, stop)
        return False

    # ---- one turn of a warp ----

    def _run(self, fragment: Fragment, stop: Stop | None = None) -> bool:
        """Runs a fragment until it waits, splits, joins or exits, or its turn is over. Returns whether it only polled.

        stop: given if the turn began natively and goes on in the middle of a block.
        """
        if self.grid.sink is not None and fragment.streak == 0 and stop is None:
            self.grid.sink(events.Resumed(fragment.agent))
        if stop is None and (fragment.block < 0 or fragment.block == fragment.join_block):
            self._stop(fragment, fragment.block)
            return False
        functions, counts, registers = self.code.functions, self.block_counts, fragment.registers
        join_block = fragment.join_block
        block = fragment.block
        turn = stop.blocks if stop is not None else self._blocks_of_turn()
        woken = self.standby.woken
        if woken and fragment.agent in woken:
            woken.remove(fragment.agent)
            turn = 1
        budget = min(turn - (stop.ran if stop is not None else 0), self._unchecked)
        engine = None if self.watched else self.engine
        later = 0 if stop is not None else turn - budget
        try:
            while True:
                if engine is not None and (stop is not None or engine.enters[block]):
                    block, following, before = engine.run(fragment, block, budget, stop)
                    budget -= before
                    stop = None
                else:
                    following = functions[block](fragment, registers)
                if following >= 0:
                    counts[block] += 1
                    block = following
                    if block == join_block:
                        fragment.block = block
                        self._stop(fragment, block)
                        return False
                    budget -= 1
                    if budget == 0:
                        if later == 0:
                            break
                        self._check_steps()
                        budget = min(later, self._unchecked)
                        later -= budget
                else:
                    if following != BLOCKED:
                        counts[block] += 1
                    fragment.block = block
                    self._stop(fragment, following)
                    return False
        except OF_INSTRUCTIONS as error:
            raise self._error(error, fragment) from error
        fragment.block = block
        fragment.streak += turn
        return self._had_turn(fragment)

    def _blocks_of_turn(self) -> int:
        return FIRST_LOOK if self.watched else self.schedule.budget() or FIRST_LOOK

    def _stop(self, fragment: Fragment, following: int) -> None:
        """Handles a fragment that waits (BLOCKED), has split (SPLIT), exits (EXIT) or joins its siblings."""
        fragment.streak = 0
        if following == EXIT:
            site = self.code.sites[self.code.last[fragment.block]]
            try:
                lifetime.exit(fragment, site)
            except Fault as fault:
                raise reports.explain(self.code, fault, fragment, site) from fault
            self._end_if_done(fragment.cta.cluster)
        elif following >= 0:
            arrive_at_join(fragment)
        elif following == BLOCKED and self.grid.sink is not None and fragment.waiting is not None:
            waiting = fragment.waiting
            on = (waiting.on.offset, waiting.on.phase) if isinstance(waiting.on, MBarrier) else None
            self.grid.sink(events.Suspended(fragment.agent, waiting.site, waiting.what, on))
        if fragment not in fragment.warp.gathering:
            # Those that wait until the rest of their warp has exited look at what has become of it.
            self.wakeups.release(fragment.warp.gathering)

    def _had_turn(self, fragment: Fragment) -> bool:
        """Ends a turn of a fragment that could go on. Returns True, and puts the fragment aside, if it only polls.

        A fragment that has run for a long time lets everything else run first.
        """
        if fragment.streak < FIRST_LOOK:
            self.wakeups.start(fragment)
            return False
        changes, reads = self.wakeups.changes, self.grid.clock_reads
        watch = Watch(self.grid.sink)
        proven = self._polls(fragment, watch)
        if proven is None:
            return False
        suspect = self.wakeups.changes == changes and 0 < len(watch.polled) + watch.unnamed <= FEW_PLACES
        if proven or (suspect and self.grid.clock_reads == reads and self.patience.ends(fragment)):
            found = watch.found(self.grid.memory) if proven else None
            self.standby.add_poller(fragment, watch.describe(fragment), found)
            return True
        if suspect and self.grid.clock_reads == reads:
            self.standby.preempted.append(fragment)
            return True
        if self.grid.clock_reads != reads:
            self.patience.watch_clock(fragment, self.wakeups.changes != changes)
        else:
            self.patience.suspects.pop(fragment.agent, None)
        if fragment.streak >= SLICE or self.grid.clock_reads != reads:
            self._stand_by(fragment)
        else:
            self.wakeups.start(fragment)
        return False

    def _stand_by(self, fragment: Fragment) -> None:
        """Lets everything else run before a fragment that has run for long."""
        fragment.streak = FIRST_LOOK
        self.standby.preempted.append(fragment)

    def _polls(self, fragment: Fragment, watch: Watch) -> bool | None:
        """Runs one window and watches. Returns True if the loop came round with nothing changed, None if it stopped."""
        code, grid = self.code, self.grid
        if self._passes_natively(fragment, watch):
            return False
        grid.sink = watch
        clock_reads = grid.clock_reads
        saved_block, changes = -1, 0
        saved: list[Any] = []
        try:
            for n in range(1, WINDOW + 1):
                block = fragment.block
                if n & (n - 1) == 0:
                    saved_block, changes = block, self.wakeups.changes
                    saved = fragment.values(code.live_in[block])
                    watch.begin()
                following = code.functions[block](fragment, fragment.registers)
                if following != BLOCKED:
                    self.block_counts[block] += 1
                    if self._unchecked < LONGEST_TURN:
                        self._check_steps()
                if following >= 0:
                    fragment.block = following
                    fragment.streak += 1
                if following < 0 or following == fragment.join_block:
                    grid.sink = watch.sink
                    self._stop(fragment, following)
                    return None
                if following == saved_block and self.wakeups.changes == changes and grid.clock_reads == clock_reads:
                    now = fragment.values(code.live_in[saved_block])
                    if same(saved, now, fragment):
                        return True
        except OF_INSTRUCTIONS as error:
            raise self._error(error, fragment) from error
        finally:
            grid.sink = watch.sink
        return False

    def _passes_natively(self, fragment: Fragment, watch: Watch) -> bool:
        """Returns whether the native engine ran the window. It does not when a report may need the polled addresses."""
        if self.engine is None or self.watched or self._unchecked < LONGEST_TURN or self.patience.ends_soon(fragment):
            return False
        passed = self.engine.pass_window(fragment, WINDOW)
        if passed is None:
            return False
        fragment.block, watch.unnamed = passed
        fragment.streak += WINDOW
        return True

    # ---- asynchronous operations ----

    def _complete(self, operation: AsyncOperation) -> None:
        self.grid.completing = operation
        try:
            operation.run()
        except Fault as error:
            raise reports.explain(self.code, error, operation.fragment, operation.site, asynchronous=True) from error
        self.wakeups.changes += 1
        self.standby.event_from_outside()
        cluster = operation.fragment.cta.cluster
        cluster.in_flight -= 1
        if not cluster.in_flight:
            self._end_if_done(cluster)

    # ---- limits ----

    def _check_limits(self) -> None:
        limits = self.limits
        if limits.watch is not None:
            limits.watch()
        now = time.monotonic()
        if limits.seconds is not None and now - self._silent_since > limits.seconds:
            self._give_up(
                f"no cluster of it has ended for {limits.seconds:g} seconds, its limit (timeout); a persistent kernel, "
                "whose clusters all end late, may need a higher one"
            )
        if limits.all_seconds is not None and now - self._started_at > limits.all_seconds:
            self._give_up(f"the {limits.all_seconds:g} seconds that it had are over (limit)")
        steps = self._check_steps()
        if now - self._silent_since > self._silence:
            self._say_where(now, steps)

    def _times(self) -> list[int]:
        """Returns how often each block has run."""
        if self.engine is None:
            return self.block_counts
        return [n + more for n, more in zip(self.block_counts, self.engine.counts.tolist(), strict=True)]

    def _check_steps(self) -> int:
        """Returns the number of warp instructions so far. Raises LimitExceeded if there are too many."""
        steps = sum(n * size for n, size in zip(self._times(), self._block_sizes, strict=True))
        left = self.limits.steps - steps
        if left < 0:
            self._give_up(
                f"it has executed {steps:,} warp instructions; its limit (max_steps) is {self.limits.steps:,}, and "
                "--emulate max-steps=N sets another"
            )
        self._unchecked = max(1, left // self._largest_block)
        return steps

    def _say_where(self, now: float, steps: int) -> None:
        """Logs where the run is, so that a slow run differs from a hung one, and an endless loop can be seen."""
        self._silence *= 2
        running = self.clusters.living
        site = reports.first_site(self.code, running)
        at = f", at PTX line {site.line}: {site.text}" if site is not None else ""
        _log.warning(
            "kernel '%s' still runs after %.0f s: %s warp instructions, %d of %d clusters done%s; "
            "the limit is %s (max_steps)",
            self.code.kernel.name,
            now - self._started_at,
            f"{steps:,}",
            self.clusters.ended + self.clusters.granted,
            self.clusters.total,
            at,
            f"{self.limits.steps:,}",
        )

    def _give_up(self, why: str) -> None:
        running = self.clusters.living
        raise LimitExceeded(
            f"kernel '{short_name(self.code.kernel.name)}' was ended: {why}\n"
            + reports.where_all_warps_are(self.code, running)
        )


@contextmanager
def _rare_collections() -> Iterator[None]:
    """Makes garbage collection rare: a sink may keep most events, and the collector would scan them again and again."""
    first, *others = gc.get_threshold()
    if first:
        gc.set_threshold(max(first, ALLOCATIONS), *others)
    try:
        yield
    finally:
        gc.set_threshold(first, *others)
