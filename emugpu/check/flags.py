"""Flags in global memory: which release or which acquire two accesses of different CTAs lack.

A thread hands data to another CTA by a strong write of a flag, which the other CTA reads by a strong read. The write
has to release what came before it, and the read has to acquire it (PTX ISA 8.8, 8.9.4); fences before the write and
after the read do that, too. `Flags` remembers who wrote and who read, and looks only after a race has been found.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from emugpu.check.clocks import ORDER, Clock, Components
from emugpu.check.history import ACQUIRES, SCOPES, WEAK, Record, needed_scope
from emugpu.emulator.machine.events import Site

MOST = 1 << 16
"""At most so many instructions that write flags are remembered, and as many that read them."""
Lack = tuple[str, str]
"""What is missing between two accesses, and the fix."""
Addresses = int | NDArray[np.integer]


class FlagWrite(NamedTuple):
    """A strong write.

    ``clock`` is what its thread knew, ``released`` what the write has released, or None. ``scope`` is the scope of the
    release.
    """

    where: Addresses
    clock: Clock
    released: Clock | None
    scope: int
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


class Fence(NamedTuple):
    time: int
    scope: int


class Flags:
    """The strong accesses of a launch to global memory, and the last fence of each thread."""

    def __init__(self) -> None:
        self._writes: list[FlagWrite] = []
        self._reads: dict[tuple[Components, int, int, int], FlagRead] = {}
        self._fences: dict[tuple[Components, int], Fence] = {}

    def wrote(self, write: FlagWrite) -> None:
        if len(self._writes) < MOST:
            self._writes.append(write)

    def read(self, where: Addresses, space: Components, who: int, time: int, scope: int, site: Site) -> None:
        key = (space, who, site.index, where if isinstance(where, int) else int(where[0]))
        if self._writes and (len(self._reads) < MOST or key in self._reads):
            acquired = scope if site.semantics in ACQUIRES else WEAK
            self._reads[key] = FlagRead(where, space, who, time, acquired, site, len(self._writes))

    def fenced(self, space: Components, who: int, time: int, scope: int) -> None:
        self._fences[space, who] = Fence(time, scope)

    def between(self, first: Record, second: Record, clock: Clock) -> Lack | None:
        """Returns what is missing between two accesses if a flag lies between them, else None.

        ``clock`` is what the agent of the second access knew.
        """
        follow = [
            (number, write)
            for number, write in enumerate(self._writes)
            if write.clock.knows(first.space, first.who, first.time, ORDER)
        ]
        for read in reversed(self._reads.values()) if follow else ():
            if clock.knows(read.space, read.who, read.time, ORDER):
                for number, write in follow:
                    if number < read.before and np.isin(read.where, write.where).any():
                        lack = self._lack(first, second, write, read, clock)
                        if lack is not None:
                            return lack
        return None

    def _lack(self, first: Record, second: Record, write: FlagWrite, read: FlagRead, clock: Clock) -> Lack | None:
        needed = needed_scope(first.agent, second.agent)
        wide = "gpu" if needed == SCOPES["gpu"] else "cluster"
        at, seen = f"PTX line {write.site.line}", f"PTX line {read.site.line}"
        missing, fixes = [], []
        released = write.released is not None and write.released.knows(first.space, first.who, first.time, ORDER)
        if not released or write.scope < needed:
            missing.append(
                f"no release{_of_scope(needed, write.scope if released else WEAK)} between the first access and the "
                f"{write.site.verb} at {write.site.place}, which the other CTA finds"
            )
            fixes.append(f"{_fence(wide)} before {at} in the thread that executes it, or .release.{wide} in {at}")
        fence = self._fences.get((read.space, read.who))
        if fence is not None and not (read.time <= fence.time <= clock.latest(read.space, read.who, ORDER)):
            fence = None
        scope = max(read.scope, fence.scope if fence is not None else WEAK)
        if scope < needed:
            missing.append(
                f"no acquire{_of_scope(needed, scope)} between the {read.site.verb} at {read.site.place}, which finds "
                "what the other CTA has written, and the second access"
            )
            fixes.append(f"{_fence(wide)} after {seen} in the thread that executes it, or .acquire.{wide} in {seen}")
        return (", and ".join(missing), "; ".join(fixes)) if missing else None


def _fence(scope: str) -> str:
    return "__threadfence() (fence.acq_rel.gpu)" if scope == "gpu" else f"fence.acq_rel.{scope}"


def _of_scope(needed: int, found: int) -> str:
    """Returns the scope that is needed, if there is a narrower one."""
    if found == WEAK:
        return ""
    names = {number: name for name, number in SCOPES.items()}
    return f" of .{names[needed]} scope (only of .{names[found]})"
