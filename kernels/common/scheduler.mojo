"""The tile scheduler: which tile of C a CTA computes, which one comes next, and how a cluster fetches it."""
from .config import GemmConfig
from .cta import Cta, Problem, Tile
from .groups import Group
from .pipeline import CONSUMER, PRODUCER, Pipeline, address_in
from .ptx import (
    NOTHING_CANCELED,
    canceled_cluster_x,
    fence_proxy_async,
    load_shared,
    increment_counter,
    store_async,
    store_shared,
    try_cancel,
)
from .raster import Raster
from max.gpu import block_idx, grid_dim
from max.gpu.primitives.cluster import elect_one_sync
from max.gpu.sync import syncwarp

comptime RESPONSE_BYTES = UInt32(16)
"""Bytes of a response of cluster launch control."""

comptime TILE_NUMBER_BYTES = UInt32(4)
"""Bytes of a response of the dynamic schedule: the number of a tile."""


struct TileScheduler[config: GemmConfig](TrivialRegisterPassable):
    """Gives a CTA its tiles, one after the other. Every role of every CTA of a cluster has its own scheduler, and all
    of them give the same tiles.

        none     the launch has a cluster for each tile
        static   cluster c of n computes the tiles c, c + n, c + 2n, ...
        clc      the launch has a cluster for each tile; running clusters take the tiles of those that have not started
        dynamic  cluster c computes tile c first; a counter that all clusters share gives each further number

    With the last two, responses form a ring like the stages. A thread of rank 0 waits until a slot is empty in all
    CTAs, and requests a tile. Every CTA of the cluster receives the response, which completes its full barrier; every
    role reads it and arrives at the empty barrier. The last response grants no tile: no request follows it, and no CTA
    exits before it has arrived. `request_tiles` and `fetch_tiles` send the requests."""

    var tile: Tile  # the current tile, if `has_tile`
    var number: UInt32  # of the current cluster tile
    var problem: Problem
    var row: Int32  # of the CTA's part of a cluster tile
    var column: Int32
    var raster: Raster
    var group: Group[Self.config]
    var responses: Pipeline[max(1, Self.config.response_slots())]

    @inline(.always)
    def __init__(out self, cta: Cta[Self.config], problem: Problem):
        """Starts with the first tile. A CTA calls this before it initialises barriers, to hide the divisions."""
        comptime cluster_m = UInt32(Self.config.cluster_m)
        self.problem = problem
        self.number = 0
        self.row = 0
        self.column = 0
        self.raster = {UInt32(Self.config.raster_group), problem.clusters_m, problem.clusters_n}
        self.group = {}
        self.responses = cta.responses(CONSUMER)
        # The grid has a CTA for each tile; z counts bands along M (LaunchPlan).
        var row = (Int32(block_idx.z) * Int32(grid_dim.x) + Int32(block_idx.x)) * Int32(Self.config.cta_m())
        var column = Int32(block_idx.y) * Int32(Self.config.mma_n)
        self.tile = {row, column, Int32(problem.m), 0}
        comptime if Self.config.kernel.is_persistent:
            self.number = UInt32(block_idx.x) // cluster_m
            self.row = Int32(cta.rank % cluster_m) * Int32(Self.config.cta_m())
            self.column = Int32(cta.rank // cluster_m) * Int32(Self.config.mma_n)
            comptime if not Self.config.grouped:
                self.locate_tile()

    @inline(.always)
    def find_first_grouped_tile(mut self):
        """Finds the first tile of a grouped problem, after the previous grid, which may compute the sizes."""
        comptime if Self.config.grouped:
            self.locate_tile()

    @inline(.always)
    def tile_count(self) -> UInt32:
        """Returns the number of cluster tiles; with split-K, of their parts."""
        comptime if Self.config.kernel.is_persistent:
            var tiles = self.problem.clusters_m * self.problem.clusters_n
            comptime if Self.config.splits_k():
                tiles *= UInt32(Self.config.split_k)
            return tiles
        return 1

    @inline(.always)
    def k_part(self) -> UInt32:
        """Returns which part of K this is. The parts of a tile have consecutive numbers."""
        return self.number % UInt32(Self.config.split_k)

    @inline(.always)
    def first_k_step(self) -> UInt32:
        """Returns the first K step of this part of K."""
        return self.k_part() * self.problem.k_iterations // UInt32(Self.config.split_k)

    @inline(.always)
    def k_steps(self, all: UInt32) -> UInt32:
        """Returns the number of K steps: `all`, or with split-K those of this part, which may differ by one."""
        comptime if Self.config.splits_k():
            var end = (self.k_part() + 1) * self.problem.k_iterations // UInt32(Self.config.split_k)
            return end - self.first_k_step()
        return all

    @inline(.always)
    def has_tile(self) -> Bool:
        """There is a current tile; otherwise this CTA has computed all of its tiles."""
        comptime if Self.config.grouped:
            return self.group.number < self.problem.layer.groups.count
        return self.number < self.tile_count()

    @inline(.always)
    def cluster_is_out_of_bounds(self) -> Bool:
        """No CTA of the cluster has a row of C: if the bands do not divide C, the last one reaches beyond it."""
        comptime if Self.config.kernel.is_persistent or Self.config.band_m == 0:
            return False
        comptime cluster_m = UInt32(Self.config.cluster_m)
        var first = UInt32(block_idx.z) * UInt32(grid_dim.x) + UInt32(block_idx.x) // cluster_m * cluster_m
        return Int32(first) * Int32(Self.config.cta_m()) >= Int32(self.problem.m)

    @inline(.always)
    def wait_for_next_tile[*, whole_warp: Bool = False](mut self, cta: Cta[Self.config]):
        """Advances to the next tile. If one thread fetches tiles, this waits for its response and releases it. One
        thread or a whole warp calls this."""
        comptime if Self.config.is_static():
            self.number += launched_clusters[Self.config]()
        elif Self.config.fetches_tiles():
            self.number = self.next_response[whole_warp](cta)
        else:
            self.number = self.tile_count()
        comptime if Self.config.grouped:
            self.locate_tile()
        elif Self.config.scheduler != "none":
            if self.has_tile():
                self.locate_tile()

    @inline(.always)
    def next_response[whole_warp: Bool](mut self, cta: Cta[Self.config]) -> UInt32:
        """Waits for a response, reads it and releases it, at rank 0 or, with a counter, at this CTA's thread that
        collects releases. Returns the number of the next tile, or `tile_count` or more if there is none."""
        comptime collects = Self.config.counts_tiles()
        var response = cta.response(self.responses.stage)
        var number: UInt32
        comptime if Self.config.cancels_clusters():
            self.responses.consumer_wait()
            var x = canceled_cluster_x(response)
            fence_proxy_async()  # the async proxy writes the next response: only after this read
            number = self.tile_count() if x == NOTHING_CANCELED else x // UInt32(Self.config.cluster_m)
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
    def locate_tile(mut self):
        """Finds the tile of the current number; with groups there may be none."""
        comptime rows = Int32(Self.config.cluster_rows())
        comptime columns = Int32(Self.config.cluster_columns())
        var tile = self.number
        comptime if Self.config.splits_k():
            tile //= UInt32(Self.config.split_k)
        comptime if Self.config.grouped:
            var moved = self.group.seek(tile, self.problem.layer.groups, self.problem.clusters_n)
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
    """Returns the number of clusters of a persistent launch (LaunchPlan)."""
    return UInt32(grid_dim.x) // UInt32(config.cluster_m)


@inline(.always)
def request_tiles[config: GemmConfig](cta: Cta[config], var tiles: TileScheduler[config]):
    """Requests tile after tile from the hardware as response slots become empty, up to `clc_depth` ahead of the slowest
    role. One thread of every CTA calls this: each announces the bytes, rank 0 sends the requests."""
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
    """Runs the dynamic schedule. One thread of every CTA calls this."""
    if cta.rank == 0:
        fetch_from_counter(cta, tiles)
    else:
        collect_releases(cta, tiles)


@inline(.always)
def fetch_from_counter[config: GemmConfig](cta: Cta[config], tiles: TileScheduler[config]):
    """Takes number after number from the counter as response slots become empty, and sends each to every CTA of the
    cluster. One thread of rank 0 calls this; one thread of each CTA announces the bytes.

    Each cluster starts with a tile that it does not fetch, and its last fetch gives no tile. So a launch takes exactly
    as many numbers as it has tiles; the counter wraps there and is 0 for the next launch."""
    var responses = cta.responses(PRODUCER)
    var number = tiles.number
    while number < tiles.tile_count():
        # After this wait, the phase of the last response is over; before, that phase would count the announced bytes.
        responses.empty().wait_acquire(responses.parity)
        comptime if config.cluster_size() > 1:
            responses.full().arrive_and_expect(TILE_NUMBER_BYTES)
        number = launched_clusters[config]() + increment_counter(tiles.problem.layer.workspace, tiles.tile_count() - 1)
        var response = cta.response(responses.stage)
        comptime if config.cluster_size() > 1:
            comptime for rank in range(UInt32(config.cluster_size())):
                store_async(address_in(response, rank), number, responses.full().in_cta(rank).address)
        else:  # st.async needs a cluster of more than one CTA
            store_shared(response, number)
            responses.full().in_cta(0).arrive()
        responses.advance()
    responses.producer_tail()


@inline(.always)
def collect_releases[config: GemmConfig](cta: Cta[config], tiles: TileScheduler[config]):
    """Signals rank 0 when all roles of this CTA have read a response. One thread of every other CTA calls this.

    The roles could signal rank 0 themselves. But their reads must come before a write of another CTA, which needs a
    release at cluster scope; it would delay the consumers at each tile, while this thread has nothing else to do.
    """
    var responses = cta.responses(CONSUMER)
    var number = tiles.number
    while number < tiles.tile_count():
        responses.full().arrive_and_expect(TILE_NUMBER_BYTES)
        responses.full().wait_acquire(responses.parity)
        number = load_shared(cta.response(responses.stage))
        responses.empty().wait(responses.parity)
        responses.empty().in_cta(0).arrive_release()
        responses.advance()
