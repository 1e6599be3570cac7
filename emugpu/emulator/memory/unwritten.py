"""What a read of unwritten memory returns: poison, an error, or chosen bytes and a finding.

On a GPU such bytes hold whatever was there before. Correct programs read them too, but do not use the values: the idle
lanes of a tile, the columns beside an accumulator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from emugpu.emulator.errors import Fault, UndefinedRead

Uninitialised = Literal["poison", "fault", "report", "zero", "random"]
REPORTED = 0xFF
"""The byte that "report" returns: a NaN in most floating-point types and -1 in integers, so that its use shows."""


MOST_STORED = 1 << 16
"""A memory that has the origins of so many undefined bytes keeps those of no more."""


class StoredOrigins:
    """Where the undefined values come from that threads have stored in a memory."""

    def __init__(self) -> None:
        self._of: dict[int, tuple[str, str]] = {}
        """By the place of the byte."""

    def note(self, places: NDArray[np.integer], stored: tuple[str, str]) -> None:
        """Records undefined bytes that a thread stores: a text about the store, and the origin of the value."""
        noted: Iterable[int] = places.tolist()
        if len(self._of) >= MOST_STORED:
            noted = self._of.keys() & noted
        self._of.update(dict.fromkeys(noted, stored))

    def read(self, byte: str, place: int, why: str = "", offset: int | None = None) -> UndefinedRead:
        """Returns the fault of a read of an undefined byte. ``byte`` names it, ``why`` adds to the message."""
        store, origin = self._of.get(place, ("", ""))
        state = f"is undefined: {store} {origin} there" if store else f"was never written{why}"
        return UndefinedRead(f"{byte} is read but {state}", place, store, origin, offset)


class Unwritten:
    """The policy for unwritten bytes, one object for all memories of a launch.

    mode: "fault" ends the run. "poison" ends it only if a value that a thread has loaded decides something
    (`machine.poison`). The other modes return bytes of 0xFF ("report"), zero bytes, or random ones drawn from the seed;
    these are stored, so that a second read returns the same. note: called with a message for each such read.
    """

    def __init__(
        self, mode: Uninitialised = "fault", seed: int = 0, note: Callable[[str], None] = lambda message: None
    ) -> None:
        if mode not in get_args(Uninitialised):
            raise ValueError(f"uninitialised '{mode}': must be {', '.join(get_args(Uninitialised))}")
        self.mode = mode
        self._note = note
        self._random = np.random.default_rng(seed)
        self._byte: int | None = None

    @contextmanager
    def read_as(self, byte: int) -> Iterator[None]:
        """Reads of unwritten bytes return this byte meanwhile, in every mode. The bytes stay unwritten."""
        self._byte = byte
        try:
            yield
        finally:
            self._byte = None

    def read(
        self, fault: Fault, data: NDArray[Any], written: NDArray[np.bool_], where: Any = ..., spreads: bool = False
    ) -> None:
        """Handles a read of unwritten bytes: raises the fault, or fills the bytes in.

        data, written: a memory, item by item, and which of its items were written. where: the index of the items read.
        spreads: whether the NaN of "report" spreads to all results, so that it shows as poison there. If not, the code
        that reads for a register turns the fault into poison.
        """
        if self._byte is None and (self.mode == "fault" or (self.mode == "poison" and not spreads)):
            raise fault
        there = np.ascontiguousarray(data[where])
        if self._byte is None and self.mode == "random":
            given = np.frombuffer(self._random.bytes(there.nbytes), there.dtype).reshape(there.shape)
        else:
            byte = self._byte
            if byte is None:
                byte = 0 if self.mode == "zero" else REPORTED
            given = np.full(there.nbytes, byte, np.uint8).view(there.dtype).reshape(there.shape)
        data[where] = np.where(written[where], there, given)
        if self._byte is None:
            self._note(str(fault))
            written[where] = True


FAULT = Unwritten()
"""The policy of memories outside of a launch."""
