"""Events that a kernel has written: columns of equal length, in the order of CTAs, warps and time.

cta, warp   which one (of the grid, of the CTA)
site        the place in the kernel: a number of `Site`
operand     an address in shared memory, or what else the site says
clock       of the SM; of the site "global timer" that timer, in nanoseconds
"""

from __future__ import annotations

import numpy as np

from metrology.survey.trace.instrument import EVENT_BYTES, Room

Events = dict[str, np.ndarray]


def read_room(words: np.ndarray, room: Room) -> Events:
    """The events of a room that was zero before: u64 words. A warp's events end where the clock is 0."""
    slots = words.reshape(room.ctas, room.traced, room.events, EVENT_BYTES // 8)
    cta, warp, place = np.nonzero(slots[..., 1])
    tags = slots[cta, warp, place, 0]
    return {
        "cta": cta.astype(np.uint16),
        "warp": (warp * room.warp_step).astype(np.uint8),
        "site": (tags & 0xFFFFFFFF).astype(np.uint16),
        "operand": (tags >> 32).astype(np.uint32),
        "clock": slots[cta, warp, place, 1],
    }
