"""The life of a CTA: what must hold before the first copy and after the last, for CTAs that write into one another.

    start    barriers initialised -> cluster barrier -> TMEM allocated -> cluster barrier -> roles
    finish   roles done -> cluster barrier -> TMEM freed -> exit

The first cluster barrier makes the mbarriers usable by every peer, and proves that the other CTA of the pair exists
before the pair allocates TMEM together. The second publishes the TMEM address and tells the MMA thread that the
peer's TMEM is there. After the last, no CTA of the cluster can still read, multicast or commit into this one:
producers leave only after every commit that targets them has landed (the drain), epilogues after the accumulator's.
"""
from ..common.config import GemmConfig
from ..common.cta import Cta, Problem
from ..common.scheduler import TileScheduler
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
    """Everything before the roles. All threads."""
    cta.prepare(problem)
    cluster_sync()
    if cta.warp == 0:
        tmem_allocate[config](tmem_address_slot(cta))
    fence_before_thread_sync()
    comptime if config.cta_group == 2:
        cluster_sync()
    else:
        barrier()
    fence_after_thread_sync()
    cta.wait_for_previous_grid()


@inline(.always)
def finish[config: GemmConfig](cta: Cta[config]):
    """Everything after the roles. All threads."""
    syncwarp()
    fence_before_thread_sync()
    cluster_sync()
    fence_after_thread_sync()
    if cta.warp == 0:
        tmem_deallocate[config](tmem_address(cta))


@inline(.always)
def run[config: GemmConfig](cta: Cta[config], problem: Problem):
    """All threads."""
    var tiles = TileScheduler[config](cta, problem)
    start(cta, problem)
    tiles.begin()
    comptime if config.kernel.name == "kernel5":
        kernel5(cta, problem, tiles)
    elif config.kernel.name == "kernel6":
        kernel6(cta, problem, tiles)
    elif config.kernel.name == "kernel7":
        kernel7(cta, problem, tiles)
    elif config.kernel.name == "kernel8":
        kernel8(cta, problem, tiles)
    elif config.kernel.name == "kernel9":
        kernel9(cta, problem, tiles)
    else:
        own_kernel(cta, problem, tiles)
    finish(cta)
