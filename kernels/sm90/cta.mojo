"""The start of a CTA of sm_90a, and its warpgroups.

A CTA exits without a last cluster barrier, because no other CTA can access it any more: its consumers have waited for
every copy into its stages, and its producer, in the drain, for every arrival at its empty barriers."""
from ..common.config import GemmConfig
from ..common.cta import Cta, Problem
from max.gpu.primitives.cluster import cluster_arrive_relaxed, cluster_wait
from max.gpu.sync import named_barrier

comptime WARPGROUP_WARPS = 4
"""Warps of a warpgroup."""


@inline(.always)
def start[config: GemmConfig](cta: Cta[config], problem: Problem):
    """Prepares barriers before the roles. All threads call this. After the cluster barrier, every peer may use the
    mbarriers. It may be relaxed because the initialisation of the mbarriers has its own fence."""
    cta.prepare(problem)
    cluster_arrive_relaxed()
    cluster_wait()
    cta.wait_for_previous_grid()


@inline(.always)
def warpgroup[config: GemmConfig](cta: Cta[config]) -> UInt32:
    """Returns the number of this thread's warpgroup."""
    return cta.warp // WARPGROUP_WARPS


@inline(.always)
def sync_warpgroup(group: UInt32):
    """Waits for all threads of a consumer warpgroup, at its named barrier, from 1 on; 0 is that of the CTA."""
    named_barrier[Int32(WARPGROUP_WARPS * 32)](Int32(group + 1))


@inline(.always)
def warp_of_group[config: GemmConfig](cta: Cta[config]) -> UInt32:
    """Returns the number of this thread's warp in its warpgroup."""
    return cta.warp % WARPGROUP_WARPS
