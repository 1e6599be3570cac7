"""Kernel 7: kernel 6 with a double-buffered write-out.

The tile of C leaves in steps of `epilogue_width` columns through two small buffers in turn: while TMA stores one, the warps fill the
other. That needs 16 KB of shared memory instead of 64 KB, which deepens the ring of stages from 5 to 6.
"""
from ..common.config import GemmConfig
from ..common.ptx import mbarrier_wait, tensor_map_address, tma_commit_group, tma_wait_group_read
from .cta import Cta
from .epilogue import WriteOut, epilogue_barrier
from .kernel6 import MMA_WARP, PRODUCER_WARP, consume, produce
from .tcgen05 import fence_after_thread_sync
from max.gpu import MAX_THREADS_PER_BLOCK_METADATA
from max.gpu.host.nvidia.tma import TMADescriptor
from max.gpu.primitives.cluster import elect_one_sync
from max.gpu.sync import syncwarp
from std.utils.static_tuple import StaticTuple


@inline(.always)
def write_in_turns[config: GemmConfig](cta: Cta[config], c_map: UInt64):
    """Steps of the tile through two buffers. All stores are issued by one thread, which alone knows when they have been read."""
    mbarrier_wait(cta.accumulator(), 0)
    fence_after_thread_sync()
    var out = WriteOut[config](cta)
    comptime steps = config.write_out_steps()
    comptime for step in range(steps):
        comptime buffer = step % config.c_buffers()
        var pairs = out.read[step]()
        comptime if step >= config.c_buffers():
            # The store before last filled this buffer: its thread waits until TMA has read it, the others wait for that thread.
            if cta.warp == 0:
                if elect_one_sync():
                    tma_wait_group_read[config.c_buffers() - 1]()
                syncwarp()
            epilogue_barrier()
        out.write[buffer](pairs)
        epilogue_barrier()
        if cta.warp == 0:
            if elect_one_sync():
                out.store[step, buffer](cta, c_map)
                tma_commit_group()
                comptime if step == steps - 1:
                    tma_wait_group_read[0]()
            syncwarp()


@__llvm_metadata(
    MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(config.threads())),
    `nvvm.minctasm`=SIMDLength(1),
    `nvvm.cluster_dim`=StaticTuple[Int32, 3](Int32(config.cluster_m), Int32(config.cluster_n), 1),
)
@__llvm_arg_metadata(a_map, `nvvm.grid_constant`)
@__llvm_arg_metadata(b_map, `nvvm.grid_constant`)
@__llvm_arg_metadata(c_map, `nvvm.grid_constant`)
@__name(t"{config.label()}")
def kernel7[config: GemmConfig](a_map: TMADescriptor, b_map: TMADescriptor, c_map: TMADescriptor, k_iterations: UInt32):
    """C = A . B^T; launch and roles as for kernel 6."""
    comptime wrong = config.error()
    comptime assert wrong.byte_length() == 0, wrong
    var a = tensor_map_address(Pointer(to=a_map))
    var b = tensor_map_address(Pointer(to=b_map))
    var c = tensor_map_address(Pointer(to=c_map))
    var cta = Cta[config]()
    cta.start(a, b, c)
    if cta.warp < PRODUCER_WARP:
        write_in_turns(cta, c)
    elif cta.warp == PRODUCER_WARP:
        if elect_one_sync():
            produce(cta, a, b, k_iterations)
    elif cta.in_pair() == 0:
        if elect_one_sync():
            consume(cta, k_iterations)
    cta.finish()
