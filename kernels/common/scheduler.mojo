"""Which part of C a CTA computes, which part comes next, and how a cluster fetches it for all of its roles."""
from .config import GemmConfig
from .cta import Cta, Problem, Tile
from .groups import Group
from .pipeline import CONSUMER, PRODUCER, Pipeline, address_in
from .ptx import (
    NOTHING_CANCELED,
    canceled_x,
    fence_proxy_async,
    load_shared,
    next_number,
    store_async,
    store_shared,
    try_cancel,
)
from .raster import Raster
from max.gpu import block_idx, grid_dim
from max.gpu.primitives.cluster import elect_one_sync
from max.gpu.sync import syncwarp

comptime RESPONSE_BYTES = UInt32(16)
"""Size of a response of cluster launch control."""

comptime TILE_NUMBER_BYTES = UInt32(4)
"""Size of a response of the dynamic schedule: the number of a tile."""


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
    var row: Int32  # of the CTA in a cluster tile
    var column: Int32
    var raster: Raster
    var group: Group[Self.config]
    var responses: Pipeline[max(1, Self.config.response_slots())]

    @inline(.always)
    def __init__(out self, cta: Cta[Self.config], problem: Problem):
        """Starts with the first tile. Needs no barrier: made before them, the divisions cost no time."""
        comptime cluster_m = UInt32(Self.config.cluster_m)
        self.problem = problem
        self.number = 0
        self.row = 0
        self.column = 0
        self.raster = {UInt32(Self.config.raster_group), problem.clusters_m, problem.clusters_n}
        self.group = {}
        self.responses = cta.responses(CONSUMER)
        # The grid is the tiles; z counts its bands along M: LaunchPlan
        var row = (Int32(block_idx.z) * Int32(grid_dim.x) + Int32(block_idx.x)) * Int32(Self.config.cta_m())
        var column = Int32(block_idx.y) * Int32(Self.config.mma_n)
        self.tile = {row, column, Int32(problem.m), 0}
        comptime if Self.config.kernel.is_persistent:
            self.number = UInt32(block_idx.x) // cluster_m
            self.row = Int32(cta.rank % cluster_m) * Int32(Self.config.cta_m())
            self.column = Int32(cta.rank // cluster_m) * Int32(Self.config.mma_n)
            comptime if not Self.config.grouped:
                self.find()

    @inline(.always)
    def begin(mut self):
        """Finds the first tile of grouped problems, after the launch before, which may have computed their sizes."""
        comptime if Self.config.grouped:
            self.find()

    @inline(.always)
    def count(self) -> UInt32:
        """The number of cluster tiles; with split-K, of their parts."""
        comptime if Self.config.kernel.is_persistent:
            var tiles = self.problem.clusters_m * self.problem.clusters_n
            comptime if Self.config.splits_k():
                tiles *= UInt32(Self.config.split_k)
            return tiles
        return 1

    @inline(.always)
    def part(self) -> UInt32:
        """Which part of K this is. The parts of a tile follow one another."""
        return self.number % UInt32(Self.config.split_k)

    @inline(.always)
    def first_k_step(self) -> UInt32:
        return self.part() * self.problem.k_iterations // UInt32(Self.config.split_k)

    @inline(.always)
    def k_steps(self, all: UInt32) -> UInt32:
        """The K steps of the tile, out of all of K; with split-K, of its part. Some parts have one more than others."""
        comptime if Self.config.splits_k():
            var end = (self.part() + 1) * self.problem.k_iterations // UInt32(Self.config.split_k)
            return end - self.first_k_step()
        return all

    @inline(.always)
    def has_tile(self) -> Bool:
        comptime if Self.config.grouped:
            return self.group.number < self.problem.groups.count
        return self.number < self.count()

    @inline(.always)
    def cluster_is_out_of_bounds(self) -> Bool:
        """Whether no CTA of the cluster owns a row of C: the last band goes on where C ends, if C has no whole bands.
        """
        comptime if Self.config.kernel.is_persistent or Self.config.band_m == 0:
            return False
        comptime cluster_m = UInt32(Self.config.cluster_m)
        var first = UInt32(block_idx.z) * UInt32(grid_dim.x) + UInt32(block_idx.x) // cluster_m * cluster_m
        return Int32(first) * Int32(Self.config.cta_m()) >= Int32(self.problem.m)

    @inline(.always)
    def wait_for_next_tile[*, whole_warp: Bool = False](mut self, cta: Cta[Self.config]):
        """Goes to the next tile. Where one thread fetches tiles, this waits for its response and releases it. One thread, or a
        whole warp."""
        comptime if Self.config.is_static():
            self.number += launched_clusters[Self.config]()
        elif Self.config.fetches_tiles():
            self.number = self.next_response[whole_warp](cta)
        else:
            self.number = self.count()
        comptime if Self.config.grouped:
            self.find()
        elif Self.config.scheduler != "none":
            if self.has_tile():
                self.find()

    @inline(.always)
    def next_response[whole_warp: Bool](mut self, cta: Cta[Self.config]) -> UInt32:
        """The number of the next tile, or one that no tile has: waits for a response, reads it, and releases it, at rank 0
        or with a counter at the thread that collects releases for its CTA."""
        comptime collects = Self.config.counts_tiles()
        var response = cta.response(self.responses.stage)
        var number: UInt32
        comptime if Self.config.cancels_clusters():
            self.responses.consumer_wait()
            var x = canceled_x(response)
            fence_proxy_async()  # the next response is written by the async proxy: not before this read
            number = self.count() if x == NOTHING_CANCELED else x // UInt32(Self.config.cluster_m)
        else:
            self.responses.full().wait_acquire(self.responses.parity)  # sent by a thread of another CTA
            number = load_shared(response)
        comptime if whole_warp:
            syncwarp()
            if elect_one_sync():
                self.responses.empty().in_cta(cta.rank if collects else 0).arrive()
            syncwarp()
        else:
            self.responses.empty().in_cta(cta.rank if collects else 0).arrive()
        self.responses.advance()
        return number

    @inline(.always)
    def find(mut self):
        """Finds the tile with the current number; with groups there may be none."""
        comptime rows = Int32(Self.config.cluster_rows())
        comptime columns = Int32(Self.config.cluster_columns())
        var tile = self.number
        comptime if Self.config.splits_k():
            tile //= UInt32(Self.config.split_k)
        comptime if Self.config.grouped:
            var moved = self.group.seek(tile, self.problem.groups, self.problem.clusters_n)
            if not self.has_tile():
                return
            if moved:
                self.raster = {UInt32(Self.config.raster_group), self.group.tile_rows(), self.problem.clusters_n}
            tile -= self.group.first_tile
        var found = self.raster.place(tile)
        self.tile.row = Int32(found.row) * rows + self.row
        self.tile.column = Int32(found.column) * columns + self.column
        comptime if Self.config.grouped:
            self.tile.row += Int32(self.group.first_row)
            self.tile.end = Int32(self.group.end_row)
            self.tile.group = self.group.number


@inline(.always)
def launched_clusters[config: GemmConfig]() -> UInt32:
    """The clusters of the launch, where tiles have numbers: LaunchPlan."""
    return UInt32(grid_dim.x) // UInt32(config.cluster_m)


@inline(.always)
def request_tiles[config: GemmConfig](cta: Cta[config], var tiles: TileScheduler[config]):
    """Requests tile after tile from the hardware as response slots become empty: up to `clc_depth` ahead of the slowest role.
    One thread of every CTA: each announces the bytes on its own full barrier, that of rank 0 sends the requests."""
    var responses = cta.responses(PRODUCER)
    while tiles.has_tile():
        responses.full().arrive_and_expect(RESPONSE_BYTES)
        if cta.rank == 0:
            responses.producer_acquire()
            try_cancel[config.cluster_size() > 1](cta.response(responses.stage), responses.full().address)
        responses.advance()
        tiles.wait_for_next_tile(cta)


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
    var responses = cta.responses(PRODUCER)
    var number = tiles.number
    while number < tiles.count():
        # All roles have read the last response, so its phase is over: earlier, the bytes would be announced to that one.
        responses.empty().wait_acquire(responses.parity)
        comptime if config.cluster_size() > 1:
            responses.full().arrive_and_expect(TILE_NUMBER_BYTES)
        number = launched_clusters[config]() + next_number(tiles.problem.workspace, tiles.count() - 1)
        var response = cta.response(responses.stage)
        comptime if config.cluster_size() > 1:
            comptime for rank in range(UInt32(config.cluster_size())):
                store_async(address_in(response, rank), number, responses.full().in_cta(rank).address)
        else:  # st.async is for clusters of more than one CTA
            store_shared(response, number)
            responses.full().in_cta(0).arrive()
        responses.advance()
    responses.producer_tail()


@inline(.always)
def collect_releases[config: GemmConfig](cta: Cta[config], tiles: TileScheduler[config]):
    """Signals rank 0 when the roles of this CTA have read a response. One thread of another CTA.

    The roles could signal it themselves. But what they read must come before what rank 0 writes, in another CTA: that
    takes a fence of cluster scope, which would hold up the consumers at each tile, and holds up nobody here.
    """
    var responses = cta.responses(CONSUMER)
    var number = tiles.number
    while number < tiles.count():
        responses.full().arrive_and_expect(TILE_NUMBER_BYTES)
        responses.full().wait_acquire(responses.parity)
        number = load_shared(cta.response(responses.stage))
        responses.empty().wait(responses.parity)
        responses.empty().in_cta(0).arrive_release()
        responses.advance()
