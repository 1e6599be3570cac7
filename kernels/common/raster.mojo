"""The order in which the tiles of C are computed, in units of cluster tiles.

Tiles that are computed at the same time share rows of A and of B in the L2 cache, most when they cover a square. So C
is cut into groups of `group` columns of tiles, and each group is walked along M: all of its columns in one row, then the
next row. The walk goes down in the first group, up in the second, and so on, so that the tiles after a turn find the
rows of A that were used last. With a group of 1 it goes down one column and up the next.
"""


@fieldwise_init
struct Place(TrivialRegisterPassable):
    """Of a cluster tile, counted in cluster tiles."""

    var row: UInt32
    var column: UInt32


@inline(.always)
def place(group: UInt32, number: UInt32, rows: UInt32, columns: UInt32) -> Place:
    """Where tile `number` of `rows * columns` lies."""
    var turn = number // (group * rows)
    var inside = number - turn * group * rows
    var first = turn * group
    var width = min(group, columns - first)  # the last group may be narrower
    var row = inside // width
    return Place(row if turn % 2 == 0 else rows - 1 - row, first + inside - row * width)
