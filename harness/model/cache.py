"""A simple model of L2. It computes which part of the SMs' reads comes from DRAM, from the order of the tiles and the
size of L2.

Simultaneous clusters advance along K together. So data that several of them need is read from DRAM once, by the first,
and the others wait for the same bytes. Data of earlier waves is still there, slice by slice along K, if everything read
and written since then fits: L2 evicts the least recently used lines. As most data has a copy in each half of L2, only a
part of its size is available (`l2.effective`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Place = tuple[int, int]
"""Row and column of a tile of C, in units of a cluster's tiles."""

Panel = tuple[str, int]
"""All of K for the rows of A, or the columns of B, that a tile needs: ``("A", row)`` or ``("B", column)``."""

SLICES = 8
"""Slices of a panel along K: the first were used longer ago than the last."""

SPREAD = 0.3
"""L2 evicts the oldest line of a set, not of all sets, and clusters do not advance at exactly the same speed. So data
reused before the capacity less this part is a hit, data reused after the capacity plus this part is a miss, and the
probability in between is linear (fitted: counters of DRAM bytes of an H200).
"""


@dataclass(frozen=True)
class Tiles:
    """A GEMM as clusters compute it.

    ``order``: the tiles of C in the order in which they start. ``rows``, ``columns``: size of a cluster's tile. ``k``:
    depth. ``element``, ``output``: bytes of an element of A and B, and of C. ``requested``: bytes that a cluster
    requests from L2 for one tile, which is less than its CTAs receive if some data is multicast.
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
    """The bytes of a launch: ``dram`` read from DRAM, ``requested`` from L2, ``written`` to C.

    ``waves`` holds, for each wave of tiles and panel, the part that misses in L2 and comes from DRAM.
    """

    dram: float
    requested: float
    written: float
    waves: Sequence[Mapping[Panel, float]]

    @property
    def miss(self) -> float:
        """Returns the DRAM bytes per requested byte."""
        return min(1.0, self.dram / self.requested) if self.requested else 0.0


def hits(tiles: Tiles, resident: int, capacity: float) -> Hits:
    """Computes the hits. ``resident`` is the number of simultaneous clusters; ``capacity`` the bytes that L2 keeps."""
    dram = written = 0.0
    waves = []
    cache = _Cache(capacity)
    for first in range(0, len(tiles.order), resident):
        places = tiles.order[first : first + resident]
        used = {("A", row) for row, _ in places} | {("B", column) for _, column in places}
        panels = {
            panel: _bytes(panel, tiles) for panel in sorted(used)
        }  # sorted, so that the sum is the same in every run
        output = sum(_inside(row, tiles.rows, tiles.m) * _inside(c, tiles.columns, tiles.n) for row, c in places)
        there = cache.finds(panels)
        waves.append({panel: 1 - there.get(panel, 0.0) for panel in panels})
        dram += sum(nbytes * waves[-1][panel] for panel, nbytes in panels.items())
        cache.keeps(panels, output * tiles.output)
        written += output * tiles.output
    return Hits(dram, tiles.requested * len(tiles.order), written, waves)


@dataclass
class _Wave:
    """The data of a wave in L2: ``panels`` are the bytes of those that no later wave used; ``output`` is of C."""

    panels: dict[Panel, float]
    output: float


class _Cache:
    """An LRU cache. Bytes are counted once, where they were last used."""

    def __init__(self, capacity: float) -> None:
        self.capacity = capacity
        self.waves: list[_Wave] = []

    def finds(self, panels: Mapping[Panel, float]) -> dict[Panel, float]:
        """Returns the parts of the next wave's panels that hit."""
        found: dict[Panel, float] = {}
        since, ahead = 0.0, sum(panels.values())
        for before in reversed(self.waves):
            since += before.output
            left = sum(before.panels.values())
            again = {panel: size for panel, size in before.panels.items() if panel in panels}
            if again:
                # After a slice came the later slices of that wave, and the earlier ones of the next.
                parts = ((n + 0.5) / SLICES for n in range(SLICES))
                ages = (since + (1 - part) * left + part * ahead for part in parts)
                kept = sum(map(self._kept, ages)) / SLICES
                found.update(dict.fromkeys(again, kept))
            since += left
            ahead -= sum(again.values())
        return found

    def keeps(self, panels: Mapping[Panel, float], output: float) -> None:
        """Records that a wave used these panels and wrote its part of C."""
        for before in self.waves:
            before.panels = {panel: size for panel, size in before.panels.items() if panel not in panels}
        self.waves.append(_Wave(dict(panels), output))
        self._forget()

    def _forget(self) -> None:
        """Drops waves of which nothing is left."""
        since = 0.0
        for number in reversed(range(len(self.waves))):
            if not self._kept(since):
                del self.waves[: number + 1]
                return
            since += sum(self.waves[number].panels.values()) + self.waves[number].output

    def _kept(self, since: float) -> float:
        """Returns the part that is left of bytes after which ``since`` others were used."""
        least, most = (1 - SPREAD) * self.capacity, (1 + SPREAD) * self.capacity
        return 1.0 if since < least else max(0.0, (most - since) / (most - least)) if since < most else 0.0


def _inside(index: int, size: int, extent: int) -> int:
    """Returns the rows or columns of a tile inside C."""
    return max(0, min(size, extent - index * size))


def _bytes(panel: Panel, tiles: Tiles) -> float:
    what, index = panel
    size, extent = (tiles.rows, tiles.m) if what == "A" else (tiles.columns, tiles.n)
    return _inside(index, size, extent) * tiles.k * tiles.element
