"""The random numbers of a random schedule. The interpreter (`interpreter/draws.mojo`) continues the same stream.

The numbers are those of SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014):
the n-th is ``mixed(seed + n * GAMMA)``, of which the upper 32 bits count, so a seed and how many were drawn are the
whole state. A number is uniform in 0..2**32 - 1; a probability p is the share of those below ``share(p)``.

Priorities come from no stream, but from who has them and the epoch, so that nobody has to be drawn in turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np

GAMMA = 0x9E3779B97F4A7C15
_WORD = (1 << 64) - 1
_MADE = 256
"""Numbers that are made at a time."""

T = TypeVar("T")


def mixed(z: int) -> int:
    """Returns 64 bits, each of which depends on every bit of ``z``."""
    z &= _WORD
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & _WORD
    z = (z ^ z >> 27) * 0x94D049BB133111EB & _WORD
    return z ^ z >> 31


def share(probability: float) -> int:
    """Returns the bound below which a number lies with a probability that is a multiple of 2**-32."""
    return round(probability * (1 << 32))


class Draws:
    """A stream of random numbers. ``drawn`` says how many of them were drawn; setting it goes to another place."""

    def __init__(self, seed: int) -> None:
        self.seed = seed & (_WORD >> 1)
        self.drawn = 0
        self._made: list[int] = []
        self._first = 0
        """The number of the first one that is made."""
        self._own = mixed(self.seed)

    def draw(self) -> int:
        """Returns the next number, of 32 bits."""
        at = self.drawn - self._first
        if not 0 <= at < len(self._made):
            self._make()
            at = 0
        self.drawn += 1
        return self._made[at]

    def _make(self) -> None:
        self._first = self.drawn
        z = np.uint64(self.seed) + np.arange(self.drawn + 1, self.drawn + 1 + _MADE, dtype=np.uint64) * np.uint64(GAMMA)
        z = (z ^ z >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ z >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
        self._made = ((z ^ z >> np.uint64(31)) >> np.uint64(32)).tolist()

    def below(self, count: int) -> int:
        """Returns a number from 0 to ``count`` - 1, for counts below 2**31."""
        return self.draw() * count >> 32

    def one_of(self, values: Sequence[T]) -> T:
        return values[self.below(len(values))]

    def root(self, who: int) -> int:
        """Returns what `priority` needs of somebody: 63 bits, different for each seed."""
        return mixed(self._own + mixed(who)) >> 1


def priority(root: int, epoch: int) -> int:
    """Returns somebody's priority in an epoch: 63 bits. In each epoch it stays as it was in half of all cases."""
    while True:
        z = mixed(root + epoch * GAMMA)
        if epoch == 0 or z & 1:
            return z >> 1
        epoch -= 1
