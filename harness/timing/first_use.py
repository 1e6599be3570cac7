"""Which loads of A and B wait for DRAM: those of what no round of tiles before has left in L2."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from harness.timing.cache import Panel


class FirstUse:
    """Says it of each load, from the round of tiles that its cluster is at."""

    def __init__(
        self,
        rounds: Sequence[Mapping[Panel, float]],
        panels: Mapping[int, tuple[str, int]],
        round_of: Sequence[int],
        together: float,
    ) -> None:
        """rounds: of each, by the panel, the part of it that comes from DRAM (`harness.timing.cache`); panels: by the
        address of a tensor, whether it is A or B, and the rows of one of its panels; round_of: by the number of a
        cluster, the round of its first tile; together: of the loads for what comes from DRAM, the part that waits.
        """
        self.rounds = rounds
        self.panels = panels
        self.round_of = round_of
        self.together = together
        self._averages = [{name: _average(name, panels) for name in "AB"} for panels in rounds]
        self._at: dict[tuple[int, int, int], tuple[int, int]] = {}
        """Of a CTA and a tensor: where along K its last box began, and which of its tiles that was."""

    def waits(self, address: int, k: int, row: int, cluster: int, rank: int) -> float:
        """The part of the time for DRAM that a box waits on average. Boxes of a tile come in their order along K, so
        one that begins before the last is the next tile's; of a single K step all are taken for the first tile's."""
        name, rows = self.panels[address]
        key = cluster, rank, address
        before, turn = self._at.get(key, (k, 0))
        turn += k < before
        self._at[key] = k, turn
        number = min(self.round_of[cluster] + turn, len(self.rounds) - 1)
        # Of a dynamic schedule not the tiles of that round are simulated, but some.
        new = self.rounds[number].get((name, row // rows), self._averages[number][name])
        return self.together * new


def _average(name: str, panels: Mapping[Panel, float]) -> float:
    """Over those of A or of B."""
    return fmean([new for (what, _), new in panels.items() if what == name] or [0.0])
