"""What a copy carries: bytes, and which of them are undefined.

A copy of unwritten memory decides nothing: what it writes is undefined where what it reads is, as with a load and a
store. Reductions compute with what they read, so they stop there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from emugpu.emulator.errors import Fault
from emugpu.emulator.instructions.accesses import loaded_origin
from emugpu.emulator.machine.events import Site
from emugpu.emulator.machine.state import Fragment
from emugpu.emulator.memory.global_memory import GlobalMemory
from emugpu.emulator.memory.shared import SharedMemory
from emugpu.emulator.units.tma import NOWHERE

Bytes = NDArray[np.uint8]


@dataclass(frozen=True, eq=False)
class Content:
    """The bytes of a copy. undefined: which of them are, or None. stored: the copy, and the origin of these bytes."""

    data: Bytes
    undefined: NDArray[np.bool_] | None = None
    stored: tuple[str, str] = ("", "")

    def undefine(self, memory: GlobalMemory | SharedMemory, places: Callable[[], NDArray[np.int64]]) -> None:
        """Marks the undefined bytes in a memory that the data was written to. places: returns the place of each byte of
        the data there, or NOWHERE.
        """
        if self.undefined is not None:
            at = places()[self.undefined]
            memory.undefine(at[at != NOWHERE], self.stored)


def copied(f: Fragment, site: Site, read: Callable[[], Bytes], reduces: bool = False) -> Content:
    """Returns what a copy by a fragment reads. Fault on unwritten bytes unless such bits are values (`loaded_origin`).

    read: returns a new array. Bytes that depend on unwritten ones differ between a read that finds these all zeros and
    one that finds them all ones. reduces: whether the copy computes with what it reads.
    """
    try:
        return Content(read())
    except Fault as fault:
        if reduces:
            raise
        origin = loaded_origin(f, site, fault)
    with f.grid.unwritten.read_as(0):
        zeros = read()
    with f.grid.unwritten.read_as(0xFF):
        ones = read()
    return Content(zeros, zeros != ones, (f"{site.place} in CTA {f.cta.index}, warp {f.warp.index} copies", origin))
