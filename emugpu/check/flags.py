"""Flags in global memory: which release or which acquire two accesses of different CTAs lack.

A thread hands data to another CTA by a strong write of a flag, which the other CTA reads by a strong read. The write
has to release what came before it, and the read has to acquire it (PTX ISA 8.8, 8.9.4); fences before the write and
after the read do that, too. `Flags` remembers who wrote and who read, and looks only after a race has been found.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from emugpu.check.clocks import ORDER, Clock, Components
from emugpu.check.record import ACQUIRES, SCOPES, WEAK, Record, needed_scope, scope_of
from emugpu.check.threads import Moment, Thread
from emugpu.emulator.machine.events import Access, Agent, Site

MOST = 1 << 14
"""At most so many instructions that write flags are remembered, and as many that read them."""
Lack = tuple[str, str]
"""What is missing between two accesses, and the fix."""
Number = tuple[int, int]
"""The part of a launch's trace, and the entry in it, of an access."""
ALL: Number = (1 << 62, 0)
"""Comes after every access."""
Addresses = int | NDArray[np.integer]


class FlagWrite(NamedTuple):
    """A strong write.

    ``clock`` is what its thread knew, ``released`` what the write has released, each part with its scope.
    """

    where: Addresses
    agent: Agent
    clock: Clock
    released: Sequence[tuple[Clock, int]]
    site: Site


class FlagRead(NamedTuple):
    """A strong read, after the first ``before`` writes. ``scope`` is that of its acquire, or WEAK."""

    where: Addresses
    space: Components
    who: int
    time: int
    scope: int
    site: Site
    before: int


