"""The store half of the epilogue: registers -> 16-bit -> swizzled shared memory -> TMA store, in steps of
`epilogue_width` columns.

Both tensor cores leave a 16-row part of the accumulator in a warp's registers the same way: register 4j + i of thread
t is row t / 4 + 8 * (i / 2) and column 8j + 2 * (t % 4) + i % 2 (PTX ISA 9.7.15.5.1.1, 9.7.16.2.3.1), which is what
stmatrix stores as four 8x8 matrices. A team is the warps that fill a buffer together; one of its threads issues all
TMA stores, and alone knows when TMA has read their source.
"""
from .config import ELEMENT_BYTES, GemmConfig
from .ptx import fence_proxy_async, pack_pair, store_matrices, tma_commit_group, tma_store, tma_wait_group_read
from max.gpu.primitives.cluster import elect_one_sync
from max.gpu.sync import syncwarp


struct BoxRows[width: Int](TrivialRegisterPassable):
    """16 rows of a box of C in shared memory, which one warp fills.

    A box is swizzled over its whole row: the 16-byte chunk number is XORed with the number of the 128-byte line.
    """

    comptime pitch = Self.width * ELEMENT_BYTES
    comptime words = Self.width // 4

    var address: UInt32  # where this lane's matrix row goes

    @inline(.always)
    def __init__(out self, box: UInt32, row: UInt32, lane: UInt32):
        """`row`, the first of the 16, is a multiple of 16: it leaves the swizzle pattern as it is."""
        var lane_row = lane % 16
        var line = lane_row * UInt32(Self.pitch) // 128
        var chunk = lane // 16 ^ line % UInt32(Self.pitch // 16)
        self.address = box + (row + lane_row) * UInt32(Self.pitch) + chunk * 16

    @inline(.always)
    def write[offset: Int](self, pairs: SIMD[DType.uint32, Self.words]):
        """Stores pairs of adjacent columns; `offset` bytes further is a box or a multiple of 16 rows further."""
        comptime for group in range(Self.width // 16):
            # 16 rows x 16 columns: rows 0-7 and 8-15 of the left 8 columns, then of the right 8. Two chunks further
            # is an XOR, as the swizzle is one, of address bits that nothing else contributes to.
            store_matrices[offset](
                self.address ^ UInt32(group * 32),
                pairs[4 * group],
                pairs[4 * group + 1],
                pairs[4 * group + 2],
                pairs[4 * group + 3],
            )


trait Team(TrivialRegisterPassable):
    """The part of a tile that some warps write out together."""

    comptime words: Int

    def read[step: Int](self) -> SIMD[DType.uint32, Self.words]:
        """This warp's part of one step: pairs of adjacent columns, rounded to 16 bits."""
        ...

    def write[buffer: Int](self, pairs: SIMD[DType.uint32, Self.words]):
        """From registers into a buffer of shared memory."""
        ...

    def store[step: Int, buffer: Int](self, c_map: UInt64):
        """Starts the TMA stores of one step. One thread, after the whole team has filled the buffer."""
        ...

    def barrier(self):
        """All warps of the team arrive and wait."""
        ...

    def leads(self) -> Bool:
        """Whether this is the warp that issues the stores."""
        ...


@inline(.always)
def write_tile[config: GemmConfig, T: Team](team: T, c_map: UInt64):
    """The plain epilogue store: the whole tile into shared memory, then one bulk group of TMA stores."""
    comptime for step in range(config.epilogue_steps()):
        team.write[step](team.read[step]())
    fence_proxy_async()
    team.barrier()
    if team.leads():
        if elect_one_sync():
            comptime for step in range(config.epilogue_steps()):
                team.store[step, step](c_map)
            tma_commit_group()
            tma_wait_group_read[0]()


def stores_since(step: Int, config: GemmConfig) -> Int:
    """TMA stores a team has begun after the last one from the buffer of this step, when it comes to the step: in this
    tile, or in the one before, whose steps went through the same buffers."""
    if step >= config.c_buffers():
        return config.c_buffers() - 1
    var last = config.epilogue_steps() - 1
    while last % config.c_buffers() != step % config.c_buffers():
        last -= 1
    return config.epilogue_steps() - 1 - last + step


@inline(.always)
def write_step[T: Team, //, config: GemmConfig, step: Int](team: T, pairs: SIMD[DType.uint32, T.words], c_map: UInt64):
    """One step of the tile through its buffer: while TMA stores one buffer, the team fills the next."""
    comptime buffer = step % config.c_buffers()
    comptime if step >= config.c_buffers() or config.kernel.is_persistent:
        # TMA must have read what was last in this buffer: one thread waits for TMA, the others for it.
        if team.leads():
            if elect_one_sync():
                tma_wait_group_read[stores_since(step, config)]()
            syncwarp()
        team.barrier()
    team.write[buffer](pairs)
    fence_proxy_async()
    team.barrier()
    if team.leads():
        if elect_one_sync():
            team.store[step, buffer](c_map)
            tma_commit_group()
        syncwarp()


@inline(.always)
def write_double_buffered[config: GemmConfig, T: Team](team: T, c_map: UInt64):
    """The double-buffered epilogue store: the tile in steps, through two buffers."""
    comptime for step in range(config.epilogue_steps()):
        write_step[config, step](team, team.read[step](), c_map)


@inline(.always)
def finish_stores(leads: Bool):
    """Before a CTA ends: TMA must have read all of its buffers. leads: whether this warp has issued its team's stores.
    """
    if leads:
        if elect_one_sync():
            tma_wait_group_read[0]()
        syncwarp()
