"""mbarriers, named CTA barriers and the cluster barrier, and the wait lists.

Barriers know the waiters that they wake, but nothing of CTAs and warps. Sources: PTX ISA 9.7.13.15 (mbarrier), 9.7.13.1
(bar, barrier), 9.7.13.3 (barrier.cluster).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import reduce
from itertools import chain
from operator import or_
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from emugpu.emulator.errors import Fault
from emugpu.emulator.machine.lanes import WARP_SIZE

SUSPENDED = object()
"""A blocking operation returns this when its warp has to wait."""


@dataclass(slots=True, eq=False)
class Waiting:
    """Why a waiter is suspended: the barrier-like object, a sentence, and the site of the instruction."""

    on: Any
    what: str
    site: Any


class Waiter(Protocol):
    """An object that can be suspended."""

    waiting: Waiting | None


W = TypeVar("W", bound=Waiter)


class Wakeups(Generic[W]):
    """``ready`` holds waiters that can run, longest waiting first. ``changes`` counts what a polling loop might see."""

    def __init__(self) -> None:
        self.ready: deque[W] = deque()
        self.changes = 0

    def suspend(self, waiter: W, on: Any, what: str, site: Any) -> object:
        """Records why the waiter cannot go on. The caller keeps the waiter in its own list until it resumes it."""
        waiter.waiting = Waiting(on, what, site)
        return SUSPENDED

    def resume(self, waiter: W) -> None:
        """Lets a waiter run again. If it has been woken already, nothing changes."""
        if waiter.waiting is not None:
            waiter.waiting = None
            self.ready.append(waiter)

    def resume_all(self, waiters: Iterable[W]) -> None:
        for waiter in waiters:
            self.resume(waiter)

    def release(self, waiters: list[W]) -> None:
        """Lets all waiters of a list run again, and empties the list."""
        self.resume_all(waiters)
        waiters.clear()

    def start(self, waiter: W) -> None:
        """Lets a waiter run for the first time, or go on at another place."""
        waiter.waiting = None
        self.ready.append(waiter)


MAX_COUNT = (1 << 20) - 1
"""Largest arrival count and largest magnitude of the transaction count."""
MAX_COUNT_OF_V1 = (1 << 9) - 1
"""Largest arrival count of an mbarrier with ``.layout::v1`` (PTX ISA 9.7.15.16.3)."""


@dataclass(slots=True, eq=False)
class MBarrier:
    """One mbarrier object. A phase completes when no arrival and no byte is pending.

    ``on_completion`` is called with the barrier when a phase completes. ``used``: whether any thread has arrived or
    waited.
    """

    cta: int
    offset: int
    expected: int
    label: str
    wakeups: Wakeups[Any]
    on_completion: Callable[[MBarrier], None] | None
    layout: int = 0
    pending: int = field(init=False)
    bytes: int = 0
    phase: int = 0
    used: bool = False
    waiters: list[Any] = field(default_factory=list)
    last_arrival: str = "nobody"
    arrived: dict[str, int] = field(default_factory=dict)
    arrived_before: dict[str, int] = field(default_factory=dict)
    """Who has arrived how often in the current phase, and in the one before it."""

    def __post_init__(self) -> None:
        count = self.pending = self.expected
        if not 1 <= count <= self.most:
            raise Fault(f"mbarrier.init with count {count}; the count must be 1..{self.most}", "mbarrier-init")

    @property
    def most(self) -> int:
        """The largest arrival count that its layout can hold."""
        return (MAX_COUNT, MAX_COUNT_OF_V1)[self.layout]

    def passed(self, parity: int) -> bool:
        """Returns whether the phase of that parity has completed (PTX ISA 9.7.13.15.16)."""
        return (self.phase ^ parity) & 1 == 1

    def arrive(self, count: int, by: str, drop: bool = False) -> None:
        if count < 1 or count > self.pending:
            raise Fault(
                f"arrives {count} time(s) at {self}, whose phase {self.phase} awaits only {self.pending} more "
                f"of {self.expected} arrivals (last arrival: {self.last_arrival})",
                "mbarrier-count",
            )
        self.last_arrival = by
        self.arrived[by] = self.arrived.get(by, 0) + count
        self.pending -= count
        if drop:
            self.expected -= count
        self._changed()

    def expect_arrival(self) -> None:
        """Makes the current phase, and only this one, await one more arrival (cp.async.mbarrier.arrive)."""
        if self.pending == self.most:
            raise Fault(f"{self} awaits {self.most} arrivals already; there can be no more", "mbarrier-count")
        self.pending += 1
        self.used = True

    def expect_bytes(self, count: int) -> None:
        self._count_bytes(count)
        self._changed()

    def complete_bytes(self, count: int) -> None:
        """Counts bytes of an asynchronous copy that have landed.

        They may land before ``expect_bytes`` (negative count).
        """
        self._count_bytes(-count)
        self._changed()

    def expect_bytes_and_arrive(self, count: int, by: str, drop: bool = False) -> None:
        """Executes ``arrive.expect_tx`` as one atomic step, so that the phase cannot end between its two parts."""
        if self.pending < 1:
            raise Fault(f"arrives at {self}, whose phase {self.phase} awaits no more arrivals", "mbarrier-count")
        self._count_bytes(count)
        self.arrive(1, by, drop)

    def _count_bytes(self, count: int) -> None:
        self.bytes += count
        if abs(self.bytes) > MAX_COUNT:
            raise Fault(f"{self} has {self.bytes} bytes pending; the limit is +-{MAX_COUNT}", "mbarrier-bytes")

    def _changed(self) -> None:
        self.used = True
        self.wakeups.changes += 1
        if self.pending or self.bytes:
            return
        if self.on_completion is not None:
            self.on_completion(self)
        self.phase += 1
        self.pending = self.expected
        self.arrived_before, self.arrived = self.arrived, {}
        self.wakeups.release(self.waiters)

    def __str__(self) -> str:
        return f"{self.label} at shared 0x{self.offset:x} of CTA rank {self.cta}"

    def state(self) -> str:
        """Describes the phase, and what keeps it from completing."""
        pending = [f"{self.pending} of {self.expected} arrivals"] if self.pending else []
        pending += [f"{self.bytes} bytes"] if self.bytes else []
        return f"phase {self.phase} (parity {self.phase & 1}), pending: {', '.join(pending) or 'nothing'}"


class WarpPart(NamedTuple):
    """Lanes of a warp, as a mask, that have arrived at a barrier for ``needed`` threads.

    ``counted`` is called with the generation in which their warp counts.
    """

    lanes: int
    needed: int
    counted: Callable[[int], None]


@dataclass(slots=True, eq=False)
class CountingBarrier:
    """A barrier that counts arrivals of threads: a named CTA barrier, or the cluster barrier.

    If a barrier is for all threads rather than for a given number of them, threads that exit need not arrive. At a
    barrier for a given number of threads, lanes wait for the other lanes of their warp that have not exited, and then
    the warp counts as 32 threads, however many of its lanes are there (PTX ISA 9.7.13.1). ``gathering`` holds the lanes
    that have arrived so, and ``ahead`` what waits for the others, both by the index of the warp.
    """

    name: str
    number: int
    wakeups: Wakeups[Any]
    on_completion: Callable[[CountingBarrier], None] | None
    arrived: int = 0
    needed: int = 0
    everybody: bool = False
    generation: int = 0
    votes: dict[int, tuple[int, int]] = field(default_factory=dict)
    """The votes of bar.red by generation: the number of threads whose predicate is true, and of all threads."""
    waiters: list[Any] = field(default_factory=list)
    gathering: dict[int, list[WarpPart]] = field(default_factory=dict)
    ahead: dict[int, list[Any]] = field(default_factory=dict)

    def gather(self, warp: int, part: WarpPart, alive: int) -> None:
        """Adds lanes of a warp. It counts once all lanes in the mask ``alive``, which have not exited, are here."""
        parts = self.gathering.setdefault(warp, [])
        self._expect(part.needed, False, parts)
        parts.append(part)
        self._count_warp(warp, alive)

    def awaits(self, warp: int, lanes: int) -> bool:
        """Returns whether some of these lanes have arrived, and others of their warp have not."""
        return any(part.lanes & lanes for part in self.gathering.get(warp, ()))

    def excuse(self, warp: int, alive: int) -> None:
        """Counts a warp of which lanes have exited, if it now waits for no others."""
        if warp in self.gathering:
            self._count_warp(warp, alive)

    def _count_warp(self, warp: int, alive: int) -> None:
        parts = self.gathering[warp]
        for part in parts:
            self._expect(part.needed, everybody=False)
            alive &= ~part.lanes
        if alive:
            return
        del self.gathering[warp]
        for part in parts:
            part.counted(self.generation)
        self.arrive(WARP_SIZE, parts[0].needed, everybody=False)
        self.wakeups.resume_all(self.ahead.pop(warp, ()))

    def arrive(self, threads: int, needed: int, everybody: bool) -> int:
        """Counts arriving threads; ``needed`` of them complete the barrier. Returns the generation they belong to."""
        self._expect(needed, everybody, chain(*self.gathering.values()) if everybody else ())
        self.arrived += threads
        generation = self.generation
        self._test()
        return generation

    def _expect(self, needed: int, everybody: bool, waiting: Iterable[WarpPart] = ()) -> None:
        """Names the threads for which the barrier is. ``waiting``: lanes that have named some and do not count yet."""
        named = [(part.needed, False) for part in waiting]
        if self.arrived:
            named.append((self.needed, self.everybody))
        for before in named:
            if before != (needed, everybody):
                now, then = (
                    f"all {count} threads" if is_all else f"{count} threads"
                    for count, is_all in ((needed, everybody), before)
                )
                raise Fault(f"{self.name} is used with {now} while {then} were named before", "barrier")
        self.needed, self.everybody = needed, everybody

    def leave(self, threads_left: int, arrived: int) -> None:
        """Counts threads that have exited, ``arrived`` of them after they arrived here. ``threads_left`` remain."""
        if not self.arrived or not self.everybody:
            return
        self.arrived -= arrived
        self.needed = threads_left
        self._test()

    def _test(self) -> None:
        if self.arrived > self.needed:
            raise Fault(f"{self.name} got {self.arrived} arrivals and needs only {self.needed}", "barrier")
        self.wakeups.changes += 1
        if self.arrived < self.needed:
            return
        if self.on_completion is not None:
            self.on_completion(self)
        self.arrived = 0
        self.generation += 1
        self.wakeups.release(self.waiters)

    def __str__(self) -> str:
        return self.name

    def state(self) -> str:
        text = f"{self.arrived} of {self.needed} threads have arrived"
        for warp, parts in self.gathering.items():
            lanes = reduce(or_, (part.lanes for part in parts))
            text += (
                f"; lanes 0x{lanes:08x} of warp {warp} are here, but the warp counts only when its others come or exit"
            )
        return text
