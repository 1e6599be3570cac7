"""How a CTA of sm_90a starts: what all of its threads do before their roles.

A CTA exits without a last cluster barrier, because no other CTA can access it any more: its consumers have waited for
every copy into its stages, and its producer, in the drain, for every arrival at its empty barriers."""
from ..common.config import GemmConfig
from ..common.cta import Cta, Problem
from ..common.launch_control import griddepcontrol_wait, launch_dependents
from ..common.pipeline import fence_mbarrier_init
from ..common.schedule import *
from max.gpu import grid_dim
from max.gpu.primitives.cluster import cluster_arrive_relaxed, cluster_wait, elect_one_sync
from max.gpu.sync import syncwarp


@inline(.always)
def start[config: GemmConfig](cta: Cta[config], problem: Problem):
    """Prepares barriers before the roles. All threads call this. After the cluster barrier, every peer may use the
    mbarriers. It may be relaxed because the initialisation of the mbarriers has its own fence."""
    if cta.warp == 0:
        if elect_one_sync():
            problem.prefetch_tensor_maps()
            cta.init_barriers()
            fence_mbarrier_init()
        syncwarp()
    cluster_arrive_relaxed()
    cluster_wait()
    wait_for_previous_grid(cta)


@inline(.always)
def wait_for_previous_grid[config: GemmConfig](cta: Cta[config]):
    """Waits until the previous grid has ended (programmatic dependent launch). All threads call this before any of them
    accesses global memory. It lets the next grid start early if `next_starts_together`; otherwise `produce_tiles` does
    so after its last load."""
    comptime if config.overlaps_launches():
        if next_starts_together[config]():
            launch_dependents()
        griddepcontrol_wait()


@inline(.always)
def next_starts_together[config: GemmConfig]() -> Bool:
    """All CTAs of a next launch like this one can start together: either all fit next to these CTAs, or none does. If
    only some fit, they start at different times and share less in L2: on an H200, up to 1.6 times as long."""
    comptime most = UInt32(resident_ctas(config.cluster_size(), config.has_tmem()))
    var ctas = UInt32(grid_dim.x) * UInt32(grid_dim.y)
    return 2 * ctas <= most or ctas >= most