class Flags:
    """The strong accesses of a launch to global memory, and the last fence of each thread and scope."""

    def __init__(self) -> None:
        self._writes: list[FlagWrite] = []
        self._reads: dict[tuple[Components, int, int, int], FlagRead] = {}
        self._fences: dict[tuple[Components, int], dict[int, int]] = {}
        """By component and scope: the time."""
        self._later: deque[tuple[Number, Callable[[], Iterable[tuple[Access, Moment]]]]] = deque()
        self._room = MOST
        self.reached = ALL
        """The access that is checked now, if later ones are known already."""

    def later(self, number: Number, lanes: int, make: Callable[[], Iterable[tuple[Access, Moment]]]) -> None:
        """Remembers a strong access of some lanes that releases nothing. ``make`` makes its events, each with the
        moment of its thread; they become reads and writes of flags when these are needed.
        """
        self._room -= lanes
        self._later.append((number, make))

    @property
    def has_room(self) -> bool:
        """Whether more of these accesses are remembered."""
        return self._room > 0

    def reach(self, number: Number) -> None:
        """Says which access is checked now: later ones are not flags for it."""
        self.reached = max(self.reached, number)

    def _take_later(self) -> None:
        while self._later and self._later[0][0] <= self.reached:
            for event, moment in self._later.popleft()[1]():
                if event.mode != "write":
                    by = moment.space, moment.who, moment.time
                    self._read(event.where, by, scope_of(event.site), event.site)
                if event.mode != "read":
                    self._wrote(FlagWrite(event.where, event.agent, moment.clock, (), event.site))

    def wrote(self, write: FlagWrite) -> None:
        self._take_later()
        self._wrote(write)

    def _wrote(self, write: FlagWrite) -> None:
        if len(self._writes) < MOST:
            self._writes.append(write)

    def read(self, where: Addresses, by: tuple[Components, int, int], scope: int, site: Site) -> None:
        """Remembers a strong read by a component at a time."""
        self._take_later()
        self._read(where, by, scope, site)

    def _read(self, where: Addresses, by: tuple[Components, int, int], scope: int, site: Site) -> None:
        key = (*by[:2], site.index, where if isinstance(where, int) else int(where[0]))
        if self._writes and (len(self._reads) < MOST or key in self._reads):
            acquired = scope if site.semantics in ACQUIRES else WEAK
            read = FlagRead(where, *by, acquired, site, len(self._writes))
            self._reads[key] = read

    def fenced(self, thread: Thread, scope: int) -> None:
        self._fences.setdefault((thread.clock.space, thread.own), {})[scope] = thread.time

    def between(self, first: Record, second: Record, clock: Clock) -> Lack | None:
        """Returns what is missing between two accesses of different CTAs if a flag lies between them, else None.

        ``clock`` is what the agent of the second access knew.
        """
        self._take_later()

        def hands_over(write: FlagWrite) -> bool:
            """Returns whether it is another access than the two themselves."""
            return all((write.site, write.agent[:3]) != (one.site, one.agent[:3]) for one in (first, second))

        def follows(write: FlagWrite) -> bool:
            return hands_over(write) and write.clock.knows(first.space, first.who, first.time, ORDER)

        def precedes(read: FlagRead) -> bool:
            return clock.knows(read.space, read.who, read.time, ORDER)

        for write, read in self._pairs(follows, precedes):
            lack = self._lack(first, second, write, read, clock)
            if lack is not None:
                return lack
        for write, _ in self._pairs(lambda write: write.agent[:2] == first.agent[:2] and hands_over(write), precedes):
            if follows(write) or write.agent.warp == first.agent.warp:
                return None
            missing = (
                f"no barrier between the first access and the {write.site.verb} of warp {write.agent.warp} at "
                f"{write.site.place}, which the other CTA finds"
            )
            return missing, f"bar.sync (__syncthreads()) before PTX line {write.site.line}"
        return None

    def _pairs(
        self, wanted_write: Callable[[FlagWrite], bool], wanted_read: Callable[[FlagRead], bool]
    ) -> Iterator[tuple[FlagWrite, FlagRead]]:
        """Yields reads, each with the first write of its flag, if that came before it."""
        first: dict[int, tuple[int, FlagWrite]] = {}
        for number, write in enumerate(self._writes):
            if wanted_write(write):
                for address in _addresses(write.where):
                    first.setdefault(address, (number, write))
        for read in reversed(self._reads.values()) if first else ():
            if wanted_read(read):
                for number, write in (first[address] for address in _addresses(read.where) if address in first):
                    if number < read.before:
                        yield write, read
                        break

    def _lack(self, first: Record, second: Record, write: FlagWrite, read: FlagRead, clock: Clock) -> Lack | None:
        needed = needed_scope(first.agent, second.agent)
        wide = "gpu" if needed == SCOPES["gpu"] else "cluster"
        at, seen = f"PTX line {write.site.line}", f"PTX line {read.site.line}"
        missing, fixes = [], []
        stamp = first.space, first.who, first.time
        scope = max((scope for clock, scope in write.released if clock.knows(*stamp, ORDER)), default=WEAK)
        if scope < needed:
            missing.append(
                f"no release{_of_scope(needed, scope)} between the first access and the "
                f"{write.site.verb} at {write.site.place}, which the other CTA finds"
            )
            fixes.append(f"{_fence(wide)} before {at} in the thread that executes it, or .release.{wide} in {at}")
        fences, latest = self._fences.get((read.space, read.who), {}), clock.latest(read.space, read.who, ORDER)
        scope = max(read.scope, *(scope for scope, time in fences.items() if read.time <= time <= latest), WEAK)
        if scope < needed:
            missing.append(
                f"no acquire{_of_scope(needed, scope)} between the {read.site.verb} at {read.site.place}, which finds "
                "what the other CTA has written, and the second access"
            )
            fixes.append(f"{_fence(wide)} after {seen} in the thread that executes it, or .acquire.{wide} in {seen}")
        return (", and ".join(missing), "; ".join(fixes)) if missing else None


def _addresses(where: Addresses) -> list[int]:
    return [where] if isinstance(where, int) else np.unique(where).tolist()


def _fence(scope: str) -> str:
    return "__threadfence() (fence.acq_rel.gpu)" if scope == "gpu" else f"fence.acq_rel.{scope}"


def _of_scope(needed: int, found: int) -> str:
    """Returns the scope that is needed, if there is a narrower one."""
    if found == WEAK:
        return ""
    names = {number: name for name, number in SCOPES.items()}
    return f" of .{names[needed]} scope (only of .{names[found]})"
