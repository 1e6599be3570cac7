"""Kernel 6 of sm_90a: a ring of stages and specialised warpgroups. Loads and multiplication overlap.

    warpgroups 0, 1   consumers   multiply the stages, half of the rows each: wait on full barriers; write C
    warpgroup 2       producer    one thread fills stages by TMA: waits on empty barriers

The way of a stage: the producers of all CTAs that share a tile each load one slice of it and multicast it. Every CTA
that receives a slice counts its bytes on its own full barrier. Its consumers wait for them and multiply. When they have
read the stage, one thread of each consumer warpgroup arrives at the empty barrier of every CTA that wrote into it. A
producer writes a stage again only after all consumers that read its slices have arrived.

A tile of 64 rows has one consumer warpgroup."""
from ..common.config import GemmConfig
from ..common.cta import Cta, Problem, Tile
from ..common.epilogue_store import write_tile
from ..common.producer import produce_tile
from .warpgroup import warp_of_group, warpgroup
from .epilogue import Epilogue
from .mainloop import Consumer, consume_one_tile, skip_one_tile
from max.gpu.intrinsics import warpgroup_reg_alloc, warpgroup_reg_dealloc
from max.gpu.primitives.cluster import elect_one_sync

comptime PRODUCER_REGISTERS = 24
comptime CONSUMER_REGISTERS = 240
"""Registers of a thread after the producer has given most of its own to two consumers (PTX ISA 9.7.19.5). An SM has 64
K registers, 512 for one thread of all warpgroups together. A single consumer has enough without this."""


@inline(.always)
def is_producer[config: GemmConfig](cta: Cta[config]) -> Bool:
    """This thread belongs to the producer warpgroup."""
    return warpgroup(cta) == UInt32(config.consumers)


@inline(.always)
def give_registers[config: GemmConfig]():
    """Gives registers to the consumers. The producer warpgroup calls this."""
    comptime if config.consumers == 2:
        warpgroup_reg_dealloc[PRODUCER_REGISTERS]()


@inline(.always)
def take_registers[config: GemmConfig]():
    """Waits for registers of the producer, and takes them. The consumer warpgroups call this."""
    comptime if config.consumers == 2:
        warpgroup_reg_alloc[CONSUMER_REGISTERS]()


@inline(.always)
def kernel6[config: GemmConfig](cta: Cta[config], problem: Problem, tile: Tile):
    """Runs all roles of a CTA after `start` (start.mojo)."""
    if is_producer(cta):
        give_registers[config]()
        if warp_of_group(cta) == 0:
            if elect_one_sync():
                produce_tile(cta, problem, tile)
    else:
        take_registers[config]()
        var consumer = Consumer[config](cta)
        if consumer.owns_rows(tile, problem):
            var accumulator = consume_one_tile(cta, consumer, problem.k_iterations)
            write_tile[config](Epilogue[config](cta, tile, accumulator), problem.c)
        else:
            skip_one_tile(cta, consumer, problem.k_iterations)
