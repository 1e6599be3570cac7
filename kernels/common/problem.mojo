"""What a launch passes to the kernel."""


@fieldwise_init
struct Problem(TrivialRegisterPassable):
    """Tensor maps by address, sizes in units of what one step or one cluster computes, and the counter of tiles."""

    var a: UInt64
    var b: UInt64
    var c: UInt64
    var k_iterations: UInt32
    var clusters_m: UInt32  # cluster tiles along M: C in units of what a cluster computes together
    var clusters_n: UInt32
    var counter: UInt64  # one word of global memory, 0 before the launch and after it; no address where none is needed
