"""mbarriers, named CTA barriers and the cluster barrier.

Sources: PTX ISA 9.7.13.15 (mbarrier), 9.7.13.1 (bar, barrier), 9.7.13.3 (barrier.cluster).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import Fault
from .fragment import Fragment

if TYPE_CHECKING:
    from .grid import Cta

MAX_COUNT = (1 << 20) - 1
"""Largest arrival count and largest magnitude of the transaction count."""


class MBarrier:
    """State of one mbarrier object; a phase ends when no arrival and no byte is pending."""

    __slots__ = ("bytes", "cta", "expected", "last_arrival", "offset", "pending", "phase", "waiters")

    def __init__(self, cta: Cta, offset: int, count: int):
        if not 1 <= count <= MAX_COUNT:
            raise Fault(f"mbarrier.init with count {count}; the count must be 1..{MAX_COUNT}")
        self.cta = cta
        self.offset = offset
        self.expected = count
        self.pending = count
        self.bytes = 0
        self.phase = 0
        self.waiters: list[Fragment] = []
        self.last_arrival = "nobody"

    def passed(self, parity: int) -> bool:
        """Whether the phase of that parity has completed (PTX ISA 9.7.13.15.16)."""
        return (self.phase ^ parity) & 1 == 1

    def arrive(self, count: int, by: str, drop: bool = False) -> None:
        if count < 1 or count > self.pending:
            raise Fault(
                f"arrives {count} time(s) at {self}, whose phase {self.phase} awaits only {self.pending} more "
                f"of {self.expected} arrivals (last arrival: {self.last_arrival})"
            )
        self.last_arrival = by
        self.pending -= count
        if drop:
            self.expected -= count
        self._test()

    def expect_bytes(self, count: int) -> None:
        self.bytes += count
        self._check_bytes()
        self._test()

    def complete_bytes(self, count: int) -> None:
        """Bytes of an asynchronous copy have landed; may run ahead of ``expect_bytes`` (negative count)."""
        self.bytes -= count
        self._check_bytes()
        self._test()

    def expect_bytes_and_arrive(self, count: int, by: str) -> None:
        """``arrive.expect_tx``: one atomic step, so the phase cannot end between the two."""
        if self.pending < 1:
            raise Fault(f"arrives at {self}, whose phase {self.phase} awaits no more arrivals")
        self.bytes += count
        self._check_bytes()
        self.arrive(1, by)

    def _check_bytes(self) -> None:
        if abs(self.bytes) > MAX_COUNT:
            raise Fault(f"{self} has {self.bytes} bytes pending; the limit is +-{MAX_COUNT}")

    def _test(self) -> None:
        if self.pending or self.bytes:
            return
        self.phase += 1
        self.pending = self.expected
        machine = self.cta.machine
        machine.progress += 1
        waiters, self.waiters = self.waiters, []
        for fragment in waiters:
            machine.resume(fragment)

    def __str__(self) -> str:
        return f"mbarrier at shared 0x{self.offset:x} of CTA rank {self.cta.rank}"

    def describe(self) -> str:
        """One line for the deadlock report."""
        return (
            f"{self}: phase {self.phase} (parity {self.phase & 1}), {self.pending} of {self.expected} arrivals and "
            f"{self.bytes} bytes pending, last arrival: {self.last_arrival}"
        )


class CountingBarrier:
    """A barrier of threads that counts arrivals: a named CTA barrier, or the cluster barrier."""

    __slots__ = ("arrived", "generation", "name", "needed", "waiters")

    def __init__(self, name: str):
        self.name = name
        self.arrived = 0
        self.needed = 0
        self.generation = 0
        self.waiters: list[Fragment] = []

    def arrive(self, fragment: Fragment, needed: int) -> None:
        """Count the fragment's lanes; ``needed`` is the number of threads that complete the barrier."""
        if self.arrived and needed != self.needed:
            raise Fault(f"{self.name} is used with {needed} threads while {self.needed} were named before")
        self.needed = needed
        self.arrived += fragment.count
        fragment.tokens[self] = self.generation
        self.test()

    def test(self) -> None:
        """Release the waiters if everybody has arrived."""
        if self.arrived > self.needed:
            raise Fault(f"{self.name} got {self.arrived} arrivals and needs only {self.needed}")
        if self.arrived < self.needed or not self.arrived:
            return
        self.arrived = 0
        self.generation += 1
        waiters, self.waiters = self.waiters, []
        for fragment in waiters:
            fragment.cta.machine.progress += 1
            fragment.cta.machine.resume(fragment)

    def describe(self) -> str:
        return f"{self.name}: {self.arrived} of {self.needed} threads have arrived"
