"""What a launch passes to the kernel."""


@fieldwise_init
struct Problem(TrivialRegisterPassable):
    """Tensor maps by address, sizes, and the counter of tiles."""

    var a: UInt64
    var b: UInt64
    var c: UInt64
    var k_iterations: UInt32
    var m: UInt32  # rows of C and of A
    var n: UInt32  # columns of C, rows of B
    var clusters_m: UInt32  # cluster tiles along M: C in units of what a cluster computes together
    var clusters_n: UInt32
    var counter: UInt64  # one word of global memory, 0 before the launch and after it; no address where none is needed
