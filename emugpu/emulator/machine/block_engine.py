"""What the machine asks of an engine that runs basic blocks natively, and what the engine answers."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from emugpu.emulator.machine.events import Agent
from emugpu.emulator.machine.schedule import RandomSchedule
from emugpu.emulator.machine.state import Fragment


@dataclass(frozen=True)
class Stop:
    """Why native turns have ended.

    turns: how many were begun. starts: how many clusters the engine has started, each when the one before it had ended;
    since: the turns since then. reason: the engine's reason. fragment: the fragment whose turn goes on in Python, or
    None. piece: where in its block the turn goes on. blocks, ran: how many blocks this turn may have, and how many it
    has run. changes: the machine's count of changes before this turn.
    """

    turns: int
    starts: int = 0
    since: int = 0
    reason: Any = None
    fragment: Fragment | None = None
    piece: int = 0
    blocks: int = 0
    ran: int = 0
    changes: int = 0


class BlockEngine(Protocol):
    """Runs basic blocks natively, in place of their Python functions.

    enters: for each block, whether the engine may be asked to run it. counts: for each block, how often the engine has
    run it, where the machine has not counted.
    """

    enters: list[bool]
    counts: NDArray[np.int64]

    def run(self, f: Fragment, block: int, budget: int, stop: Stop | None = None) -> tuple[int, int, int]:
        """Runs a block, and perhaps blocks after it. Returns the last block, the one that follows it, and how many
        blocks ran before the last one. stop: given if native turns ended in the middle of the block.
        """

    def may_begin(self, f: Fragment) -> bool:
        """Returns whether native turns may begin with a fragment."""

    def take_turns(
        self, ready: deque[Fragment], starts: int, turns: int, blocks: int, window: int, slice: int
    ) -> Stop | None:
        """Gives the ready fragments turns of `blocks` blocks each, in order. Returns None if it has done nothing.

        starts: how many clusters of one CTA it may start, each when the one before it has ended, or 0.
        """

    def take_random_turns(
        self,
        first: Fragment,
        ready: deque[Fragment],
        schedule: RandomSchedule,
        can_start: bool,
        woken: set[Agent],
        turns: int,
        blocks: int,
        window: int,
        slice: int,
    ) -> Stop | None:
        """Gives a fragment its turn, and goes on as the schedule draws. Returns None if it has done nothing."""

    def diverge(self, f: Fragment, block: int) -> int:
        """Splits a fragment at the end of a block that the engine has run."""

    def flush(self) -> None:
        """Reports the outstanding events to the sink, because nothing follows."""

    def end(self) -> None:
        """Called once, when all clusters have ended."""

    def pass_window(self, f: Fragment, blocks: int) -> tuple[int, int] | None:
        """Runs a window of `blocks` blocks.

        Returns the block that follows, and the number of reads in the last block, which is small unless the block
        stored something. Returns None, having done nothing, if the loop may come round with nothing changed or the
        blocks cannot run natively.
        """
