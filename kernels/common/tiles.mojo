"""Which part of C a CTA computes, and which part it computes next."""
from .config import GemmConfig
from .cta import Cta
from .problem import Problem
from .ptx import (
    NOTHING_CANCELED,
    address_in,
    canceled_x,
    fence_proxy_async,
    load_shared,
    mbarrier_arrive_cluster,
    mbarrier_wait,
    mbarrier_wait_acquire,
)
from .raster import Raster
from .ring import Ring
from max.gpu import block_idx, grid_dim
from max.gpu.primitives.cluster import elect_one_sync
from max.gpu.sync import syncwarp


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
        clc      a cluster is launched for each tile; those that run ask for the tiles of those that have not started
        dynamic  cluster c gets tile c first; each further number comes from a counter that all clusters share

    With the last two, an answer goes round like a stage: a thread of rank 0 waits until its slot is empty in all CTAs,
    and asks; the answer comes to every CTA of the cluster, on the CTA's full barrier; every role reads it there, and
    says so on the empty barrier. The last answer grants nothing: nobody asks again, and nobody ends before it has
    arrived. Who asks is in answers.mojo.
    """

    var tile: Tile  # the current one, if there is one
    var number: UInt32  # of the cluster tile
    var problem: Problem
    var in_cluster: Tile  # where the CTA lies in a cluster tile
    var raster: Raster
    var answers: Ring[max(1, Self.config.answers())]

    @inline(.always)
    def __init__(out self, cta: Cta[Self.config], problem: Problem):
        """Starts with the first tile. Needs no barrier: made before them, the divisions cost no time."""
        comptime cluster_m = UInt32(Self.config.cluster_m)
        self.problem = problem
        self.number = 0
        self.in_cluster = {0, 0}
        self.raster = {UInt32(Self.config.raster_group), problem.clusters_m, problem.clusters_n}
        self.answers = {parity = 0}
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
    def lies_below(self) -> Bool:
        """Whether no CTA of the cluster has a row of C: the last band goes on where C ends, if C has no whole bands."""
        comptime if Self.config.walks_tiles() or Self.config.band_m == 0:
            return False
        comptime cluster_m = UInt32(Self.config.cluster_m)
        var first = UInt32(block_idx.z) * UInt32(grid_dim.x) + UInt32(block_idx.x) // cluster_m * cluster_m
        return Int32(first) * Int32(Self.config.cta_m()) >= Int32(self.problem.m)

    @inline(.always)
    def advance[*, whole_warp: Bool = False](mut self, cta: Cta[Self.config]):
        """To the next tile. One thread, or a whole warp."""
        comptime if Self.config.is_static():
            self.number += launched_clusters[Self.config]()
        elif Self.config.asks_for_tiles():
            self.number = self.next_answer[whole_warp](cta)
        else:
            self.number = self.count()
        comptime if Self.config.scheduler != "none":
            if self.has_tile():
                self.find()

    @inline(.always)
    def next_answer[whole_warp: Bool](mut self, cta: Cta[Self.config]) -> UInt32:
        """The number of the next tile, or one that no tile has."""
        var slot = self.answers.stage
        var number: UInt32
        comptime if Self.config.cancels_clusters():
            mbarrier_wait(cta.answer_full(slot), self.answers.parity)
            var x = canceled_x(cta.answer(slot))
            fence_proxy_async()  # the next answer is written by the async proxy: not before this read
            number = self.count() if x == NOTHING_CANCELED else x // UInt32(Self.config.cluster_m)
        else:
            mbarrier_wait_acquire(cta.answer_full(slot), self.answers.parity)  # sent by a thread of another CTA
            number = load_shared(cta.answer(slot))
        comptime if whole_warp:
            syncwarp()
            if elect_one_sync():
                self.hand_back(cta, slot)
            syncwarp()
        else:
            self.hand_back(cta, slot)
        self.answers.advance()
        return number

    @inline(.always)
    def hand_back(self, cta: Cta[Self.config], slot: UInt32):
        """The answer has been read. Rank 0 hears of it, at once or through the thread that collects for its CTA."""
        comptime collects = Self.config.counts_tiles()
        mbarrier_arrive_cluster(address_in(cta.answer_empty(slot), cta.rank if collects else 0))

    @inline(.always)
    def find(mut self):
        """The tile with the current number."""
        comptime rows = Int32(Self.config.cluster_rows())
        comptime columns = Int32(Self.config.cluster_columns())
        var found = self.raster.place(self.number)
        self.tile = {
            Int32(found.row) * rows + self.in_cluster.row,
            Int32(found.column) * columns + self.in_cluster.column,
        }


@inline(.always)
def launched_clusters[config: GemmConfig]() -> UInt32:
    """Where tiles have numbers: LaunchPlan."""
    return UInt32(grid_dim.x) // UInt32(config.cluster_m)
