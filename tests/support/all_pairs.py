"""Few configurations in which every pair of values of two options occurs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import combinations

from harness.compile.config import KernelConfig

Pair = tuple[tuple[str, object], ...]


def all_pairs(configs: Sequence[KernelConfig], options: Collection[str]) -> list[KernelConfig]:
    """Of the given configurations so many that each pair of values that two of the named options have in one of them is
    in the result; those with the most new pairs first (greedily, so not always the fewest)."""
    pairs: dict[KernelConfig, set[Pair]] = {}
    for config in configs:
        values = config.options()
        pairs[config] = set(combinations([(name, values[name]) for name in options], 2))
    missing = set().union(*pairs.values())
    chosen = []
    while missing:
        best = max(configs, key=lambda config: len(pairs[config] & missing))
        chosen.append(best)
        missing -= pairs[best]
    return chosen
