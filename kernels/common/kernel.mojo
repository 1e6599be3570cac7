"""What a kernel says about itself: its capabilities, and the barriers and buffers that it adds."""

from .word import Word
from std.math import align_up
from std.utils.static_tuple import StaticTuple

comptime MOST_DECLARED = 4
"""The most barriers, and the most buffers, that a kernel declares."""

comptime Numbers = SIMD[DType.int32, MOST_DECLARED]


@fieldwise_init
struct Barrier(TrivialRegisterPassable):
    """Adjacent mbarriers of a kernel. `Cta.barrier` returns one of them."""

    var name: Word
    var count: Int
    var arrivals: Int  # that complete a phase
    var bytes: Int  # that complete a phase, where an arrival announces bytes
    var arrives: StaticString  # who, in words for `explain` and reports of hangs
    var waits: StaticString


@fieldwise_init
struct Buffer(TrivialRegisterPassable):
    """A buffer of a kernel in shared memory. `Cta.buffer` returns its address, a multiple of 128 bytes."""

    var name: Word
    var bytes: Int


@fieldwise_init
struct Capabilities(TrivialRegisterPassable):
    """The part of a kernel's declaration that its configuration holds. Shared code tests the capabilities, never the
    name. A configuration is a parameter of all code, so it holds no text."""

    var name: Word
    var pipelined: Bool  # a ring of stages between warps of different roles; otherwise one stage
    var double_buffers_epilogue: Bool  # the epilogue writes C through two buffers: TMA stores one, warps fill the other
    var is_persistent: Bool  # a CTA computes tile after tile; otherwise one, at its place in the grid
    var is_block_scaled: Bool  # A and B have scale factors
    var fuses: Bool  # it takes all options of a `LayerConfig`
    var reads_directly: Bool  # all warps load from global memory to registers: few_rows.mojo
    var mbarriers: Numbers  # how many each declared barrier has
    var arrivals: Numbers  # that complete a phase of each declared barrier
    var buffer_bytes: Int  # of all declared buffers


struct Kernel(TrivialRegisterPassable):
    """The declaration of a kernel: its capabilities, and the barriers and buffers that it has besides those of all
    kernels."""

    var capabilities: Capabilities
    var barrier_count: Int  # at most MOST_DECLARED: `check_declared` refuses more
    var buffer_count: Int
    var barriers: StaticTuple[Barrier, MOST_DECLARED]
    var buffers: StaticTuple[Buffer, MOST_DECLARED]

    def __init__(
        out self,
        name: Word,
        *,
        pipelined: Bool,
        double_buffers_epilogue: Bool,
        is_persistent: Bool,
        is_block_scaled: Bool,
        fuses: Bool = False,
        reads_directly: Bool = False,
        barriers: List[Barrier] = [],
        buffers: List[Buffer] = [],
    ):
        self.barrier_count = len(barriers)
        self.buffer_count = len(buffers)
        self.barriers = {fill = Barrier("", 0, 0, 0, "", "")}
        self.buffers = {fill = Buffer("", 0)}
        var mbarriers, arrivals, bytes = Numbers(0), Numbers(0), 0
        for i in range(min(len(barriers), MOST_DECLARED)):
            self.barriers[i] = barriers[i]
            mbarriers[i] = Int32(barriers[i].count)
            arrivals[i] = Int32(barriers[i].arrivals)
        for i in range(min(len(buffers), MOST_DECLARED)):
            self.buffers[i] = buffers[i]
            bytes += align_up(buffers[i].bytes, 128)
        self.capabilities = {
            name,
            pipelined,
            double_buffers_epilogue,
            is_persistent,
            is_block_scaled,
            fuses,
            reads_directly,
            mbarriers,
            arrivals,
            bytes,
        }

    def offset_of(self, barrier: Barrier) -> Int:
        """Returns the bytes from the first mbarrier that the kernel declares to those of this barrier; -1 if it does
        not declare the barrier."""
        var found = 0
        for i in range(MOST_DECLARED):
            if self.barriers[i].name == barrier.name:
                return found
            found += 8 * self.barriers[i].count
        return -1

    def offset_of(self, buffer: Buffer) -> Int:
        """Returns the bytes from the first buffer that the kernel declares to this one; -1 if it does not declare
        it."""
        var found = 0
        for i in range(MOST_DECLARED):
            if self.buffers[i].name == buffer.name:
                return found
            found += align_up(self.buffers[i].bytes, 128)
        return -1
