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
from collections import deque
from heapq import heappop, heappush
from typing import Any
from zlib import crc32

from emugpu.emulator.machine.draws import Draws, priority, share
from emugpu.emulator.machine.state import AsyncOperation, Fragment

START = object()
"""Returned by `next`: the next step is to start a cluster."""
CANDIDATES = 12
"""The random schedule takes the warp with the highest priority among at most this many ready ones."""
BUDGETS = (1, 3, 10, 100)
"""The blocks that a turn may have under it, all equally likely; the same holds for the next two."""
STEPS_TO_CHANGE = (5, 20, 100, 400)
OPERATIONS_SHARES = tuple(map(share, (0.0, 0.02, 0.5, 0.98, 1.0)))
"""The probabilities that an operation completes although a warp could run."""
_OF_CLASS = 1 << 62
"""Tells the numbers of classes of operations from those of warps."""


class QuietSchedule:
    """What schedules that provoke nothing have in common."""

    splits_multicast = False
    wakes_early = False
    reverses = False

    def early(self) -> bool:
        return True

    def spurious_failure(self, is_first: bool = False) -> bool:
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
    """A seeded random order that tries to provoke errors.

    What the interpreter needs to continue the order (`NativeEngine.take_random_turns`) is public, with probabilities as
    `share` gives them.
    """

    splits_multicast = True
    wakes_early = True
    reverses = False

    def __init__(self, seed: int) -> None:
        self.draws = Draws(seed)
        self._pipes: dict[Any, deque[AsyncOperation]] = {}
        self._heads: list[tuple[float, int, Any]] = []
        """A heap of the pipes, ordered by their first operation: highest priority first, then the oldest pipe."""
        self._opened = itertools.count()
        self._class_roots: dict[str, int] = {}
        self._priorities: dict[int, int] = {}
        """The priorities of this epoch, by their roots, as far as they are known."""
        self._spread = self.draws.one_of((0.0, 0.3, 1.0, 3.0))
        self.start_share = share(self.draws.one_of((0.0, 0.1, 1.0)))
        self.surprise = share(self.draws.one_of((0.0, 0.1, 0.5)))
        """The probability that a random warp runs instead of the one with the highest priority."""
        self.operations_share = share(0.5)
        self.steps_to_change = 0
        self.epoch = 0
        """The number of changes so far."""

    @property
    def has_operations(self) -> bool:
        return bool(self._pipes)

    def submit(self, operation: AsyncOperation) -> None:
        of_class = self._priority(self._class_root(operation.kind)) / 2**63
        operation.priority = of_class + self._spread * self.draws.draw() / 2**32
        key = id(operation) if operation.pipe is None else operation.pipe
        if key in self._pipes:
            self._pipes[key].append(operation)
        else:
            self._pipes[key] = deque([operation])
            heappush(self._heads, (-operation.priority, next(self._opened), key))

    def early(self) -> bool:
        return self.draws.draw() < share(0.5)

    def spurious_failure(self, is_first: bool = False) -> bool:
        return self.draws.draw() < share(0.9 if is_first else 0.1)

    def declines(self) -> bool:
        return self.spurious_failure()

    def budget(self) -> int:
        return self.draws.one_of(BUDGETS)

    def next(self, ready: deque[Fragment], can_start: bool) -> Any:
        draws, pipes = self.draws, self._pipes
        if can_start and draws.draw() < self.start_share:
            return START
        if not ready and not pipes:
            return None
        self.steps_to_change -= 1
        if self.steps_to_change <= 0:
            self._change()
        if ready and (not pipes or draws.draw() >= self.operations_share):
            return self._take_best(ready)
        _, opened, key = heappop(self._heads)
        pipe = pipes[key]
        operation = pipe.popleft()
        if pipe:
            heappush(self._heads, (-pipe[0].priority, opened, key))
        else:
            del pipes[key]
        return operation

    def _take_best(self, ready: deque[Fragment]) -> Fragment:
        if len(ready) > CANDIDATES:
            ready.rotate(self.draws.below(len(ready)))
        candidates, at = min(len(ready), CANDIDATES), 0
        if candidates > 1:
            if self.draws.draw() < self.surprise:
                at = self.draws.below(candidates)
            else:
                at = max(range(candidates), key=lambda n: self._priority(self.root(ready[n])))
        best = ready[at]
        del ready[at]
        return best

    def root(self, fragment: Fragment) -> int:
        """Returns the root of the priorities of a fragment's warp."""
        warp = fragment.warp
        if warp.root < 0:
            number = fragment.cta.cluster.number << 16 | fragment.cta.rank << 8 | warp.index
            warp.root = self.draws.root(number)
        return warp.root

    def _class_root(self, kind: str) -> int:
        root = self._class_roots.get(kind)
        if root is None:
            root = self._class_roots[kind] = self.draws.root(_OF_CLASS | crc32(kind.encode()))
        return root

    def _priority(self, root: int) -> int:
        found = self._priorities.get(root)
        if found is None:
            found = self._priorities[root] = priority(root, self.epoch)
        return found

    def _change(self) -> None:
        """Draws new shares, and begins an epoch, at a change point."""
        self.steps_to_change = self.draws.one_of(STEPS_TO_CHANGE)
        self.operations_share = self.draws.one_of(OPERATIONS_SHARES)
        self.go_to_epoch(self.epoch + 1)

    def go_to_epoch(self, epoch: int) -> None:
        if epoch != self.epoch:
            self.epoch = epoch
            self._priorities.clear()


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
