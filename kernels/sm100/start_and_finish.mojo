"""How a CTA of sm_100a starts and finishes: what all of its threads do before and after their roles.

    start    initialise barriers -> cluster barrier -> allocate TMEM -> cluster barrier -> roles
    finish   roles done -> cluster barrier -> free TMEM -> exit

After the first cluster barrier every peer may use the mbarriers, and the other CTA of the pair is running, so the pair
can allocate TMEM together. The second one publishes the TMEM address, and the MMA thread knows that the peer has its
TMEM. After the last one, no CTA of the cluster can read, multicast or commit into this CTA any more: a producer leaves
only after all commits to it have arrived (the drain), an epilogue warp only after those to the accumulator.

Cluster barriers and tensor memory allocation take whole warps. So after a branch for one elected thread, `syncwarp`
holds the other 31 until it has come back: the MMA warp, for example, reaches the last barrier after its last commit."""
from ..common.config import GemmConfig
from ..common.cta import Cta, Problem
from ..common.pipeline import fence_mbarrier_init
from ..common.ptx import load_shared
from .tcgen05 import fence_after_thread_sync, fence_before_thread_sync, tmem_allocate, tmem_deallocate
from max.gpu import barrier
from max.gpu.primitives.cluster import cluster_sync, elect_one_sync
from max.gpu.sync import syncwarp


@inline(.always)
def start[config: GemmConfig](cta: Cta[config], problem: Problem):
    """Prepares barriers and TMEM before the roles. All threads call this."""
    if cta.warp == 0:
        if elect_one_sync():
            problem.prefetch_tensor_maps()
            cta.init_barriers()
            fence_mbarrier_init()
        syncwarp()
    cluster_sync()
    if cta.warp == 0:
        tmem_allocate[config](tmem_address_slot(cta))
    fence_before_thread_sync()
    comptime if config.cta_group == 2:
        cluster_sync()
    else:
        barrier()
    fence_after_thread_sync()


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
def tmem_address_slot[config: GemmConfig](cta: Cta[config]) -> UInt32:
    """Returns the shared memory address where the allocation stores the TMEM address."""
    return cta.shared + UInt32(cta.layout.tmem_address)


@inline(.always)
def tmem_address[config: GemmConfig](cta: Cta[config]) -> UInt32:
    """Returns the TMEM address of the first accumulator. It is valid between `start` and `finish`."""
    return load_shared(tmem_address_slot(cta))
