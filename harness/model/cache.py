"""How much of what the SMs read comes from DRAM: a simple model of L2, from the order of the tiles and its size.

Clusters that run at the same time walk along K together. So what several of them need is read from DRAM once, by the
first, and the others wait for the same bytes. What earlier waves have used is still there, slice by slice
along K, if all that was read and written since then fits: L2 gives up first what was used the longest ago. As most of
it has a copy in each half of L2, what fits is a part of its size (`l2.effective`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Place = tuple[int, int]
"""Row and column of a tile of C, counted in tiles of one cluster."""

Panel = tuple[str, int]
"""All of K of the rows of A, or of the columns of B, that a tile needs: ``("A", row)`` or ``("B", column)``."""

SLICES = 8
"""Slices of a panel along K: those at its begin were used longer ago than those at its end."""

SPREAD = 0.3
"""L2 gives up the oldest line of a set, not of all, and clusters do not keep step exactly. So what is used again after
this part less than fits is there, after this part more it is not, and in between in proportion (fitted: counters of
DRAM bytes of an H200)."""


@dataclass(frozen=True)
class Tiles:
    """A GEMM as clusters compute it. ``order``: the tiles of C in the order in which they start; ``rows``, ``columns``:
    of a cluster's tile; ``k``: depth; ``element``, ``output``: bytes of one of A and B, and of C. ``requested``: bytes
    that a cluster asks L2 for, of one tile: less than its CTAs get, where some of it is multicast.
    """

    order: Sequence[Place]
    rows: int
    columns: int
    m: int
    n: int
    k: int
    element: float
    requested: float
    output: float = 2


@dataclass(frozen=True)
class Hits:
    """Bytes of a launch. ``dram``: read from DRAM; ``requested``: from L2; ``written``: of C. ``waves``: of each wave
    of tiles, by the panel, the part of it that is not there and comes from DRAM.
    """

    dram: float
    requested: float
    written: float
    waves: Sequence[Mapping[Panel, float]]

    @property
    def miss(self) -> float:
        """DRAM bytes for each byte that is asked for."""
        return min(1.0, self.dram / self.requested) if self.requested else 0.0


def hits(tiles: Tiles, resident: int, capacity: float) -> Hits:
    """``resident``: clusters at once; ``capacity``: bytes that L2 keeps."""
    dram = written = 0.0
    waves = []
    cache = _Cache(capacity)
    for first in range(0, len(tiles.order), resident):
        places = tiles.order[first : first + resident]
        used = {("A", row) for row, _ in places} | {("B", column) for _, column in places}
        panels = {panel: _bytes(panel, tiles) for panel in sorted(used)}  # a sum does not change from run to run
        output = sum(_inside(row, tiles.rows, tiles.m) * _inside(c, tiles.columns, tiles.n) for row, c in places)
        there = cache.finds(panels)
        waves.append({panel: 1 - there.get(panel, 0.0) for panel in panels})
        dram += sum(nbytes * waves[-1][panel] for panel, nbytes in panels.items())
        cache.keeps(panels, output * tiles.output)
        written += output * tiles.output
    return Hits(dram, tiles.requested * len(tiles.order), written, waves)


@dataclass
class _Wave:
    """A wave, as L2 keeps it. ``panels``: bytes of those that no later wave has used; ``output``: of C."""

    panels: dict[Panel, float]
    output: float


class _Cache:
    """What has been used last is given up last. Bytes are counted once, where they were used last."""

    def __init__(self, capacity: float) -> None:
        self.capacity = capacity
        self.waves: list[_Wave] = []

    def finds(self, panels: Mapping[Panel, float]) -> dict[Panel, float]:
        """Returns the parts of a next wave's panels that are still there."""
        found: dict[Panel, float] = {}
        since, ahead = 0.0, sum(panels.values())
        for before in reversed(self.waves):
            since += before.output
            left = sum(before.panels.values())
            again = {panel: size for panel, size in before.panels.items() if panel in panels}
            if again:
                # After a slice came the ones behind it of that wave, and the ones before it of the next.
                parts = ((n + 0.5) / SLICES for n in range(SLICES))
                ages = (since + (1 - part) * left + part * ahead for part in parts)
                kept = sum(map(self._kept, ages)) / SLICES
                found.update(dict.fromkeys(again, kept))
            since += left
            ahead -= sum(again.values())
        return found

    def keeps(self, panels: Mapping[Panel, float], output: float) -> None:
        """Records that a wave has used them, and has written its part of C."""
        for before in self.waves:
            before.panels = {panel: size for panel, size in before.panels.items() if panel not in panels}
        self.waves.append(_Wave(dict(panels), output))
        self._forget()

    def _forget(self) -> None:
        """Waves of which nothing is there any more."""
        since = 0.0
        for number in reversed(range(len(self.waves))):
            if not self._kept(since):
                del self.waves[: number + 1]
                return
            since += sum(self.waves[number].panels.values()) + self.waves[number].output

    def _kept(self, since: float) -> float:
        """The part that is there of bytes after which so many others were used."""
        least, most = (1 - SPREAD) * self.capacity, (1 + SPREAD) * self.capacity
        return 1.0 if since < least else max(0.0, (most - since) / (most - least)) if since < most else 0.0


def _inside(index: int, size: int, extent: int) -> int:
    """Rows or columns of a tile that are inside of C."""
    return max(0, min(size, extent - index * size))


def _bytes(panel: Panel, tiles: Tiles) -> float:
    what, index = panel
    size, extent = (tiles.rows, tiles.m) if what == "A" else (tiles.columns, tiles.n)
    return _inside(index, size, extent) * tiles.k * tiles.element
