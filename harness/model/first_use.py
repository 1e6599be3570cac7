"""Decides which loads of A and B read data that no earlier wave has left in L2."""

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
    """Decides it for each load, from the wave of its cluster.

    ``waves``: for each wave and panel, the part that comes from DRAM (`harness.model.cache`). ``panels``: for the
    address of each tensor, whether it is A or B, and the rows of one of its panels. ``wave_of``: the wave of each
    cluster's first tile, by the cluster's number. ``fetched``: bytes that a copy makes L2 fetch at once, by the address
    of a tensor. ``gained``: for each wave and panel, the cycles by which a leader is ahead of others at each of its K
    steps (`harness.model.gemm.gained`).
    """

    waves: Sequence[Mapping[Panel, float]]
    panels: Mapping[int, tuple[str, int]]
    wave_of: Mapping[int, int]
    fetched: Mapping[int, int] = field(default_factory=dict)
    gained: Sequence[Mapping[Panel, float]] = ()

    def wave(self, cluster: int, turn: int) -> int:
        """Returns the wave of a cluster after ``turn`` tiles."""
        return min(self.wave_of[cluster] + turn, len(self.waves) - 1)

    def new(self, address: int, row: int, wave: int) -> float:
        """Returns the part of a box that comes from DRAM, in that wave. A box outside of the tensor begins earlier, and
        counts as the panel in which it begins.
        """
        name, rows = self.panels[address]
        # With a dynamic schedule, the simulated tiles are not exactly those of that wave.
        return self.waves[wave].get((name, row // rows), self._averages[wave][name])

    def ahead(self, address: int, row: int, wave: int) -> float:
        """Returns by how many cycles the leading clusters requested the box earlier."""
        if not self.gained:
            return 0.0
        name, rows = self.panels[address]
        return self.gained[wave].get((name, row // rows), 0.0)

    def came_before(self, box: TensorMap, k: int) -> bool:
        """Returns whether L2 fetched all rows of the box together with those of the previous K step. This is so if the
        boxes are halves of what is fetched at once. If rows begin at different alignments, each step has some rows that
        were not fetched.
        """
        at_once = self.fetched.get(box.address, 0)
        if at_once <= row_of(box) or any(stride % at_once for stride in box.strides):
            return False
        return k * box.element.bytes % at_once > 0

    @cached_property
    def _averages(self) -> list[dict[str, float]]:
        """Returns the averages of each wave over its panels of A and of B."""
        return [{name: _average(name, panels) for name in "AB"} for panels in self.waves]


def _average(name: str, panels: Mapping[Panel, float]) -> float:
    return fmean([new for (what, _), new in panels.items() if what == name] or [0.0])
