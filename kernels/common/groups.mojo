"""Grouped GEMM: one launch multiplies the rows of many groups, each with its own B.

    A [sum of sizes, K]   the groups' rows one after the other, without padding; C [sum of sizes, N] likewise
    B [groups * N, K]     that of each group, one after the other

`masked`, each group has as many rows of A and C in memory, M / groups, of which its size says how many count: the first. The
others are not stored, and nothing else is different.

The sizes lie in global memory, as the kernel before may have computed them: the host knows how many there are and what they
add up to. Tiles are numbered group after group, and no tile has rows of two groups, so a group has
ceil(size / rows of a cluster tile) rows of tiles, an empty one none. Every role walks forward through the sizes as its
numbers grow.

The last tile of a group reads rows of the next one, which nobody stores: C is described by a tensor map of *windows*. A
window has the rows of one box and begins a row further than the one before, the first as many rows before C. What a box has
beyond the end of its window is not stored, so a box of which only `inside` rows belong to the group is put that many rows
before the end of the window that ends with the group. Nothing is stored beyond the windows, whatever the sizes are.
"""
from .config import GemmConfig
from .ptx import load_number
from std.math import ceildiv

comptime MOST_GROUPS = 1024
"""Every CTA walks through the sizes of all groups before its tiles."""


@fieldwise_init
struct Groups(TrivialRegisterPassable):
    """The groups of a launch."""

    var sizes: UInt64  # address of their rows, a word of 4 bytes each
    var count: UInt32  # 0: not grouped
    var apart: UInt32  # masked: rows from the first of a group to the first of the next


comptime NO_GROUPS = Groups(0, 0, 0)


struct Group[config: GemmConfig](TrivialRegisterPassable):
    """One group: which tiles and which rows are its own."""

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
        """The rows of cluster tiles that the group has along M."""
        return ceildiv(self.end_row - self.first_row, UInt32(Self.config.cluster_rows()))

    @inline(.always)
    def seek(mut self, tile: UInt32, groups: Groups, tiles_across: UInt32) -> Bool:
        """Goes forward to the group of this tile, or behind the last group. Returns whether the group has changed."""
        var moved = tile >= self.end_tile
        while tile >= self.end_tile:
            self.number += 1
            if self.number >= groups.count:
                break
            self.first_tile = self.end_tile
            self.first_row = self.number * groups.apart if Self.config.masked else self.end_row
            self.end_row = self.first_row + load_number(groups.sizes + 4 * UInt64(self.number))
            self.end_tile += self.tile_rows() * tiles_across
        return moved
