"""Which part of C a CTA computes, which part comes next, and how a cluster fetches it for all of its roles."""
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
    mbarrier_arrive_expect_tx,
    mbarrier_arrive_release,
    mbarrier_wait,
    mbarrier_wait_acquire,
    next_number,
    store_async,
    store_shared,
    try_cancel,
)
from .raster import Raster
from .ring import Ring
from max.gpu import block_idx, grid_dim
from max.gpu.primitives.cluster import elect_one_sync
from max.gpu.sync import syncwarp

comptime TILE_NUMBER_BYTES = UInt32(4)
"""Size of a response of the dynamic schedule: the number of a tile."""


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
        clc      a cluster is launched for each tile; those that run take the tiles of those that have not started
        dynamic  cluster c gets tile c first; each further number comes from a counter that all clusters share

    With the last two, responses form a ring like the stages: a thread of rank 0 waits until a slot is empty in all
    CTAs, and requests a tile; the response is written to every CTA of the cluster, and completes the CTA's full
    barrier; every role reads it there, and arrives on the empty barrier. The last response grants nothing: no request
    follows it, and no CTA exits before it has arrived. `request_tiles` and `fetch_tiles` send the requests.
    """

    var tile: Tile  # the current one, if there is one
    var number: UInt32  # of the cluster tile
    var problem: Problem
    var in_cluster: Tile  # where the CTA lies in a cluster tile
    var raster: Raster
    var responses: Ring[max(1, Self.config.response_slots())]

    @inline(.always)
    def __init__(out self, cta: Cta[Self.config], problem: Problem):
        """Starts with the first tile. Needs no barrier: made before them, the divisions cost no time."""
        comptime cluster_m = UInt32(Self.config.cluster_m)
        self.problem = problem
        self.number = 0
        self.in_cluster = {0, 0}
        self.raster = {UInt32(Self.config.raster_group), problem.clusters_m, problem.clusters_n}
        self.responses = {parity = 0}
        self.tile = {
            # The grid is the tiles; z counts its bands along M: LaunchPlan
            (Int32(block_idx.z) * Int32(grid_dim.x) + Int32(block_idx.x)) * Int32(Self.config.cta_m()),
            Int32(block_idx.y) * Int32(Self.config.mma_n),
        }
        comptime if Self.config.is_persistent():
            self.number = UInt32(block_idx.x) // cluster_m
            self.in_cluster = {
                Int32(cta.rank % cluster_m) * Int32(Self.config.cta_m()),
                Int32(cta.rank // cluster_m) * Int32(Self.config.mma_n),
            }
            self.find()

    @inline(.always)
    def count(self) -> UInt32:
        comptime if Self.config.is_persistent():
            return self.problem.clusters_m * self.problem.clusters_n
        return 1

    @inline(.always)
    def has_tile(self) -> Bool:
        return self.number < self.count()

    @inline(.always)
    def cluster_is_out_of_bounds(self) -> Bool:
        """Whether no CTA of the cluster owns a row of C: the last band goes on where C ends, if C has no whole bands.
        """
        comptime if Self.config.is_persistent() or Self.config.band_m == 0:
            return False
        comptime cluster_m = UInt32(Self.config.cluster_m)
        var first = UInt32(block_idx.z) * UInt32(grid_dim.x) + UInt32(block_idx.x) // cluster_m * cluster_m
        return Int32(first) * Int32(Self.config.cta_m()) >= Int32(self.problem.m)

    @inline(.always)
    def advance[*, whole_warp: Bool = False](mut self, cta: Cta[Self.config]):
        """To the next tile. One thread, or a whole warp."""
        comptime if Self.config.is_static():
            self.number += launched_clusters[Self.config]()
        elif Self.config.fetches_tiles():
            self.number = self.next_response[whole_warp](cta)
        else:
            self.number = self.count()
        comptime if Self.config.scheduler != "none":
            if self.has_tile():
                self.find()

    @inline(.always)
    def next_response[whole_warp: Bool](mut self, cta: Cta[Self.config]) -> UInt32:
        """The number of the next tile, or one that no tile has."""
        var slot = self.responses.stage
        var number: UInt32
        comptime if Self.config.cancels_clusters():
            mbarrier_wait(cta.response_full(slot), self.responses.parity)
            var x = canceled_x(cta.response(slot))
            fence_proxy_async()  # the next response is written by the async proxy: not before this read
            number = self.count() if x == NOTHING_CANCELED else x // UInt32(Self.config.cluster_m)
        else:
            mbarrier_wait_acquire(cta.response_full(slot), self.responses.parity)  # sent by a thread of another CTA
            number = load_shared(cta.response(slot))
        comptime if whole_warp:
            syncwarp()
            if elect_one_sync():
                self.release_response(cta, slot)
            syncwarp()
        else:
            self.release_response(cta, slot)
        self.responses.advance()
        return number

    @inline(.always)
    def release_response(self, cta: Cta[Self.config], slot: UInt32):
        """Arrives on the empty barrier of a response: at rank 0, or at the thread that collects releases for its CTA.
        """
        comptime collects = Self.config.counts_tiles()
        mbarrier_arrive_cluster(address_in(cta.response_empty(slot), cta.rank if collects else 0))

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


@inline(.always)
def request_tiles[config: GemmConfig](cta: Cta[config], var tiles: TileScheduler[config]):
    """Requests tile after tile from the hardware as response slots become empty: up to `clc_depth` ahead of the slowest role.
    One thread of every CTA: each announces the bytes on its own full barrier, that of rank 0 sends the requests."""
    var slots = Ring[config.response_slots()](parity=1)
    while tiles.has_tile():
        mbarrier_arrive_expect_tx(cta.response_full(slots.stage), 16)
        if cta.rank == 0:
            mbarrier_wait(cta.response_empty(slots.stage), slots.parity)
            try_cancel[config.cluster_size() > 1](cta.response(slots.stage), cta.response_full(slots.stage))
        slots.advance()
        tiles.advance(cta)


@inline(.always)
def fetch_tiles[config: GemmConfig](cta: Cta[config], tiles: TileScheduler[config]):
    """Runs the dynamic schedule. One thread of every CTA."""
    if cta.rank == 0:
        fetch_from_counter(cta, tiles)
    else:
        collect_releases(cta, tiles)


@inline(.always)
def fetch_from_counter[config: GemmConfig](cta: Cta[config], tiles: TileScheduler[config]):
    """Takes number after number from the counter as response slots become empty, and sends it to every CTA of the
    cluster. One thread of rank 0; in each CTA one announces the bytes.

    Each cluster begins with a tile that it need not fetch, and gets none once. So a launch takes exactly as many
    numbers as there are tiles, and the counter, which wraps there, is 0 again for the next launch.
    """
    var slots = Ring[config.response_slots()](parity=1)
    var number = tiles.number
    while number < tiles.count():
        # All roles have read the last response, so its phase is over: earlier, the bytes would be announced to that one.
        mbarrier_wait_acquire(cta.response_empty(slots.stage), slots.parity)
        comptime if config.cluster_size() > 1:
            mbarrier_arrive_expect_tx(cta.response_full(slots.stage), TILE_NUMBER_BYTES)
        number = launched_clusters[config]() + next_number(tiles.problem.counter, tiles.count() - 1)
        comptime if config.cluster_size() > 1:
            comptime for rank in range(config.cluster_size()):
                store_async(
                    address_in(cta.response(slots.stage), UInt32(rank)),
                    number,
                    address_in(cta.response_full(slots.stage), UInt32(rank)),
                )
        else:  # st.async is for clusters of more than one CTA
            store_shared(cta.response(slots.stage), number)
            mbarrier_arrive_cluster(address_in(cta.response_full(slots.stage), 0))
        slots.advance()
    # Drain: the last arrivals of other CTAs must not find this one gone.
    comptime for _ in range(config.response_slots()):
        mbarrier_wait(cta.response_empty(slots.stage), slots.parity)
        slots.advance()


@inline(.always)
def collect_releases[config: GemmConfig](cta: Cta[config], tiles: TileScheduler[config]):
    """Signals rank 0 when the roles of this CTA have read a response. One thread of another CTA.

    The roles could signal it themselves. But what they read must come before what rank 0 writes, in another CTA: that
    takes a fence of cluster scope, which would hold up the consumers at each tile, and holds up nobody here.
    """
    var slots = Ring[config.response_slots()](parity=0)
    var number = tiles.number
    while number < tiles.count():
        mbarrier_arrive_expect_tx(cta.response_full(slots.stage), TILE_NUMBER_BYTES)
        mbarrier_wait_acquire(cta.response_full(slots.stage), slots.parity)
        number = load_shared(cta.response(slots.stage))
        mbarrier_wait(cta.response_empty(slots.stage), slots.parity)
        mbarrier_arrive_release(address_in(cta.response_empty(slots.stage), 0))
        slots.advance()
