"""Ping-pong consumers of kernel 8: while one warpgroup multiplies its tile, the other writes its own.

    warpgroup 0   multiplies tile 0 | writes tile 0      | multiplies tile 2 | ...
    warpgroup 1                     | multiplies tile 1  | writes tile 1     | ...

A tile is half as large as one that two warpgroups share, so the kernel reads operands more often. But an epilogue needs
only the registers of an accumulator, and if a CTA has few tiles, the tensor core idles only for the epilogue of its
last, half-sized tile.

Correctness needs the order too. A warpgroup skips the stages of the other's tiles without a wait on their barriers, and
the parity only tells odd phases from even ones. So a warpgroup begins its tile after the other has seen all of its
stages full: from then on each barrier is in the phase that the warpgroup waits for, or in the one before."""
from ..common.cta import Cta, Problem
from ..common.epilogue_store import finish_stores, write_double_buffered
from ..common.layer import Layer
from ..common.layer_config import LayerConfig
from ..common.layer_order import LayerTiles
from ..common.pipeline import CONSUMER, Pipeline
from .layer_epilogue import finished
from .mainloop import NoSideJob, skip_tile, start_tile
from .promotion import LayerConsumer
from .warpgroup import WARPGROUP_WARPS, warp_of_group, warpgroup
from .wgmma import Accumulator
from max.gpu.sync import named_barrier, named_barrier_arrive

comptime BOTH_WARPGROUPS = Int32(2 * WARPGROUP_WARPS * 32)
comptime FIRST_ORDER_BARRIER = Int32(3)
"""The first of two named barriers, one for each warpgroup. Barriers 1 and 2 belong to their epilogues."""


__extension Pipeline:
    @inline(.always)
    def skip(mut self, count: UInt32):
        """Moves `count` stages further."""
        var place = self.stage + count
        self.parity ^= place // UInt32(Self.stages) & 1
        self.stage = place % UInt32(Self.stages)


@fieldwise_init
struct OrderBarrier(TrivialRegisterPassable):
    """Passes the tensor core from one warpgroup to the other. All threads of the warpgroup use it."""

    var group: UInt32

    @inline(.always)
    def wait(self):
        """Waits until the other warpgroup has arrived."""
        named_barrier[BOTH_WARPGROUPS](FIRST_ORDER_BARRIER + Int32(self.group))

    @inline(.always)
    def arrive(self):
        """Lets the other warpgroup multiply."""
        named_barrier_arrive[BOTH_WARPGROUPS](FIRST_ORDER_BARRIER + Int32(1 - self.group))


@inline(.always)
def consume_ping_pong[
    config: LayerConfig
](cta: Cta[config.gemm], problem: Problem, layer: Layer, var tiles: LayerTiles[config]):
    """Multiplies and writes every second tile of the CTA. A consumer warpgroup calls this."""
    var consumer = LayerConsumer[config](cta)
    var stages = cta.stages(CONSUMER)
    var order = OrderBarrier(warpgroup(cta))
    if order.group == 1:
        order.arrive()
        stages.skip(problem.k_iterations)
        tiles.wait_for_next_tile(cta)
    while tiles.has_tile():
        order.wait()
        if consumer.plain.owns_rows(tiles.tile, problem):
            var accumulator = Accumulator[config.gemm]()
            var last = start_tile(consumer, accumulator, stages, problem.k_iterations, NoSideJob())
            order.arrive()
            consumer.finish_tile(accumulator, last)
            var epilogue = finished[config](cta, tiles.tile, accumulator, problem, layer)
            write_double_buffered[config.gemm](epilogue, problem.c)
        else:
            skip_tile(consumer.plain, stages, problem.k_iterations)
            order.arrive()
        stages.skip(problem.k_iterations)
        tiles.wait_for_next_tile(cta)
        tiles.wait_for_next_tile(cta)
    finish_stores(warp_of_group(cta) == 0)
