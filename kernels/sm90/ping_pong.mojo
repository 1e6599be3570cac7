"""The consumers of kernel 8 in turn: while one warpgroup multiplies its tile, the other writes its own.

    warpgroup 0   multiplies tile 0 | writes tile 0      | multiplies tile 2 | ...
    warpgroup 1                     | multiplies tile 1  | writes tile 1     | ...

A tile is half as large as when two warpgroups share it, so its operands are read more often. But a write-out needs no
registers beside an accumulator's, and where a CTA has few tiles, only the last half-sized one is written with the tensor
core idle.

The order matters beyond speed. A warpgroup passes by the stages of the other's tiles without looking at their barriers,
which tell odd from even rounds and no more. So it begins its tile once the other has seen all its stages full: from then
on each stage is in the last round before its own, or in its own.
"""
from ..common.config import GemmConfig
from ..common.cta import Cta
from ..common.problem import Problem
from ..common.ring import Ring
from ..common.tiles import TileScheduler
from ..common.write_out import finish_stores, write_in_turns
from .cta import WARPGROUP, warp_of_group, warpgroup
from .epilogue import Epilogue
from .mainloop import Consumer, NoSideJob, finish_tile, pass_by_tile, start_tile
from .wgmma import Accumulator
from max.gpu.sync import named_barrier, named_barrier_arrive

comptime BOTH = Int32(2 * WARPGROUP * 32)
comptime FIRST_TURN = Int32(3)
"""Named barriers from here on, one for each warpgroup: 1 and 2 belong to their write-outs."""


@fieldwise_init
struct Turn(TrivialRegisterPassable):
    """Of one warpgroup to multiply. All threads of the warpgroup."""

    var group: UInt32

    @inline(.always)
    def wait(self):
        """Until the other warpgroup has given it."""
        named_barrier[BOTH](FIRST_TURN + Int32(self.group))

    @inline(.always)
    def give(self):
        """To the other warpgroup."""
        named_barrier_arrive[BOTH](FIRST_TURN + Int32(1 - self.group))


@inline(.always)
def take_turns[config: GemmConfig](cta: Cta[config], problem: Problem, var tiles: TileScheduler[config]):
    """A consumer warpgroup: every second tile of the CTA."""
    var consumer = Consumer[config](cta)
    var ring = Ring[config.stages](parity=0)
    var turn = Turn(warpgroup(cta))
    if turn.group == 1:
        turn.give()
        ring.skip(problem.k_iterations)
        tiles.advance(cta)
    while tiles.has_tile():
        turn.wait()
        if consumer.has_part(tiles.tile, problem):
            var accumulator = Accumulator[config]()
            var last = start_tile(cta, consumer, accumulator, ring, problem.k_iterations, NoSideJob())
            turn.give()
            finish_tile(consumer, accumulator, last)
            var epilogue = Epilogue[config](cta, tiles.tile, accumulator)
            write_in_turns[config](epilogue, problem.c)
        else:
            pass_by_tile(cta, consumer, ring, problem.k_iterations)
            turn.give()
        ring.skip(problem.k_iterations)
        tiles.advance(cta)
        tiles.advance(cta)
    finish_stores(warp_of_group(cta) == 0)
