"""A CTA of sm_100a from start to end: the barriers before its first copy and after its last one.

    start    initialise barriers -> cluster barrier -> allocate TMEM -> cluster barrier -> roles
    finish   roles done -> cluster barrier -> free TMEM -> exit

After the first cluster barrier every peer may use the mbarriers, and the other CTA of the pair is running, so the pair
can allocate TMEM together. The second one publishes the TMEM address, and the MMA thread knows that the peer has its
TMEM. After the last one, no CTA of the cluster can read, multicast or commit into this CTA any more: a producer leaves
only after all commits to it have arrived (the drain), an epilogue warp only after those to the accumulator."""
from ..common.config import GemmConfig
from ..common.cta import Cta, Problem
from ..common.layer import Layer
from ..common.layer_config import LayerConfig
from ..common.layer_order import LayerOrder, LayerTiles
from ..common.scheduler import RasterOrder, TileScheduler
from ..common.start import prepare, wait_for_previous_grid
from ..own import kernel as own_kernel
from .kernel5 import kernel5
from .kernel6 import kernel6
from .kernel7 import kernel7
from .kernel8 import kernel8
from .kernel9 import kernel9
from .tcgen05 import (
    fence_after_thread_sync,
    fence_before_thread_sync,
    tmem_address,
    tmem_address_slot,
    tmem_allocate,
    tmem_deallocate,
)
from max.gpu import barrier
from max.gpu.primitives.cluster import cluster_sync
from max.gpu.sync import syncwarp


@inline(.always)
def start[config: GemmConfig](cta: Cta[config], problem: Problem):
    """Prepares barriers and TMEM before the roles. All threads call this."""
    prepare(cta, problem)
    cluster_sync()
    if cta.warp == 0:
        tmem_allocate[config](tmem_address_slot(cta))
    fence_before_thread_sync()
    comptime if config.cta_group == 2:
        cluster_sync()
    else:
        barrier()
    fence_after_thread_sync()
    wait_for_previous_grid(cta)


@inline(.always)
def finish[config: GemmConfig](cta: Cta[config]):
    """Frees TMEM after the roles. All threads call this."""
    syncwarp()
    fence_before_thread_sync()
    cluster_sync()
    fence_after_thread_sync()
    if cta.warp == 0:
        tmem_deallocate[config](tmem_address(cta))


@inline(.always)
def run[config: LayerConfig](cta: Cta[config.gemm], problem: Problem, layer: Layer):
    """Runs the kernel in one CTA. All threads call this."""
    comptime kernel = config.gemm.kernel
    comptime if kernel.name == "kernel8" or kernel.name == "kernel9":
        var tiles = LayerTiles[config](cta, problem, LayerOrder[config](problem, layer.groups))
        start(cta, problem)
        tiles.find_first_tile()
        comptime if kernel.name == "kernel8":
            kernel8(cta, problem, layer, tiles)
        else:
            kernel9(cta, problem, layer, tiles)
    else:
        var tiles = TileScheduler[config.gemm](cta, problem, RasterOrder[config.gemm](problem))
        start(cta, problem)
        comptime if kernel.name == "kernel5":
            kernel5(cta, problem, tiles.tile)
        elif kernel.name == "kernel6":
            kernel6(cta, problem, tiles.tile)
        elif kernel.name == "kernel7":
            kernel7(cta, problem, tiles.tile)
        else:
            own_kernel(cta, problem, tiles)
    finish(cta)
