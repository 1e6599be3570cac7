"""Adds two vectors. With the argument `beyond` the kernel is told of more elements than there are."""
from max.gpu import block_dim, block_idx, thread_idx
from max.gpu.host import DeviceContext
from std.sys import argv, exit

comptime COUNT = 1000
comptime THREADS = 128


def add(
    a: Pointer[Float32, ImmUntrackedOrigin],
    b: Pointer[Float32, ImmUntrackedOrigin],
    sums: Pointer[Float32, MutUntrackedOrigin],
    count: Int32,
):
    var i = block_idx.x * block_dim.x + thread_idx.x
    if i < Int(count):
        sums[unsafe_offset=i] = a[unsafe_offset=i] + b[unsafe_offset=i]


def main() raises:
    var told = COUNT
    if len(argv()) > 1 and argv()[1] == "beyond":
        told += 20
    var ctx = DeviceContext()
    var a = ctx.enqueue_create_buffer[.float32](COUNT)
    var b = ctx.enqueue_create_buffer[.float32](COUNT)
    var sums = ctx.enqueue_create_buffer[.float32](COUNT)
    with a.map_to_host() as host_a, b.map_to_host() as host_b:
        for i in range(COUNT):
            host_a[i] = Float32(i)
            host_b[i] = Float32(i * i % 97)
    ctx.enqueue_function[add](a, b, sums, Int32(told), grid_dim=(COUNT + THREADS - 1) // THREADS, block_dim=THREADS)
    var wrong = 0
    with sums.map_to_host() as host:
        for i in range(COUNT):
            if host[i] != Float32(i) + Float32(i * i % 97):
                wrong += 1
    print("vector add on", ctx.name(), "of", COUNT, "elements:", wrong, "wrong")
    if wrong > 0:
        exit(1)
