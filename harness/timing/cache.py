"""How much of what the SMs read comes from DRAM: a simple model of L2, from the order of the tiles and its size.

Clusters that run at the same time walk along K together. So what several of them need is read from DRAM once, by the
first, and the others wait for the same bytes. What the round of tiles before has used is still there if all that was
read and written since then fits; as each half of L2 keeps its own copy, that is a part of its size (`l2.effective`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

Place = tuple[int, int]
"""Row and column of a tile of C, counted in tiles of one cluster."""


@dataclass(frozen=True)
class Tiles:
    """A GEMM as clusters compute it. ``order``: the tiles of C in the order in which they start; ``rows``, ``columns``:
    of a cluster's tile; ``k``: depth; ``element``: bytes of one. ``requested``: bytes that a cluster asks L2 for, of
    one tile: less than its CTAs get, where some of it is multicast.
    """

    order: Sequence[Place]
    rows: int
    columns: int
    m: int
    n: int
    k: int
    element: int
    requested: float


@dataclass(frozen=True)
class Hits:
    """Bytes of a launch. ``dram``: read from DRAM; ``requested``: from L2; ``written``: of C. ``waits``: fraction of
    the loads that wait for DRAM.
    """

    dram: float
    requested: float
    written: float
    waits: float

    @property
    def miss(self) -> float:
        """DRAM bytes for each byte that is asked for."""
        return min(1.0, self.dram / self.requested) if self.requested else 0.0


def hits(tiles: Tiles, resident: int, capacity: float) -> Hits:
    """``resident``: clusters at once; ``capacity``: bytes that L2 keeps."""
    dram = touched = written = 0.0
    before: set[tuple[str, int]] = set()
    since = 0.0
    for first in range(0, len(tiles.order), resident):
        places = tiles.order[first : first + resident]
        panels = {("A", row) for row, _ in places} | {("B", column) for _, column in places}
        sizes = {panel: _bytes(panel, tiles) for panel in panels}
        total = sum(sizes.values())
        stays = (since + total) / 2 <= capacity
        fresh = sum(size for panel, size in sizes.items() if not (stays and panel in before))
        dram += fresh
        touched += total
        output = sum(_inside(row, tiles.rows, tiles.m) * _inside(c, tiles.columns, tiles.n) for row, c in places)
        written += output * tiles.element
        since = total + output * tiles.element
        before = panels
    return Hits(dram, tiles.requested * len(tiles.order), written, dram / touched if touched else 1.0)


def _inside(index: int, size: int, extent: int) -> int:
    """Rows or columns of a tile that are inside of C."""
    return max(0, min(size, extent - index * size))


def _bytes(panel: tuple[str, int], tiles: Tiles) -> float:
    what, index = panel
    size, extent = (tiles.rows, tiles.m) if what == "A" else (tiles.columns, tiles.n)
    return _inside(index, size, extent) * tiles.k * tiles.element
