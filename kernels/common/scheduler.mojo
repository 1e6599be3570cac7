"""The tile scheduler: which tile of C a CTA computes, which one comes next, and how a cluster fetches it."""
from .config import GemmConfig
from .cta import Cta, Problem, Tile
from .global_memory import increment_counter
from .launch_control import NOTHING_CANCELED, canceled_cluster_x, store_async, try_cancel
from .pipeline import CONSUMER, PRODUCER, Pipeline, address_in
from .ptx import fence_proxy_async, load_shared, store_shared
from .raster import Raster
from .responses import *
from .schedule import *
from max.gpu import block_idx, grid_dim
from max.gpu.primitives.cluster import elect_one_sync
from max.gpu.sync import syncwarp

comptime RESPONSE_BYTES = UInt32(16)
"""Bytes of a response of cluster launch control."""

comptime TILE_NUMBER_BYTES = UInt32(4)
"""Bytes of a response of the dynamic schedule: the number of a tile."""


trait TileOrder(TrivialRegisterPassable):
    """What the numbers that a schedule gives stand for."""

    comptime waits_for_previous_grid: Bool
    """The tiles depend on what the previous grid writes."""

    def count(self) -> UInt32:
        """Returns how many numbers there are."""
        ...

    def has(self, number: UInt32) -> Bool:
        """There is a tile of this number, to which `advance` has moved."""
        ...

    def advance(mut self, number: UInt32):
        """Moves to this number, which is larger than the last one."""
        ...

    def place(mut self, number: UInt32, row: Int32, column: Int32, mut tile: Tile):
        """Places the tile of a CTA whose part of a cluster tile begins at this row and column."""
        ...


struct RasterOrder[config: GemmConfig](TileOrder):
    """The numbers are those of the raster."""

    comptime waits_for_previous_grid = False

    var raster: Raster

    @inline(.always)
    def __init__(out self, problem: Problem):
        self.raster = {UInt32(Self.config.raster_group), problem.clusters_m, problem.clusters_n}

    @inline(.always)
    def count(self) -> UInt32:
        return self.raster.rows * self.raster.columns

    @inline(.always)
    def has(self, number: UInt32) -> Bool:
        return number < self.count()

    @inline(.always)
    def advance(mut self, number: UInt32):
        pass

    @inline(.always)
    def place(mut self, number: UInt32, row: Int32, column: Int32, mut tile: Tile):
        var found = self.raster.place(number)
        tile.row = Int32(found.row) * Int32(Self.config.cluster_rows()) + row
        tile.column = Int32(found.column) * Int32(Self.config.cluster_columns()) + column


