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

    var tile: Tile  # the current one, if there is one
    var number: UInt32  # of the cluster tile
    var problem: Problem
    var in_cluster: Tile  # where the CTA lies in a cluster tile

    @inline(.always)
    def __init__(out self, cta: Cta[Self.config], problem: Problem):
        """Starts with the first tile. Needs no barrier: made before them, the divisions cost no time."""
        comptime cluster_m = UInt32(Self.config.cluster_m)
        self.problem = problem
        self.number = 0
        self.in_cluster = {0, 0}
        self.tile = {
            # The grid is the tiles; z counts its bands along M: LaunchPlan
            (Int32(block_idx.z) * Int32(grid_dim.x) + Int32(block_idx.x)) * Int32(Self.config.cta_m()),
            Int32(block_idx.y) * Int32(Self.config.mma_n),
        }
        comptime if Self.config.walks_tiles():
            self.number = UInt32(block_idx.x) // cluster_m
            self.in_cluster = {
                Int32(cta.rank % cluster_m) * Int32(Self.config.cta_m()),
                Int32(cta.rank // cluster_m) * Int32(Self.config.mma_n),
            }
            self.find()

    @inline(.always)
    def count(self) -> UInt32:
        comptime if Self.config.walks_tiles():
            return self.problem.clusters_m * self.problem.clusters_n
        return 1

    @inline(.always)
    def has_tile(self) -> Bool:
        return self.number < self.count()

    @inline(.always)
    def advance(mut self):
        comptime if Self.config.is_static():
            self.number += UInt32(grid_dim.x) // UInt32(Self.config.cluster_m)
            if self.has_tile():
                self.find()
        else:
            self.number = self.count()

    @inline(.always)
    def find(mut self):
        """The tile with the current number."""
        comptime rows = Int32(Self.config.cluster_m * Self.config.cta_m())
        comptime columns = Int32(Self.config.cluster_n * Self.config.mma_n)
        comptime group = UInt32(Self.config.raster_group)
        var found = place(group, self.number, self.problem.clusters_m, self.problem.clusters_n)
        self.tile = {
            Int32(found.row) * rows + self.in_cluster.row,
            Int32(found.column) * columns + self.in_cluster.column,
        }
