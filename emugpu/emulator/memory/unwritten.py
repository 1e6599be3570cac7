"""What reading memory gives that nobody has written: poison, an error, or bytes of one's choice and a finding.

On a GPU such bytes are whatever was there before. Programs that run well read them and do not use what they got: the
idle lanes of a tile, the columns beside an accumulator.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from emugpu.emulator.errors import Fault

Uninitialised = Literal["poison", "fault", "report", "zero", "random"]
REPORTED = 0xFF
"""The byte that "report" gives: a NaN in most floating-point types, -1 in integers, so that its use shows."""


class Unwritten:
    """One for all memories of a launch. mode: "fault" ends the run; "poison" ends it only where what a thread has
    loaded decides something (`machine.poison`); the others give bytes of 0xFF ("report"), of zero, or drawn from the
    seed, which are then the memory's, so that a second read gives the same. note: is told of each read of such bytes.
    """

    def __init__(
        self, mode: Uninitialised = "fault", seed: int = 0, note: Callable[[str], None] = lambda message: None
    ) -> None:
        if mode not in get_args(Uninitialised):
            raise ValueError(f"uninitialised '{mode}': must be {', '.join(get_args(Uninitialised))}")
        self.mode = mode
        self._note = note
        self._random = np.random.default_rng(seed)

    def read(
        self, fault: Fault, data: NDArray[Any], written: NDArray[np.bool_], where: Any = ..., spreads: bool = False
    ) -> None:
        """A read meets bytes that were not written: raises the fault, or fills them in.

        data, written: a memory, item by item, and which of its items were written. where: the index of what is read.
        spreads: whether the NaN of "report" says in all results that follow that it was poison; else who reads for a
        register makes poison of the fault.
        """
        if self.mode == "fault" or (self.mode == "poison" and not spreads):
            raise fault
        there = np.ascontiguousarray(data[where])
        if self.mode == "random":
            given = np.frombuffer(self._random.bytes(there.nbytes), there.dtype).reshape(there.shape)
        else:
            byte = 0 if self.mode == "zero" else REPORTED
            given = np.full(there.nbytes, byte, np.uint8).view(there.dtype).reshape(there.shape)
        data[where] = np.where(written[where], there, given)
        written[where] = True
        self._note(str(fault))


FAULT = Unwritten()
"""Of memories outside of a launch."""
