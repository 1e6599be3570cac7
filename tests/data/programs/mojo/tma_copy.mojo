"""Each CTA brings a tile of the matrix to shared memory by TMA and stores it, by TMA, at the transposed place among tiles.

With the argument `hasty` no CTA waits for its tile, and stores what is in shared memory.
"""
from layout import TileTensor
from layout.coord import coord
from layout.tile_layout import row_major
from layout.tma_async import SharedMemBarrier, TMATensorTile, create_tensor_tile
from max.gpu import barrier, block_idx, thread_idx
from max.gpu.host import DeviceContext
from max.gpu.host.nvidia.tma import TensorMapSwizzle
from max.gpu.memory import external_memory, fence_mbarrier_init
from std.sys import argv, exit

comptime TILE = 64
comptime TILES = 3
comptime SIZE = TILE * TILES
comptime BYTES = TILE * TILE * 2
comptime Map = TMATensorTile[.bfloat16, coord[TILE, TILE], coord[TILE, TILE]]


@__llvm_arg_metadata(source, `nvvm.grid_constant`)
@__llvm_arg_metadata(target, `nvvm.grid_constant`)
def move_tiles(source: Map, target: Map, patient: Int32):
    var shared = external_memory[Scalar[.bfloat16], address_space=.SHARED, alignment=1024]()
    var tile = TileTensor(shared, row_major(coord[TILE, TILE]))
    ref arrived = shared.unsafe_offset(TILE * TILE).unsafe_bitcast[SharedMemBarrier]()[]
    if thread_idx.x == 0:
        arrived.init(1)
        fence_mbarrier_init()
    barrier()
    if thread_idx.x == 0:
        arrived.expect_bytes(Int32(BYTES))
        source.async_copy(tile, arrived, (block_idx.x * TILE, block_idx.y * TILE))
        if patient == 1:
            arrived.wait(UInt32(0))
        target.async_store(tile, (block_idx.y * TILE, block_idx.x * TILE))
        target.commit_group()
        target.wait_group[0]()


def main() raises:
    var patient = Int32(1)
    if len(argv()) > 1 and argv()[1] == "hasty":
        patient = 0
    var ctx = DeviceContext()
    var a = ctx.enqueue_create_buffer[.bfloat16](SIZE * SIZE)
    var b = ctx.enqueue_create_buffer[.bfloat16](SIZE * SIZE)
    b.enqueue_fill(-1)
    with a.map_to_host() as host:
        for i in range(SIZE * SIZE):
            host[i] = Scalar[.bfloat16](Float32((i * 7 + i // SIZE * 3) % 251))
    comptime whole = row_major(coord[SIZE, SIZE])
    var source = create_tensor_tile[coord[TILE, TILE], swizzle_mode=TensorMapSwizzle.SWIZZLE_128B](
        ctx, TileTensor(a, whole)
    )
    var target = create_tensor_tile[coord[TILE, TILE], swizzle_mode=TensorMapSwizzle.SWIZZLE_128B](
        ctx, TileTensor(b, whole)
    )
    ctx.enqueue_function[move_tiles](
        source, target, patient, grid_dim=(TILES, TILES), block_dim=32, shared_mem_bytes=BYTES + 64
    )
    var wrong = 0
    with a.map_to_host() as host_a, b.map_to_host() as host_b:
        for row in range(SIZE):
            for column in range(SIZE):
                var from_row = column // TILE * TILE + row % TILE
                var from_column = row // TILE * TILE + column % TILE
                if host_b[row * SIZE + column] != host_a[from_row * SIZE + from_column]:
                    wrong += 1
    print("TMA copy of", TILES * TILES, "tiles:", wrong, "wrong")
    if wrong > 0:
        exit(1)
