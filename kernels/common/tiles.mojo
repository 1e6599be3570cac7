"""Which part of C a CTA computes, and which part it computes next."""
from .config import GemmConfig
from .cta import Cta
from .problem import Problem
from .raster import place
from max.gpu import block_idx, grid_dim


@fieldwise_init
struct Tile(TrivialRegisterPassable):
    """Where a CTA works in C. With a CTA pair the columns are those of the MMA they share."""

    var row: Int32  # first row of A and of C
    var column: Int32  # first column of C, first row of B of the MMA


struct TileScheduler[config: GemmConfig](TrivialRegisterPassable):
    """Hands a CTA its tiles, one after the other. Every role of a CTA has its own and gets the same tiles from it, as
    does every CTA of a cluster.

        none     one tile: a cluster is launched for each
        static   cluster c of n gets the tiles c, c + n, c + 2n, ...
    """

    var number: UInt32  # of the cluster tile
    var count: UInt32
    var rows: UInt32
    var columns: UInt32
    var place_in_cluster: Tile

    @inline(.always)
    def __init__(out self, cta: Cta[Self.config], problem: Problem):
        comptime cluster_m = UInt32(Self.config.cluster_m)
        self.rows = problem.clusters_m
        self.columns = problem.clusters_n
        self.number = 0
        self.count = 1
        comptime if Self.config.walks_tiles():
            self.number = UInt32(block_idx.x) // cluster_m
            self.count = self.rows * self.columns
            self.place_in_cluster = {
                Int32(cta.rank % cluster_m) * Int32(Self.config.cta_m()),
                Int32(cta.rank // cluster_m) * Int32(Self.config.mma_n),
            }
        else:
            # The grid is the tiles; z counts its bands along M: LaunchPlan
            self.place_in_cluster = {
                (Int32(block_idx.z) * Int32(grid_dim.x) + Int32(block_idx.x)) * Int32(Self.config.cta_m()),
                Int32(block_idx.y) * Int32(Self.config.mma_n),
            }

    @inline(.always)
    def has_tile(self) -> Bool:
        return self.number < self.count

    @inline(.always)
    def tile(self) -> Tile:
        comptime if Self.config.walks_tiles():
            var found = place[Self.config.raster_group](self.number, self.rows, self.columns)
            comptime rows = Int32(Self.config.cluster_m * Self.config.cta_m())
            comptime columns = Int32(Self.config.cluster_n * Self.config.mma_n)
            return {
                Int32(found.row) * rows + self.place_in_cluster.row,
                Int32(found.column) * columns + self.place_in_cluster.column,
            }
        else:
            return self.place_in_cluster

    @inline(.always)
    def advance(mut self):
        comptime if Self.config.is_static():
            self.number += UInt32(grid_dim.x) // UInt32(Self.config.cluster_m)
        else:
            self.number = self.count
