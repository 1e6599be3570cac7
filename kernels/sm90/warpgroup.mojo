"""The warpgroups of a CTA of sm_90a."""
from ..common.config import GemmConfig
from ..common.cta import Cta
from max.gpu.sync import named_barrier

comptime WARPGROUP_WARPS = 4
"""Warps of a warpgroup."""


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
