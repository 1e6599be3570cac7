"""The store half of the epilogue: registers -> type of C -> swizzled shared memory -> TMA store, in steps of
`epilogue_width` columns.

A team is the warps that fill a buffer together, each its part of a box (box.mojo); one of its threads issues all TMA
stores, and alone knows when TMA has read their source.
"""
from .config import GemmConfig
from .ptx import fence_proxy_async, tma_commit_group, tma_wait_group_read
from max.gpu.primitives.cluster import elect_one_sync
from max.gpu.sync import syncwarp


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
