"""Kernel 7: kernel 6 with a double-buffered write-out.

The tile of C leaves in steps of `epilogue_width` columns through two small buffers in turn: while TMA stores one, the
warps fill the other. That needs 16 KB of shared memory instead of 64 KB; a sixth stage of the ring fits.
"""
from ..common.config import GemmConfig
from ..common.ptx import fence_proxy_async, mbarrier_wait, tma_commit_group, tma_wait_group_read
from .cta import Cta
from .epilogue import WriteOut, epilogue_barrier
from .kernel6 import EPILOGUE_WARPS, PRODUCER_WARP, consume, produce
from .tcgen05 import fence_after_thread_sync
from max.gpu.primitives.cluster import elect_one_sync
from max.gpu.sync import syncwarp


@inline(.always)
def write_in_turns[config: GemmConfig](cta: Cta[config], c_map: UInt64):
    """The tile in steps, through two buffers. One thread issues all stores and alone knows when they have been read."""
    mbarrier_wait(cta.accumulator(), 0)
    fence_after_thread_sync()
    var out = WriteOut[config](cta)
    comptime steps = config.write_out_steps()
    comptime for step in range(steps):
        comptime buffer = step % config.c_buffers()
        var pairs = out.read[step]()
        comptime if step >= config.c_buffers():
            # TMA must have read the step before last from this buffer: one thread waits for TMA, the others for it.
            if cta.warp == 0:
                if elect_one_sync():
                    tma_wait_group_read[config.c_buffers() - 1]()
                syncwarp()
            epilogue_barrier()
        out.write[buffer](pairs)
        fence_proxy_async()
        epilogue_barrier()
        if cta.warp == 0:
            if elect_one_sync():
                out.store[step, buffer](cta, c_map)
                tma_commit_group()
                comptime if step == steps - 1:
                    tma_wait_group_read[0]()
            syncwarp()


@inline(.always)
def kernel7[config: GemmConfig](cta: Cta[config], a_map: UInt64, b_map: UInt64, c_map: UInt64, k_iterations: UInt32):
    """What the threads of a CTA do between its start and its end."""
    if cta.warp < EPILOGUE_WARPS:
        write_in_turns(cta, c_map)
    elif cta.warp == PRODUCER_WARP:
        produce(cta, a_map, b_map, k_iterations)
    else:
        consume(cta, k_iterations)
