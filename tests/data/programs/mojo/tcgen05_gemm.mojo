"""C = A . B^T by tcgen05, one CTA for a tile of 128 x 128. For sm_100a."""
from layout import TileTensor
from layout.coord import coord
from layout.tile_layout import row_major
from layout.tma_async import SharedMemBarrier, TMATensorTile, create_tensor_tile
from max.gpu import MAX_THREADS_PER_BLOCK_METADATA, barrier, block_idx, thread_idx
from max.gpu.compute.arch.mma_nvidia_sm100 import MMASmemDescriptor, UMMAInsDescriptor, UMMAKind, mma, mma_arrive
from max.gpu.compute.arch.tcgen05 import (
    tcgen05_alloc,
    tcgen05_dealloc,
    tcgen05_fence_after,
    tcgen05_fence_before,
    tcgen05_ld,
    tcgen05_load_wait,
    tcgen05_release_allocation_lock,
)
from max.gpu.host import DeviceContext, FuncAttribute
from max.gpu.host.nvidia.tma import TensorMapSwizzle
from max.gpu.memory import external_memory, fence_mbarrier_init
from max.gpu.primitives.cluster import elect_one_sync
from std.sys import exit
from std.utils.index import Index
from std.utils.static_tuple import StaticTuple

comptime TILE = 128
comptime STEP = 64
comptime M = 256
comptime N = 128
comptime K = 192
comptime ELEMENTS = TILE * STEP
comptime SHARED = 4 * ELEMENTS + 64
comptime SWIZZLE = TensorMapSwizzle.SWIZZLE_128B
comptime Map = TMATensorTile[.bfloat16, coord[TILE, STEP], coord[TILE, STEP]]


@__llvm_metadata(MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](128))
@__llvm_arg_metadata(map_a, `nvvm.grid_constant`)
@__llvm_arg_metadata(map_b, `nvvm.grid_constant`)
def multiply(map_a: Map, map_b: Map, c: Pointer[Float32, MutUntrackedOrigin]):
    var a = external_memory[Scalar[.bfloat16], address_space=.SHARED, alignment=1024]()
    var b = a.unsafe_offset(ELEMENTS)
    var barriers = b.unsafe_offset(ELEMENTS).unsafe_bitcast[SharedMemBarrier]()
    ref loaded = barriers[unsafe_offset=0]
    ref multiplied = barriers[unsafe_offset=1]
    var place = barriers.unsafe_offset(2).unsafe_bitcast[UInt32]()
    var warp = UInt32(thread_idx.x) // 32
    if warp == 0:
        tcgen05_alloc[1](place, UInt32(TILE))
        tcgen05_release_allocation_lock[1]()
        if elect_one_sync():
            loaded.init(1)
            multiplied.init(1)
            fence_mbarrier_init()
    tcgen05_fence_before()
    barrier()
    tcgen05_fence_after()
    var total = place[]
    comptime shape = UMMAInsDescriptor[UMMAKind.KIND_F16].create[
        .float32, .bfloat16, .bfloat16, Index[dtype=.uint32](TILE, TILE)
    ]()
    var describe_a = MMASmemDescriptor.create[1024, 0, SWIZZLE](a)
    var describe_b = MMASmemDescriptor.create[1024, 0, SWIZZLE](b)
    if warp == 0:
        var phase = UInt32(0)
        for step in range(K // STEP):
            if elect_one_sync():
                loaded.expect_bytes(Int32(4 * ELEMENTS))
                map_a.async_copy(TileTensor(a, row_major(coord[TILE, STEP])), loaded, (step * STEP, block_idx.y * TILE))
                map_b.async_copy(TileTensor(b, row_major(coord[TILE, STEP])), loaded, (step * STEP, block_idx.x * TILE))
            loaded.wait(phase)
            tcgen05_fence_after()
            if elect_one_sync():
                comptime for slice in range(STEP // 16):
                    mma[1](
                        describe_a + slice * 32,
                        describe_b + slice * 32,
                        total,
                        shape,
                        c_scale=UInt32(0) if step == 0 and slice == 0 else UInt32(1),
                    )
                mma_arrive[1](barriers.unsafe_offset(1))
            multiplied.wait(phase)
            phase ^= 1
    tcgen05_fence_before()
    barrier()
    tcgen05_fence_after()
    var row = block_idx.y * TILE + thread_idx.x
    comptime for part in range(TILE // 32):
        var values = tcgen05_ld[datapaths=32, bits=32, repeat=32, dtype=.float32, pack=False](
            total + (warp * 32 << 16) + UInt32(part * 32)
        )
        tcgen05_load_wait()
        comptime for i in range(32):
            c[unsafe_offset=row * N + block_idx.x * TILE + part * 32 + i] = values[i]
    tcgen05_fence_before()
    barrier()
    if warp == 0:
        tcgen05_fence_after()
        tcgen05_dealloc[1](total, UInt32(TILE))


def main() raises:
    var ctx = DeviceContext()
    var a = ctx.enqueue_create_buffer[.bfloat16](M * K)
    var b = ctx.enqueue_create_buffer[.bfloat16](N * K)
    var c = ctx.enqueue_create_buffer[.float32](M * N)
    with a.map_to_host() as host_a, b.map_to_host() as host_b:
        for i in range(M * K):
            host_a[i] = Scalar[.bfloat16](Float32((i * 37 + i // K) % 17 - 8))
        for i in range(N * K):
            host_b[i] = Scalar[.bfloat16](Float32((i * 53 + i // K * 5) % 19 - 9))
    var map_a = create_tensor_tile[coord[TILE, STEP], swizzle_mode=SWIZZLE](ctx, TileTensor(a, row_major(coord[M, K])))
    var map_b = create_tensor_tile[coord[TILE, STEP], swizzle_mode=SWIZZLE](ctx, TileTensor(b, row_major(coord[N, K])))
    ctx.enqueue_function[multiply](
        map_a,
        map_b,
        c,
        grid_dim=(N // TILE, M // TILE),
        block_dim=128,
        shared_mem_bytes=SHARED,
        func_attribute=FuncAttribute.MAX_DYNAMIC_SHARED_SIZE_BYTES(SHARED),
    )
    var wrong = 0
    with a.map_to_host() as host_a, b.map_to_host() as host_b, c.map_to_host() as host_c:
        for row in range(M):
            for column in range(N):
                var sum = Float32(0)
                for k in range(K):
                    sum += host_a[row * K + k].cast[.float32]() * host_b[column * K + k].cast[.float32]()
                if host_c[row * N + column] != sum:
                    wrong += 1
    print("tcgen05 GEMM of", M, "x", N, "x", K, ":", wrong, "wrong")
    if wrong > 0:
        exit(1)
