"""A race measures all candidates once, drops the slower half, and measures the others again.

It is successive halving (Jamieson and Talwalkar, AISTATS 2016) with the process as the unit: samples of one process are
alike, so a candidate's figure is the median over its processes. Some candidates within the noise of the last one that
stays get another round.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Generic, TypeVar

C = TypeVar("C", bound=Hashable)
Measure = Callable[[Sequence[C]], Iterable[tuple[C, float | None]]]
"""Measures each candidate once, all in one process: a time (smaller is better), or None for no result."""

MOST_ROUNDS = 8
NOISE = 0.01
"""The expected relative scatter of medians from two processes with the same kernel on the same GPU."""


@dataclass
class Runner(Generic[C]):
    """A candidate in the race. ``values`` has one value per process. ``out`` is the round in which it dropped out, or
    None for the winner.
    """

    candidate: C
    values: list[float] = field(default_factory=list)
    out: int | None = None

    @property
    def figure(self) -> float:
        return statistics.median(self.values)


def race(candidates: Sequence[C], measure: Measure[C], rounds: int = MOST_ROUNDS) -> list[Runner[C]]:
    """Runs the race. Returns all runners, the best first. In a tie the first of the list wins."""
    runners = {candidate: Runner(candidate) for candidate in candidates}
    alive = list(runners.values())
    for number in range(1, rounds + 1):
        for candidate, value in measure([runner.candidate for runner in alive]):
            if value is None:
                runners[candidate].out = number
            else:
                runners[candidate].values.append(value)
        alive = sorted((r for r in alive if r.out is None), key=lambda r: r.figure)
        if not alive:
            break
        staying = _staying(alive, max(1, len(alive) // 2))
        for runner in alive[staying:]:
            runner.out = number
        alive = alive[:staying]
        if len(alive) == 1:
            break
    for runner in alive[1:]:
        runner.out = rounds
    return sorted(runners.values(), key=lambda r: (not r.values, -(r.out or rounds + 1), r.figure if r.values else 0.0))


def _staying(ranked: Sequence[Runner[C]], half: int) -> int:
    """Returns the number of runners that stay: the faster half, and at most half as many more within the noise of its
    last one.
    """
    noise = NOISE / len(ranked[0].values) ** 0.5
    close = sum(runner.figure / ranked[half - 1].figure - 1 < noise for runner in ranked[half:])
    return half + min(close, ceil(half / 2) if half > 1 else 0)
