"""Tells which loads of A and B are of what no wave before has left in L2."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import fmean

from emugpu.emulator.memory.tensor_map import TensorMap
from harness.model.boxes import row_of
from harness.model.cache import Panel


@dataclass(frozen=True)
class FirstUse:
    """Says it of each load, from the wave that its cluster is at.

    ``waves``: of each, by the panel, the part of it that comes from DRAM (`harness.model.cache`); ``panels``: by the
    address of a tensor, whether it is A or B, and the rows of one of its panels; ``wave_of``: by the number of a
    cluster, the wave of its first tile; ``fetched``: by the address of a tensor, the bytes that a copy makes L2 fetch
    at once; ``gained``: of each wave, by the panel, cycles by which a leader is ahead of others at each of its K steps
    (`harness.model.gemm.gained`).
    """

    waves: Sequence[Mapping[Panel, float]]
    panels: Mapping[int, tuple[str, int]]
    wave_of: Mapping[int, int]
    fetched: Mapping[int, int] = field(default_factory=dict)
    gained: Sequence[Mapping[Panel, float]] = ()

    def wave(self, cluster: int, turn: int) -> int:
        """Returns the wave that a cluster is in after so many tiles."""
        return min(self.wave_of[cluster] + turn, len(self.waves) - 1)

    def new(self, address: int, row: int, wave: int) -> float:
        """Returns the part of a box that comes from DRAM, in that wave. A box that would lie outside of the tensor, and
        so begins before, counts as the panel in which it begins.
        """
        name, rows = self.panels[address]
        # Of a dynamic schedule not the tiles of that wave are simulated, but some.
        return self.waves[wave].get((name, row // rows), self._averages[wave][name])

    def ahead(self, address: int, row: int, wave: int) -> float:
        """Returns the cycles by which others have asked for the box before, as they lead."""
        if not self.gained:
            return 0.0
        name, rows = self.panels[address]
        return self.gained[wave].get((name, row // rows), 0.0)

    def came_before(self, box: TensorMap, k: int) -> bool:
        """Returns whether L2 has fetched all rows of the box that begins there with those of the K step before: if
        these are halves of what is fetched at once. Where rows do not all begin alike, each step has some that do not
        come so.
        """
        at_once = self.fetched.get(box.address, 0)
        if at_once <= row_of(box) or any(stride % at_once for stride in box.strides):
            return False
        return k * box.element.bytes % at_once > 0

    @cached_property
    def _averages(self) -> list[dict[str, float]]:
        """Averages of each wave over its panels of A and of B."""
        return [{name: _average(name, panels) for name in "AB"} for panels in self.waves]


def _average(name: str, panels: Mapping[Panel, float]) -> float:
    return fmean([new for (what, _), new in panels.items() if what == name] or [0.0])
