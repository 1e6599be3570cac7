"""Grouped GEMM: one launch multiplies the rows of many groups, each with its own B.

    A [sum of sizes, K]   the rows of all groups, one group after the other, without padding; C [sum of sizes, N]: same
    B [groups * N, K]     the B of all groups, one after the other

With `masked`, every group has M / groups rows of A and C in memory. Its size says how many of them, from the first on,
are multiplied and stored.

The sizes lie in global memory, because a previous kernel may compute them. The host knows only their number and their
sum. Tiles are numbered group by group, and no tile has rows of two groups: a group has ceil(size / rows of a cluster
tile) rows of tiles, an empty group has none. Every role walks forward through the sizes as its tile numbers grow.

The last tile of a group also computes rows of the next group, which must not be stored. So the tensor map of C
describes overlapping *windows*: each has the rows of one box and begins one row after the previous window. The first
one ends where C begins. TMA does not store what a box has beyond the end of its window. A box with `inside` rows of the
group is therefore stored to the window that ends with the group, `inside` rows before its end. No size can make TMA
store outside of the windows."""
from .layer import Groups
from .layer_config import LayerConfig
from .global_memory import load_global_u32
from std.math import ceildiv

comptime MOST_GROUPS = 1024
"""The most groups of a launch. Every CTA reads the sizes of all groups before its tiles."""


struct Group[config: LayerConfig](TrivialRegisterPassable):
    """One group: its tiles and its rows."""

    var number: UInt32
    var first_tile: UInt32
    var end_tile: UInt32
    var first_row: UInt32
    var end_row: UInt32

    @inline(.always)
    def __init__(out self):
        """Begins before the first group."""
        self.number = ~UInt32(0)
        self.first_tile = 0
        self.end_tile = 0
        self.first_row = 0
        self.end_row = 0

    @inline(.always)
    def tile_rows(self) -> UInt32:
        """Returns how many cluster tiles the group has along M."""
        return ceildiv(self.end_row - self.first_row, UInt32(Self.config.gemm.cluster_rows()))

    @inline(.always)
    def seek(mut self, tile: UInt32, groups: Groups, tiles_across: UInt32) -> Bool:
        """Advances to the group of this tile, or past the last group. Returns whether the group has changed."""
        var moved = tile >= self.end_tile
        while tile >= self.end_tile:
            self.number += 1
            if self.number >= groups.count:
                break
            self.first_tile = self.end_tile
            self.first_row = self.number * groups.row_stride if Self.config.masked else self.end_row
            self.end_row = self.first_row + load_global_u32(groups.sizes + 4 * UInt64(self.number))
            self.end_tile += self.tile_rows() * tiles_across
        return moved
