"""The order in which warps run, asynchronous operations complete, and clusters start.

``FifoSchedule`` is the fast one: warps run in turn until they block. Asynchronous operations complete in issue order,
one whenever no warp can run. ``RandomSchedule`` looks for trouble: it draws random priorities for warps and for classes
of operations (after Burckhardt et al., "A randomized scheduler with probabilistic guarantees of finding bugs", ASPLOS
2010), with pre-emption, long delays, and early and late completion. The same seed gives the same run.

Cluster launch control may decline a request although clusters are left. This was seen on a B300 that two processes
share (QuACK, 2026). ``DecliningSchedule`` declines every other request, the random schedule about one in ten.

CTAs start in the order of their numbers, except under ``ReversedSchedule``: CUDA promises no order.
"""

from __future__ import annotations

import itertools
import random
from collections import deque
from heapq import heappop, heappush
from typing import Any

from emugpu.emulator.machine.state import AsyncOperation, Fragment

START = object()
"""Returned by `next`: the next step is to start a cluster."""
CANDIDATES = 12
"""The random schedule takes the warp with the highest priority among at most this many ready ones."""


class QuietSchedule:
    """What schedules that provoke nothing have in common."""

    splits_multicast = False
    reverses = False

    def early(self) -> bool:
        return True

    def spurious_failure(self) -> bool:
        return False

    def declines(self) -> bool:
        """Returns whether cluster launch control declines the next request, even if clusters are left."""
        return False

    def budget(self) -> int:
        """Returns how many blocks a warp may run before others do; 0 means no limit."""
        return 0


class FifoSchedule(QuietSchedule):
    """Runs everything in issue order. A cluster starts only when no other can go on without it."""

    def __init__(self) -> None:
        self._pending: deque[AsyncOperation] = deque()

    def submit(self, operation: AsyncOperation) -> None:
        self._pending.append(operation)

    def next(self, ready: deque[Fragment], can_start: bool) -> Any:
        """Returns the next step: a fragment taken from ``ready``, an operation, START, or None if nothing is left."""
        if ready:
            return ready.popleft()
        if self._pending:
            return self._pending.popleft()
        return None


class DecliningSchedule(FifoSchedule):
    """A FifoSchedule in which cluster launch control declines every other request, starting with the first."""

    def __init__(self) -> None:
        super().__init__()
        self._declined = False

    def declines(self) -> bool:
        self._declined = not self._declined
        return self._declined


class ReversedSchedule(FifoSchedule):
    """A FifoSchedule under which CTAs start in the reverse order of their numbers."""

    reverses = True


class RandomSchedule:
    """A seeded random order that tries to provoke errors."""

    splits_multicast = True
    reverses = False

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self._pipes: dict[Any, deque[AsyncOperation]] = {}
        self._heads: list[tuple[float, int, Any]] = []
        """A heap of the pipes, ordered by their first operation: highest priority first, then the oldest pipe."""
        self._opened = itertools.count()
        self._warp_priority: dict[tuple[int, int, int], float] = {}
        self._class_priority: dict[str, float] = {}
        self._spread = self.rng.choice((0.0, 0.3, 1.0, 3.0))
        self._start_share = self.rng.choice((0.0, 0.1, 1.0))
        self._surprise = self.rng.choice((0.0, 0.1, 0.5))
        """The probability that a random warp runs instead of the one with the highest priority."""
        self._async_share = 0.5
        self._steps_to_change = 0

    def submit(self, operation: AsyncOperation) -> None:
        kind = operation.kind
        if kind not in self._class_priority:
            self._class_priority[kind] = self.rng.random()
        operation.priority = self._class_priority[kind] + self._spread * self.rng.random()
        key = id(operation) if operation.pipe is None else operation.pipe
        if key in self._pipes:
            self._pipes[key].append(operation)
        else:
            self._pipes[key] = deque([operation])
            heappush(self._heads, (-operation.priority, next(self._opened), key))

    def early(self) -> bool:
        return self.rng.random() < 0.5

    def spurious_failure(self) -> bool:
        return self.rng.random() < 0.1

    def declines(self) -> bool:
        return self.spurious_failure()

    def budget(self) -> int:
        return self.rng.choice((1, 3, 10, 100))

    def next(self, ready: deque[Fragment], can_start: bool) -> Any:
        rng, pipes = self.rng, self._pipes
        if can_start and rng.random() < self._start_share:
            return START
        if not ready and not pipes:
            return None
        self._steps_to_change -= 1
        if self._steps_to_change <= 0:
            self._change()
        if ready and (not pipes or rng.random() >= self._async_share):
            return self._best_of(ready)
        _, opened, key = heappop(self._heads)
        pipe = pipes[key]
        operation = pipe.popleft()
        if pipe:
            heappush(self._heads, (-pipe[0].priority, opened, key))
        else:
            del pipes[key]
        return operation

    def _best_of(self, ready: deque[Fragment]) -> Fragment:
        if len(ready) > CANDIDATES:
            ready.rotate(self.rng.randrange(len(ready)))
        candidates = [ready.popleft() for _ in range(min(len(ready), CANDIDATES))]
        surprise = len(candidates) > 1 and self.rng.random() < self._surprise
        best = self.rng.choice(candidates) if surprise else max(candidates, key=self._priority_of)
        candidates.remove(best)
        ready.extendleft(reversed(candidates))
        return best

    def _priority_of(self, fragment: Fragment) -> float:
        key = (fragment.cta.cluster.number, fragment.cta.rank, fragment.warp.index)
        priority = self._warp_priority.get(key)
        if priority is None:
            priority = self._warp_priority[key] = self.rng.random()
        return priority

    def _change(self) -> None:
        """Draws new shares and priorities at a change point."""
        rng = self.rng
        self._steps_to_change = rng.choice((5, 20, 100, 400))
        self._async_share = rng.choice((0.0, 0.02, 0.5, 0.98, 1.0))
        for key in self._warp_priority:
            if rng.random() < 0.5:
                self._warp_priority[key] = rng.random()
        for kind in self._class_priority:
            if rng.random() < 0.5:
                self._class_priority[kind] = rng.random()


Schedule = FifoSchedule | RandomSchedule


def make_schedule(name: str, seed: int) -> Schedule:
    """Returns the schedule with that name. Only a random one uses the seed."""
    if name == "fifo":
        return FifoSchedule()
    if name == "declining":
        return DecliningSchedule()
    if name == "reversed":
        return ReversedSchedule()
    if name == "random":
        return RandomSchedule(seed)
    raise ValueError(f"schedule '{name}': must be fifo, random, declining or reversed")
