"""The store half of the epilogue: registers -> type of C -> swizzled shared memory -> TMA store, in steps of
`epilogue_width` columns.

Both tensor cores leave a 16-row part of the accumulator in a warp's registers the same way: register 4j + i of thread
t is row t / 4 + 8 * (i / 2) and column 8j + 2 * (t % 4) + i % 2 (PTX ISA 9.7.15.5.1.1, 9.7.16.2.3.1). Of 16-bit elements
that is what stmatrix stores as four 8x8 matrices; f32 are stored in pairs. A team is the warps that fill a buffer
together; one of its threads issues all TMA stores, and alone knows when TMA has read their source.
"""
from .config import GemmConfig
from .ptx import fence_proxy_async, pack_pair, pinned, store_matrices, store_pair, tma_commit_group, tma_wait_group_read
from max.gpu.primitives.cluster import elect_one_sync
from max.gpu.sync import syncwarp
from std.memory import bitcast


def words_of(dtype: DType, registers: Int) -> Int:
    """Words that so many accumulators take in the type of C."""
    return registers if dtype == DType.float32 else registers // 2


@inline(.always)
def word[dtype: DType](low: Float32, high: Float32) -> UInt32:
    """Two adjacent columns rounded to 16 bits; of f32, `low` as it is. Stays below the wait for both, for the compiler.
    """
    comptime if dtype == DType.float32:
        return pinned(bitcast[DType.uint32](low))
    else:
        return pack_pair[dtype](low, high)


struct BoxRows[dtype: DType, width: Int, transposed: Bool = False](TrivialRegisterPassable):
    """16 rows of a box of C in shared memory, which one warp fills; `transposed`: 16 of 64 columns.

    A box is swizzled over its whole row: the 16-byte chunk number is XORed with the number of the 128-byte line.
    """

    comptime is_f32 = Self.dtype == DType.float32
    comptime pitch = Self.width * (4 if Self.is_f32 else 2)
    comptime words = words_of(Self.dtype, Self.width // 2)

    var address: UInt32  # where this lane's matrix row goes, or its first pair of f32

    @inline(.always)
    def __init__(out self, box: UInt32, row: UInt32, lane: UInt32):
        """`row`, the first of the 16, is a multiple of 16: it leaves the swizzle pattern as it is."""
        comptime if Self.transposed:  # a row of C is one line of 128 bytes
            var in_pattern = lane % 8
            self.address = box + (lane // 16 * 8 + in_pattern) * 128 + ((row // 8 + lane // 8 % 2) ^ in_pattern) * 16
            return
        var lane_row = lane // 4 if Self.is_f32 else lane % 16
        var line = lane_row * UInt32(Self.pitch) // 128
        var chunk = (lane % 4 // 2 if Self.is_f32 else lane // 16) ^ line % UInt32(Self.pitch // 16)
        self.address = box + (row + lane_row) * UInt32(Self.pitch) + chunk * 16
        comptime if Self.is_f32:
            self.address += lane % 2 * 8

    @inline(.always)
    def write[offset: Int](self, words: SIMD[DType.uint32, Self.words]):
        """Stores the words of adjacent columns; `offset` bytes further is a box or a multiple of 16 rows further."""
        comptime for group in range(Self.words // 4):
            # 32 bytes of 16 rows: 16 columns as four matrices, rows 0-7 and 8-15 of the left 8 columns, then of the right
            # 8; or 8 columns of f32, rows 0-7, then 8-15. 32 bytes further is an XOR, as the swizzle is one, of address
            # bits that nothing else contributes to.
            var address = self.address ^ UInt32(group * 32)
            comptime first = 4 * group
            comptime if Self.transposed:  # 16 rows of C further, which leaves the swizzle as it is
                comptime at = offset + group * 16 * 128
                store_matrices[at, True](
                    self.address, words[first], words[first + 1], words[first + 2], words[first + 3]
                )
            elif Self.is_f32:
                store_pair[offset](address, words[first], words[first + 1])
                store_pair[offset + 8 * Self.pitch](address, words[first + 2], words[first + 3])
            else:
                store_matrices[offset](address, words[first], words[first + 1], words[first + 2], words[first + 3])


trait Team(TrivialRegisterPassable):
    """The part of a tile that some warps write out together."""

    comptime words: Int

    def read[step: Int](self) -> SIMD[DType.uint32, Self.words]:
        """This warp's part of one step: adjacent columns in the type of C."""
        ...

    def write[buffer: Int](self, words: SIMD[DType.uint32, Self.words]):
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
def write_step[T: Team, //, config: GemmConfig, step: Int](team: T, words: SIMD[DType.uint32, T.words], c_map: UInt64):
    """One step of the tile through its buffer: while TMA stores one buffer, the team fills the next."""
    comptime buffer = step % config.c_buffers()
    comptime if step >= config.c_buffers() or config.kernel.is_persistent:
        # TMA must have read what was last in this buffer: one thread waits for TMA, the others for it.
        if team.leads():
            if elect_one_sync():
                tma_wait_group_read[stores_since(step, config)]()
            syncwarp()
        team.barrier()
    team.write[buffer](words)
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
