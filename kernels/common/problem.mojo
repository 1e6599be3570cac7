"""What a launch passes to the kernel."""


@fieldwise_init
struct Problem(TrivialRegisterPassable):
    """Tensor maps by address, and sizes in units of what one step or one cluster computes."""

    var a: UInt64
    var b: UInt64
    var c: UInt64
    var k_iterations: UInt32
    var clusters_m: UInt32  # cluster tiles along M: C in units of what a cluster computes together
    var clusters_n: UInt32
