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
from ..common.config import GemmConfig
from ..common.epilogues import *
from ..common.cta import Cta, Problem
from ..common.epilogue_store import finish_stores, write_double_buffered, write_step
from ..common.pipeline import CONSUMER
from ..common.scheduler import TileScheduler, fetch_tiles
from ..common.split_k import Partial
from ..common.tile_producer import produce_tiles
from .cta import sync_warpgroup, warp_of_group
from .epilogue import Epilogue, apply_epilogue
from .kernel6 import give_registers, is_producer, take_registers
from .mainloop import Consumer, SideJob, finish_tile, skip_tile, start_tile
from .ping_pong import consume_ping_pong
from .quantise import quantise
from .wgmma import Accumulator
from max.gpu.primitives.cluster import elect_one_sync


struct DeferredEpilogue[config: GemmConfig](SideJob, TrivialRegisterPassable):
    """Writes the last finished tile, step by step, while the next one is multiplied."""

    comptime steps = Self.config.epilogue_steps() if Self.config.defers_epilogue() else 0

    var c_map: UInt64
    var epilogue: Epilogue[Self.config]
    var pending: Bool  # there is a tile to write

    @inline(.always)
    def __init__(out self, c_map: UInt64, epilogue: Epilogue[Self.config]):
        self.c_map = c_map
        self.epilogue = epilogue
        self.pending = False

    @inline(.always)
    def begin(mut self, epilogue: Epilogue[Self.config]):
        """Takes the next tile to write. The last one must have been written."""
        self.epilogue = epilogue
        self.pending = True

    @inline(.always)
    def run[step: Int](self):
        if self.pending:
            write_step[Self.config, step](self.epilogue, self.epilogue.read[step](), self.c_map)

    @inline(.always)
    def finish(self):
        """Writes the last tile, which no main loop follows."""
        if self.pending:
            write_double_buffered[Self.config](self.epilogue, self.c_map)


@inline(.always)
def store_and_add_parts[
    config: GemmConfig
](cta: Cta[config], partial: Partial[config], mut accumulator: Accumulator[config], group: UInt32) -> Bool:
    """Stores the partial sums of a tile for split-K. If this part is last, adds all parts and returns True."""
    comptime A = Accumulator[config]
    comptime for block in range(A.blocks):
        comptime for i in range(0, A.registers, 4):
            var values = accumulator.values[block]
            partial.store[block * A.registers + i]({values[i], values[i + 1], values[i + 2], values[i + 3]})
    sync_warpgroup(group)
    partial.arrive(warp_of_group(cta) == 0)
    sync_warpgroup(group)
    if not partial.is_last():
        return False
    comptime batch = 32 if A.registers % 32 == 0 else 8
    comptime for first in range(0, A.blocks * A.registers, batch):
        var sums = partial.load[first, batch](0)
        for part in range(UInt32(1), UInt32(config.split_k)):
            sums += partial.load[first, batch](part)
        comptime for i in range(batch):
            accumulator.values[first // A.registers][first % A.registers + i] = sums[i]
    return True


@inline(.always)
def write_and_multiply[config: GemmConfig](cta: Cta[config], problem: Problem, var tiles: TileScheduler[config]):
    """Multiplies tile after tile, and writes each while it multiplies the next. A consumer warpgroup calls this."""
    var consumer = Consumer[config](cta)
    var stages = cta.stages(CONSUMER)
    var deferred = DeferredEpilogue[config](problem.c, Epilogue[config](cta, tiles.tile, Accumulator[config]()))
    while tiles.has_tile():
        var tile = tiles.tile
        var k_steps = tiles.k_steps(problem.k_iterations)
        var partial = Partial[config](cta, problem, tiles, consumer.group, warp_of_group(cta) * 32 + cta.lane)
        if consumer.owns_rows(tile, problem):
            var accumulator = Accumulator[config]()
            var last = start_tile(cta, consumer, accumulator, stages, k_steps, deferred)
            tiles.wait_for_next_tile[whole_warp=True](cta)  # while the last stages are multiplied
            finish_tile(consumer, accumulator, last)
            comptime if config.splits_k():
                if not store_and_add_parts(cta, partial, accumulator, consumer.group):
                    continue
            comptime if config.is_fused():
                accumulator = apply_epilogue(cta, tile, accumulator, problem.layer.operands_of(tile.group))
            comptime if config.quantises():
                accumulator = quantise(cta, tile, accumulator, problem)
            var epilogue = Epilogue[config](cta, tile, accumulator, problem.layer.operands.alpha)
            comptime if config.defers_epilogue():
                deferred.begin(epilogue)
            else:
                write_double_buffered[config](epilogue, problem.c)
        else:
            skip_tile(cta, consumer, stages, k_steps)
            tiles.wait_for_next_tile[whole_warp=True](cta)
    deferred.finish()
    finish_stores(deferred.epilogue.leads())


@inline(.always)
def kernel8[config: GemmConfig](cta: Cta[config], problem: Problem, tiles: TileScheduler[config]):
    """Runs all roles of a CTA after `start`."""
    if is_producer(cta):
        give_registers[config]()
        if warp_of_group(cta) == 0:
            if elect_one_sync():
                produce_tiles(cta, problem, tiles)
        comptime if config.counts_tiles():
            if warp_of_group(cta) == 1:
                if elect_one_sync():
                    fetch_tiles(cta, tiles)
    else:
        take_registers[config]()
        comptime if config.ping_pong:
            consume_ping_pong(cta, problem, tiles)
        else:
            write_and_multiply(cta, problem, tiles)
