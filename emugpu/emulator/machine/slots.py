"""Sets of registers, as integers: bit n stands for the register with slot n."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

ALL = -1
"""The set of all registers."""


def set_of(slots: Iterable[int]) -> int:
    found = 0
    for slot in slots:
        found |= 1 << slot
    return found


@lru_cache(1 << 12)
def slots_of(registers: int) -> tuple[int, ...]:
    """Returns the slots of a set of registers, in order."""
    return tuple(n for n, bit in enumerate(reversed(f"{registers:b}")) if bit == "1")
