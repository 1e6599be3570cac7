"""The windows of the state spaces in the generic address space, and the space that an address belongs to.

A shared::cluster address has the CTA's rank in bits 24 and up and an offset below, as in code compiled by ptxas 13.0.
The first KiB of every CTA's window is reserved for the system. The windows of the other spaces are this emulator's
choice.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from emugpu.emulator.errors import Fault

RANK_SHIFT = 24
OFFSET_MASK = (1 << RANK_SHIFT) - 1
RESERVED_SHARED = 1024
"""The bytes at the start of every CTA's shared window that are reserved for the system."""

WINDOW_SHIFT = 40
"""The bits above these give the window of a generic address."""
SHARED_WINDOW = 1 << WINDOW_SHIFT
"""The generic address of shared::cluster address 0."""
PARAM_WINDOW = 2 << WINDOW_SHIFT
"""The generic address of the first byte of the kernel parameters."""
LOCAL_WINDOW = 3 << WINDOW_SHIFT
CONST_WINDOW = 4 << WINDOW_SHIFT
GLOBAL_WINDOW = 0x7F00_0000_0000
"""The lowest global address that is allocated. Global memory is its own window: its addresses equal generic ones."""

WINDOWS = {"shared": SHARED_WINDOW, "param": PARAM_WINDOW, "local": LOCAL_WINDOW, "const": CONST_WINDOW, "global": 0}
_BY_NUMBER = {base >> WINDOW_SHIFT: space for space, base in WINDOWS.items() if base}


def space_of(address: int) -> str:
    """Returns the state space of a generic address; shared::cta addresses count as "shared"."""
    return _BY_NUMBER.get(address >> WINDOW_SHIFT, "global")


def spaces_of(addresses: np.ndarray) -> list[tuple[str, np.ndarray]]:
    """Returns the state spaces of generic addresses, each with the positions of its addresses."""
    numbers = (addresses >> np.uint64(WINDOW_SHIFT)).astype(np.int64)
    found: dict[str, np.ndarray] = {}
    for number in np.unique(numbers).tolist():
        space = _BY_NUMBER.get(number, "global")
        here = np.flatnonzero(numbers == number)
        found[space] = np.concatenate([found[space], here]) if space in found else here
    return list(found.items())


def shared_from_generic(address: Any) -> Any:
    """Returns the shared::cluster address of a generic one (an int, or an array of lanes).

    Fault if it is not shared.
    """
    if isinstance(address, int):
        if address >> WINDOW_SHIFT != 1:
            raise Fault(f"generic address 0x{address:x} is not in shared memory but in {space_of(address)}", "address")
        return address - SHARED_WINDOW
    if ((address >> np.uint64(WINDOW_SHIFT)) != 1).any():
        raise Fault("a generic address of one of the lanes is not in shared memory", "address")
    return (address - np.uint64(SHARED_WINDOW)).astype(np.uint32)
