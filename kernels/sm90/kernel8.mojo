"""Kernel 8 of sm_90a: kernel 7 as a persistent kernel, with the epilogue of a tile during the next one's main loop.

    warpgroups 0, 1   consumers   multiply tile after tile, half of the rows each; meanwhile write the previous tile
    warpgroup 2       producer    one thread fills stages by TMA, and runs ahead into the next tile; with the dynamic
                                  schedule a thread of another warp fetches tiles

The ring of stages is that of kernel 6, and continues across tiles. When a consumer warpgroup has finished a tile, it
converts it to the type of C (with 16 bits, 64 registers of a thread, not 128) and starts the next tile at once; the
tensor core idles only during this conversion. After each K step that it has started, it writes one step of the old
tile: registers, shared memory, TMA store. If the two tiles do not fit together into registers (`defers_epilogue`), it
writes the old tile first. Each warpgroup does this by itself; the other may be some stages ahead.

Every role has its own TileScheduler; all give the same tiles. With `ping_pong`, the consumers take them in turn
(ping_pong.mojo)."""
from ..common.cta import Cta, Problem
from ..common.epilogue_store import finish_stores, write_double_buffered, write_step
from ..common.layer import Layer
from ..common.layer_config import LayerConfig
from ..common.layer_order import LayerTiles
from ..common.pipeline import CONSUMER
from ..common.schedule import *
from ..common.scheduler import fetch_tiles
from ..common.split_k import Partial
from ..common.tile_producer import produce_tiles
from .kernel6 import give_registers, is_producer, take_registers
from .layer_epilogue import LayerEpilogue, ScaledSums, finished, store_and_add_parts
from .mainloop import SideJob, skip_tile, start_tile
from .ping_pong import consume_ping_pong
from .promotion import LayerConsumer
from .warpgroup import warp_of_group
from .wgmma import Accumulator
from max.gpu.primitives.cluster import elect_one_sync


struct DeferredEpilogue[config: LayerConfig](SideJob, TrivialRegisterPassable):
    """Writes the last finished tile, step by step, while the next one is multiplied."""

    comptime steps = Self.config.gemm.epilogue_steps() if Self.config.defers_epilogue() else 0

    var c_map: UInt64
    var epilogue: LayerEpilogue[Self.config]
    var pending: Bool  # there is a tile to write

    @inline(.always)
    def __init__(out self, c_map: UInt64, epilogue: LayerEpilogue[Self.config]):
        self.c_map = c_map
        self.epilogue = epilogue
        self.pending = False

    @inline(.always)
    def begin(mut self, epilogue: LayerEpilogue[Self.config]):
        """Takes the next tile to write. The last one must have been written."""
        self.epilogue = epilogue
        self.pending = True

    @inline(.always)
    def run[step: Int](self):
        if self.pending:
            write_step[Self.config.gemm, step](self.epilogue, self.epilogue.read[step](), self.c_map)

    @inline(.always)
    def finish(self):
        """Writes the last tile, which no main loop follows."""
        if self.pending:
            write_double_buffered[Self.config.gemm](self.epilogue, self.c_map)


@inline(.always)
def write_and_multiply[
    config: LayerConfig
](cta: Cta[config.gemm], problem: Problem, layer: Layer, var tiles: LayerTiles[config]):
    """Multiplies tile after tile, and writes each while it multiplies the next. A consumer warpgroup calls this."""
    var consumer = LayerConsumer[config](cta)
    var stages = cta.stages(CONSUMER)
    var nothing = LayerEpilogue[config](cta, tiles.tile, ScaledSums[config](Accumulator[config.gemm](), 1))
    var deferred = DeferredEpilogue[config](problem.c, nothing)
    while tiles.has_tile():
        var tile = tiles.tile
        var k_steps = tiles.order.k_steps(tiles.number)
        var partial = Partial[config](cta, problem, tiles, consumer.plain.group, warp_of_group(cta) * 32 + cta.lane)
        if consumer.plain.owns_rows(tile, problem):
            var accumulator = Accumulator[config.gemm]()
            var last = start_tile(consumer, accumulator, stages, k_steps, deferred)
            tiles.wait_for_next_tile[whole_warp=True](cta)  # while the last stages are multiplied
            consumer.finish_tile(accumulator, last)
            comptime if config.splits_k():
                if not store_and_add_parts(cta, partial, accumulator, consumer.plain.group):
                    continue
            var epilogue = finished[config](cta, tile, accumulator, problem, layer)
            comptime if config.defers_epilogue():
                deferred.begin(epilogue)
            else:
                write_double_buffered[config.gemm](epilogue, problem.c)
        else:
            skip_tile(consumer.plain, stages, k_steps)
            tiles.wait_for_next_tile[whole_warp=True](cta)
    deferred.finish()
    finish_stores(deferred.epilogue.leads())


@inline(.always)
def kernel8[config: LayerConfig](cta: Cta[config.gemm], problem: Problem, layer: Layer, tiles: LayerTiles[config]):
    """Runs all roles of a CTA after `start` (start.mojo)."""
    if is_producer(cta):
        give_registers[config.gemm]()
        if warp_of_group(cta) == 0:
            if elect_one_sync():
                produce_tiles(cta, problem, layer, tiles)
        comptime if config.gemm.counts_tiles():
            if warp_of_group(cta) == 1:
                if elect_one_sync():
                    fetch_tiles(cta, tiles, problem.workspace)
    else:
        take_registers[config.gemm]()
        comptime if config.ping_pong:
            consume_ping_pong(cta, problem, layer, tiles)
        else:
            write_and_multiply(cta, problem, layer, tiles)
