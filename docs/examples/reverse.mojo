"""Reverses 64 elements through shared memory. With the argument `racy` the kernel has no barrier in between."""
from max.gpu import barrier, thread_idx
from max.gpu.host import DeviceContext
from max.gpu.memory import external_memory
from std.sys import argv, exit

comptime COUNT = 64


def reverse[racy: Bool](x: Pointer[Float32, ImmUntrackedOrigin], y: Pointer[Float32, MutUntrackedOrigin]):
    var tile = external_memory[Float32, address_space=.SHARED, alignment=16]()
    var i = thread_idx.x
    tile[unsafe_offset=i] = x[unsafe_offset=i]

    comptime if not racy:
        barrier()
    y[unsafe_offset=i] = tile[unsafe_offset=COUNT - 1 - i]


def main() raises:
    var ctx = DeviceContext()
    var x = ctx.enqueue_create_buffer[.float32](COUNT)
    var y = ctx.enqueue_create_buffer[.float32](COUNT)
    with x.map_to_host() as host:
        for i in range(COUNT):
            host[i] = Float32(i * i % 97)
    if len(argv()) > 1 and argv()[1] == "racy":
        ctx.enqueue_function[reverse[True]](x, y, grid_dim=1, block_dim=COUNT, shared_mem_bytes=COUNT * 4)
    else:
        ctx.enqueue_function[reverse[False]](x, y, grid_dim=1, block_dim=COUNT, shared_mem_bytes=COUNT * 4)
    var wrong = 0
    with y.map_to_host() as host:
        for i in range(COUNT):
            var at = COUNT - 1 - i
            if host[i] != Float32(at * at % 97):
                wrong += 1
    print("reversed", COUNT, "elements:", wrong, "wrong")
    if wrong > 0:
        exit(1)
