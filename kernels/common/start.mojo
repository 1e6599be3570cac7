"""The start of a CTA: its barriers, and the wait for the previous grid."""
from .config import GemmConfig
from .cta import Cta, Problem
from .kernel import MOST_DECLARED
from .pipeline import CONSUMER, MBarrier, fence_mbarrier_init
from .launch_control import griddepcontrol_wait, launch_dependents
from .responses import response_arrivals, responses
from .schedule import *
from .tma import prefetch_tensor_map
from max.gpu import grid_dim
from max.gpu.primitives.cluster import elect_one_sync
from max.gpu.sync import syncwarp


@inline(.always)
def prepare[config: GemmConfig](cta: Cta[config], problem: Problem):
    """Prefetches tensor maps and initialises barriers, in warp 0. A cluster barrier must follow before their use."""
    if cta.warp == 0:
        if elect_one_sync():
            prefetch_tensor_map(problem.a)
            prefetch_tensor_map(problem.b)
            prefetch_tensor_map(problem.c)
            init_barriers(cta)
        syncwarp()


@inline(.always)
def init_barriers[config: GemmConfig](cta: Cta[config]):
    """Initialises all barriers of this CTA. One thread calls this."""
    comptime for stage in range(UInt32(config.stages)):
        cta.full().next(stage).init(1)
        cta.empty().next(stage).init(UInt32(config.empty_arrivals()))
    comptime if config.has_tmem():
        comptime for i in range(UInt32(config.accumulator_barriers)):
            cta.accumulator_full().next(i).init(1)
            comptime if config.kernel.is_persistent:
                cta.accumulator_empty().next(i).init(UInt32(config.accumulator_readers()))
    var declared = MBarrier(cta.shared + UInt32(cta.layout.declared_barriers))
    comptime for i in range(MOST_DECLARED):
        comptime for _ in range(Int(config.kernel.mbarriers[i])):
            declared.init(UInt32(config.kernel.arrivals[i]))
            declared = declared.next(1)
    var slots = responses(cta, CONSUMER)
    comptime for _ in range(config.response_slots):
        slots.full().init(1)
        slots.empty().init(response_arrivals(cta))
        slots.advance()
    fence_mbarrier_init()


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
