"""The raster: the order in which a kernel computes the cluster tiles of C.

Tiles that are computed at the same time share rows of A and of B in the L2 cache, most when they cover a square. So the
raster divides C into groups of `group` columns of tiles and walks each group along M: all of its columns in one row,
then the next row. It goes down in the first group, up in the second, and so on, so that the tiles after a turn reuse
the last rows of A. With a group of 1, it goes down one column and up the next."""


@fieldwise_init
struct Place(TrivialRegisterPassable):
    """The position of a cluster tile in C, in units of cluster tiles."""

    var row: UInt32
    var column: UInt32


struct FastDivmod(TrivialRegisterPassable):
    """A divisor with its reciprocal. On an H200, a division takes 180 cycles, `div` takes 30."""

    var value: UInt32
    var reciprocal: UInt32  # 2^32 / value or a little less

    @inline(.always)
    def __init__(out self, value: UInt32):
        self.value = value
        self.reciprocal = UInt32.MAX // value

    @inline(.always)
    def div(self, number: UInt32) -> UInt32:
        """Returns number / value, rounded down."""
        # number / value - 1 < number * reciprocal / 2^32 <= number / value
        var quotient = UInt32(UInt64(number) * UInt64(self.reciprocal) >> 32)
        return quotient + 1 if number - quotient * self.value >= self.value else quotient


struct Raster(TrivialRegisterPassable):
    """The order of `rows * columns` cluster tiles."""

    var rows: UInt32
    var columns: UInt32
    var tiles_of_group: FastDivmod
    var full: FastDivmod  # columns of a group
    var narrow: FastDivmod  # of the last one, if it has fewer

    @inline(.always)
    def __init__(out self, group: UInt32, rows: UInt32, columns: UInt32):
        self.rows = rows
        self.columns = columns
        self.tiles_of_group = {group * rows}
        self.full = {group}
        self.narrow = {max(UInt32(1), columns % group)}

    @inline(.always)
    def place(self, number: UInt32) -> Place:
        """Returns the position of tile `number`."""
        var turn = self.tiles_of_group.div(number)
        var inside = number - turn * self.tiles_of_group.value
        var first = turn * self.full.value
        var width = self.full if first + self.full.value <= self.columns else self.narrow
        var row = width.div(inside)
        return Place(row if turn % 2 == 0 else self.rows - 1 - row, first + inside - row * width.value)
