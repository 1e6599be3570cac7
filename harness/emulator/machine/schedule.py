"""In which order warps run and asynchronous operations complete.

``FifoSchedule`` is the fast one: warps run until they block, in turn; asynchronous operations complete in the order
they were issued, one whenever no warp can run. ``RandomSchedule`` looks for trouble: random priorities over warps and
over classes of operations (after Burckhardt et al., "A randomized scheduler with probabilistic guarantees of finding
bugs", ASPLOS 2010), with pre-emption, long delays, early and late completion. The same seed gives the same run.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .fragment import Fragment
    from .machine import Machine
    from .observer import Operation


class AsyncOperation:
    """Something under way. ``pipe``: operations of one pipe complete in issue order; None means unordered."""

    __slots__ = ("kind", "operation", "origin", "pipe", "priority", "run")

    def __init__(
        self,
        kind: str,
        run: Callable[[], None],
        origin: tuple[Fragment, int],
        pipe: Any = None,
        operation: Operation | None = None,
    ):
        self.kind = kind
        self.run = run
        self.origin = origin
        self.pipe = pipe
        self.operation = operation
        self.priority = 0.0


class FifoSchedule:
    """Everything in the order it was issued."""

    splits_multicast = False

    def __init__(self) -> None:
        self.pending: deque[AsyncOperation] = deque()

    def submit(self, operation: AsyncOperation) -> None:
        self.pending.append(operation)

    def early(self) -> bool:
        """Whether an asynchronous register load takes its value at issue rather than at the wait."""
        return True

    def spurious_failure(self) -> bool:
        """Whether a try_wait whose phase is incomplete returns false instead of suspending."""
        return False

    def drive(self, machine: Machine) -> None:
        """Run until nothing can run any more."""
        ready, pending = machine.ready, self.pending
        while True:
            while ready:
                machine.run_fragment(ready.popleft())
            if pending:
                machine.complete(pending.popleft())
            elif not machine.release_pollers():
                return


class RandomSchedule:
    """Seeded adversarial order."""

    splits_multicast = True

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.pipes: dict[Any, deque[AsyncOperation]] = {}
        self.warp_priority: dict[Any, float] = {}
        self.class_priority: dict[str, float] = {}
        self.spread = self.random.choice((0.0, 0.3, 1.0, 3.0))
        self.async_share = 0.5
        self.steps_to_change = 0

    def submit(self, operation: AsyncOperation) -> None:
        kind = operation.kind
        if kind not in self.class_priority:
            self.class_priority[kind] = self.random.random()
        operation.priority = self.class_priority[kind] + self.spread * self.random.random()
        key = id(operation) if operation.pipe is None else operation.pipe
        self.pipes.setdefault(key, deque()).append(operation)

    def early(self) -> bool:
        return self.random.random() < 0.5

    def spurious_failure(self) -> bool:
        return self.random.random() < 0.1

    def drive(self, machine: Machine) -> None:
        """Run until nothing can run any more."""
        rng, ready = self.random, machine.ready
        while True:
            if not ready and not self.pipes:
                if machine.release_pollers():
                    continue
                return
            self.steps_to_change -= 1
            if self.steps_to_change <= 0:
                self._change()
            if ready and (not self.pipes or rng.random() >= self.async_share):
                fragment = max(ready, key=self._warp_priority)
                ready.remove(fragment)
                machine.run_fragment(fragment, budget=rng.choice((1, 3, 10, 100)))
            else:
                key = max(self.pipes, key=lambda k: self.pipes[k][0].priority)
                pipe = self.pipes[key]
                operation = pipe.popleft()
                if not pipe:
                    del self.pipes[key]
                machine.complete(operation)

    def _warp_priority(self, fragment: Fragment) -> float:
        priority = self.warp_priority.get(fragment.warp)
        if priority is None:
            priority = self.warp_priority[fragment.warp] = self.random.random()
        return priority

    def _change(self) -> None:
        """A change point: other shares, other priorities."""
        rng = self.random
        self.steps_to_change = rng.choice((5, 20, 100, 400))
        self.async_share = rng.choice((0.0, 0.02, 0.5, 0.98, 1.0))
        for priorities in (self.warp_priority, self.class_priority):
            for key in priorities:
                if rng.random() < 0.5:
                    priorities[key] = rng.random()


def make_schedule(name: str, seed: int) -> FifoSchedule | RandomSchedule:
    """``fifo`` or ``random``."""
    if name == "fifo":
        return FifoSchedule()
    if name == "random":
        return RandomSchedule(seed)
    raise ValueError(f"schedule '{name}': must be fifo or random")