struct TileScheduler[config: GemmConfig, Order: TileOrder = RasterOrder[config]](TrivialRegisterPassable):
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
    var row: Int32  # of the CTA's part of a cluster tile
    var column: Int32
    var order: Self.Order
    var responses: Pipeline[max(1, Self.config.response_slots)]

    @inline(.always)
    def __init__(out self, cta: Cta[Self.config], problem: Problem, order: Self.Order):
        """Starts with the first tile. A CTA calls this before it initialises barriers, to hide the divisions."""
        comptime cluster_m = UInt32(Self.config.cluster_m)
        self.number = 0
        self.row = 0
        self.column = 0
        self.order = order
        self.responses = responses(cta, CONSUMER)
        # The grid has a CTA for each tile; z counts bands along M (LaunchPlan).
        var row = (Int32(block_idx.z) * Int32(grid_dim.x) + Int32(block_idx.x)) * Int32(Self.config.cta_m())
        var column = Int32(block_idx.y) * Int32(Self.config.mma_n)
        self.tile = {row, column, Int32(problem.m), 0}
        comptime if Self.config.kernel.is_persistent:
            self.number = UInt32(block_idx.x) // cluster_m
            self.row = Int32(cta.rank % cluster_m) * Int32(Self.config.cta_m())
            self.column = Int32(cta.rank // cluster_m) * Int32(Self.config.mma_n)
            comptime if not Self.Order.waits_for_previous_grid:
                self.order.place(self.number, self.row, self.column, self.tile)

    @inline(.always)
    def find_first_tile(mut self):
        """Finds the first tile if it depends on the previous grid, which has ended."""
        comptime if Self.Order.waits_for_previous_grid:
            self.locate_tile()

    @inline(.always)
    def has_tile(self) -> Bool:
        """There is a current tile; otherwise this CTA has computed all of its tiles."""
        return self.order.has(self.number)

    @inline(.always)
    def wait_for_next_tile[*, whole_warp: Bool = False](mut self, cta: Cta[Self.config]):
        """Advances to the next tile. If one thread fetches tiles, this waits for its response and releases it. One
        thread or a whole warp calls this."""
        comptime if Self.config.is_static():
            self.number += launched_clusters[Self.config]()
        elif Self.config.fetches_tiles():
            self.number = self.next_response[whole_warp](cta)
        else:
            self.number = self.order.count()
        comptime if Self.config.scheduler != "none":
            self.locate_tile()

    @inline(.always)
    def next_response[whole_warp: Bool](mut self, cta: Cta[Self.config]) -> UInt32:
        """Waits for a response, reads it and releases it, at rank 0 or, with a counter, at this CTA's thread that
        collects releases. Returns the number of the next tile, or `count` or more if there is none."""
        comptime collects = Self.config.counts_tiles()
        var response = response_address(cta, self.responses.stage)
        var number: UInt32
        comptime if Self.config.cancels_clusters():
            self.responses.consumer_wait()
            var x = canceled_cluster_x(response)
            fence_proxy_async()  # the async proxy writes the next response: only after this read
            number = self.order.count() if x == NOTHING_CANCELED else x // UInt32(Self.config.cluster_m)
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
        """Finds the tile of the current number, if there is one."""
        self.order.advance(self.number)
        if self.has_tile():
            self.order.place(self.number, self.row, self.column, self.tile)


@inline(.always)
def launched_clusters[config: GemmConfig]() -> UInt32:
    """Returns the number of clusters of a persistent launch (LaunchPlan)."""
    return UInt32(grid_dim.x) // UInt32(config.cluster_m)


@inline(.always)
def request_tiles[config: GemmConfig, Order: TileOrder, //](cta: Cta[config], var tiles: TileScheduler[config, Order]):
    """Requests tile after tile from the hardware as response slots become empty, up to `clc_depth` ahead of the slowest
    role. One thread of every CTA calls this: each announces the bytes, rank 0 sends the requests."""
    var slots = responses(cta, PRODUCER)
    while tiles.has_tile():
        slots.full().arrive_and_expect(RESPONSE_BYTES)
        if cta.rank == 0:
            slots.producer_acquire()
            try_cancel[config.cluster_size() > 1](response_address(cta, slots.stage), slots.full().address)
        slots.advance()
        tiles.wait_for_next_tile(cta)


@inline(.always)
def fetch_tiles[
    config: GemmConfig, Order: TileOrder, //
](cta: Cta[config], tiles: TileScheduler[config, Order], workspace: UInt64):
    """Runs the dynamic schedule, whose counter is the first word of the workspace. One thread of every CTA calls this.
    """
    if cta.rank == 0:
        fetch_from_counter(cta, tiles, workspace)
    else:
        collect_releases(cta, tiles)


@inline(.always)
def fetch_from_counter[
    config: GemmConfig, Order: TileOrder, //
](cta: Cta[config], tiles: TileScheduler[config, Order], workspace: UInt64):
    """Takes number after number from the counter as response slots become empty, and sends each to every CTA of the
    cluster. One thread of rank 0 calls this; one thread of each CTA announces the bytes.

    Each cluster starts with a tile that it does not fetch, and its last fetch gives no tile. So a launch takes exactly
    as many numbers as it has tiles; the counter wraps there and is 0 for the next launch."""
    var slots = responses(cta, PRODUCER)
    var number = tiles.number
    while number < tiles.order.count():
        # After this wait, the phase of the last response is over; before, that phase would count the announced bytes.
        slots.empty().wait_acquire(slots.parity)
        comptime if config.cluster_size() > 1:
            slots.full().arrive_and_expect(TILE_NUMBER_BYTES)
        number = launched_clusters[config]() + increment_counter(workspace, tiles.order.count() - 1)
        var response = response_address(cta, slots.stage)
        comptime if config.cluster_size() > 1:
            comptime for rank in range(UInt32(config.cluster_size())):
                store_async(address_in(response, rank), number, slots.full().in_cta(rank).address)
        else:  # st.async needs a cluster of more than one CTA
            store_shared(response, number)
            slots.full().in_cta(0).arrive()
        slots.advance()
    slots.producer_tail()


@inline(.always)
def collect_releases[config: GemmConfig, Order: TileOrder, //](cta: Cta[config], tiles: TileScheduler[config, Order]):
    """Signals rank 0 when all roles of this CTA have read a response. One thread of every other CTA calls this.

    The roles could signal rank 0 themselves. But their reads must come before a write of another CTA, which needs a
    release at cluster scope; it would delay the consumers at each tile, while this thread has nothing else to do.
    """
    var slots = responses(cta, CONSUMER)
    var number = tiles.number
    while number < tiles.order.count():
        slots.full().arrive_and_expect(TILE_NUMBER_BYTES)
        slots.full().wait_acquire(slots.parity)
        number = load_shared(response_address(cta, slots.stage))
        slots.empty().wait(slots.parity)
        slots.empty().in_cta(0).arrive_release()
        slots.advance()
