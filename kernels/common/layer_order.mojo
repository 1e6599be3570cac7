"""The order of the tiles of kernels 8 and 9: with split-K, numbers stand for parts of tiles; with groups, for tiles of
one group after the other."""
from .cta import Problem, Tile
from .groups import Group
from .layer import Groups
from .layer_config import LayerConfig
from .raster import Raster
from .scheduler import TileOrder, TileScheduler

comptime LayerTiles[config: LayerConfig] = TileScheduler[config.gemm, LayerOrder[config]]


struct LayerOrder[config: LayerConfig](TileOrder):
    """Walks through the parts of all tiles, or through the groups."""

    comptime waits_for_previous_grid = Self.config.grouped

    var problem: Problem
    var groups: Groups
    var raster: Raster
    var group: Group[Self.config]
    var moved: Bool  # to another group, with the last number

    @inline(.always)
    def __init__(out self, problem: Problem, groups: Groups):
        self.problem = problem
        self.groups = groups
        self.raster = {UInt32(Self.config.gemm.raster_group), problem.clusters_m, problem.clusters_n}
        self.group = {}
        self.moved = False

    @inline(.always)
    def count(self) -> UInt32:
        var tiles = self.problem.clusters_m * self.problem.clusters_n
        comptime if Self.config.splits_k():
            tiles *= UInt32(Self.config.split_k)
        return tiles

    @inline(.always)
    def has(self, number: UInt32) -> Bool:
        comptime if Self.config.grouped:
            return self.group.number < self.groups.count
        return number < self.count()

    @inline(.always)
    def advance(mut self, number: UInt32):
        comptime if Self.config.grouped:
            self.moved = self.group.seek(number, self.groups, self.problem.clusters_n)

    @inline(.always)
    def place(mut self, number: UInt32, row: Int32, column: Int32, mut tile: Tile):
        var inside = number
        comptime if Self.config.splits_k():
            inside //= UInt32(Self.config.split_k)
        comptime if Self.config.grouped:
            if self.moved:
                comptime width = UInt32(Self.config.gemm.raster_group)
                self.raster = {width, self.group.tile_rows(), self.problem.clusters_n}
            inside -= self.group.first_tile
        var found = self.raster.place(inside)
        tile.row = Int32(found.row) * Int32(Self.config.gemm.cluster_rows()) + row
        tile.column = Int32(found.column) * Int32(Self.config.gemm.cluster_columns()) + column
        comptime if Self.config.grouped:
            tile.row += Int32(self.group.first_row)
            tile.end = Int32(self.group.end_row)
            tile.which_b = self.group.number

    @inline(.always)
    def k_part(self, number: UInt32) -> UInt32:
        """Returns which part of K this is. The parts of a tile have consecutive numbers."""
        return number % UInt32(Self.config.split_k)

    @inline(.always)
    def first_k_step(self, number: UInt32) -> UInt32:
        """Returns the first K step of this part of K."""
        return self.k_part(number) * self.problem.k_iterations // UInt32(Self.config.split_k)

    @inline(.always)
    def k_steps(self, number: UInt32) -> UInt32:
        """Returns the number of K steps of this tile: all, or with split-K those of this part, which may differ by
        one."""
        comptime if Self.config.splits_k():
            var end = (self.k_part(number) + 1) * self.problem.k_iterations // UInt32(Self.config.split_k)
            return end - self.first_k_step(number)
        return self.problem.k_iterations
