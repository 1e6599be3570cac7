"""Two CTAs of a cluster share a tile: each loads half of it and has TMA write that half to both."""
from layout import TileTensor
from layout.coord import coord
from layout.tile_layout import row_major
from layout.tma_async import SharedMemBarrier, TMATensorTile, create_tensor_tile
from max.gpu import block_idx, thread_idx
from max.gpu.host import DeviceContext, Dim
from max.gpu.host.nvidia.tma import TensorMapSwizzle
from max.gpu.memory import external_memory, fence_mbarrier_init
from max.gpu.primitives.cluster import block_rank_in_cluster, cluster_sync
from std.sys import exit
from std.utils.static_tuple import StaticTuple

comptime ROWS = 64
comptime HALF = ROWS // 2
comptime COLUMNS = 64
comptime CLUSTERS = 3
comptime Map = TMATensorTile[.bfloat16, coord[HALF, COLUMNS], coord[HALF, COLUMNS]]


@__llvm_metadata(`nvvm.cluster_dim`=StaticTuple[Int32, 3](2, 1, 1))
@__llvm_arg_metadata(map, `nvvm.grid_constant`)
def share(map: Map, sums: Pointer[Float32, MutUntrackedOrigin]):
    var shared = external_memory[Scalar[.bfloat16], address_space=.SHARED, alignment=1024]()
    ref arrived = shared.unsafe_offset(ROWS * COLUMNS).unsafe_bitcast[SharedMemBarrier]()[]
    var rank = Int(block_rank_in_cluster())
    if thread_idx.x == 0:
        arrived.init(1)
        fence_mbarrier_init()
    cluster_sync()
    if thread_idx.x == 0:
        arrived.expect_bytes(Int32(ROWS * COLUMNS * 2))
        var half = TileTensor(shared.unsafe_offset(rank * HALF * COLUMNS), row_major(coord[HALF, COLUMNS]))
        map.async_multicast_load(half, arrived, (0, block_idx.x // 2 * ROWS + rank * HALF), UInt16(0b11))
    arrived.wait(UInt32(0))
    # A thread for each row, with a weight for each chunk of 8, which the swizzle has moved.
    var row = thread_idx.x
    var sum = Float32(0)
    for chunk in range(COLUMNS // 8):
        for i in range(8):
            var at = row * COLUMNS + (chunk ^ (row % 8)) * 8 + i
            sum += shared[unsafe_offset=at].cast[.float32]() * Float32(chunk + 1 + rank)
    sums[unsafe_offset=block_idx.x * ROWS + row] = sum
    cluster_sync()


def main() raises:
    var ctx = DeviceContext()
    var a = ctx.enqueue_create_buffer[.bfloat16](CLUSTERS * ROWS * COLUMNS)
    var sums = ctx.enqueue_create_buffer[.float32](CLUSTERS * 2 * ROWS)
    with a.map_to_host() as host:
        for i in range(CLUSTERS * ROWS * COLUMNS):
            host[i] = Scalar[.bfloat16](Float32((i * 5 + i // COLUMNS) % 13 - 6))
    var map = create_tensor_tile[coord[HALF, COLUMNS], swizzle_mode=TensorMapSwizzle.SWIZZLE_128B](
        ctx, TileTensor(a, row_major(coord[CLUSTERS * ROWS, COLUMNS]))
    )
    ctx.enqueue_function[share](
        map,
        sums,
        grid_dim=CLUSTERS * 2,
        block_dim=ROWS,
        cluster_dim=Dim(2, 1, 1),
        shared_mem_bytes=ROWS * COLUMNS * 2 + 64,
    )
    var wrong = 0
    with a.map_to_host() as host_a, sums.map_to_host() as host_sums:
        for cta in range(CLUSTERS * 2):
            for row in range(ROWS):
                var expected = Float32(0)
                for column in range(COLUMNS):
                    var value = host_a[(cta // 2 * ROWS + row) * COLUMNS + column].cast[.float32]()
                    expected += value * Float32(column // 8 + 1 + cta % 2)
                if host_sums[cta * ROWS + row] != expected:
                    wrong += 1
    print("cluster share of", CLUSTERS, "tiles:", wrong, "wrong")
    if wrong > 0:
        exit(1)
