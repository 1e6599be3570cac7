"""Findings about lanes that signal or wait for others. They wait until it is known which lane accesses which bytes.

All lanes of a warp that execute an instruction share a record, and it gets further addresses as long as nothing else
happens. A lane that hands over its own word alone needs no other lane, so such a finding is decided at the end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from emugpu.check.history import Observer
from emugpu.check.record import Record

MOST = 1 << 12
"""So many findings wait; then they are decided by what is known."""


class _Held(NamedTuple):
    old: Record
    new: Record
    observer: Observer
    tell: Callable[[], None]
    in_order: Callable[[], None]


class LaneFindings:
    """The findings of one launch that wait."""

    def __init__(self) -> None:
        self._held: list[_Held] = []

    def hold(
        self, old: Record, new: Record, observer: Observer, tell: Callable[[], None], in_order: Callable[[], None]
    ) -> None:
        """Keeps a finding about two accesses. ``tell`` adds it; ``in_order`` judges them as what is in order."""
        self._held.append(_Held(old, new, observer, tell, in_order))
        if len(self._held) == MOST:
            self.decide()

    def decide(self) -> None:
        """Adds the findings about lanes that have accessed the same bytes."""
        held, self._held = self._held, []
        for one in held:
            lanes = one.old.lanes_at(one.new), one.new.lanes_at(one.old)
            if one.observer.hears_of(one.old, one.new, *lanes):
                one.in_order()
            else:
                one.tell()
