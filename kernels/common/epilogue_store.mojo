"""The store half of the epilogue: registers -> type of C -> swizzled shared memory -> TMA store, in steps of
`epilogue_width` columns.

A team is the warps that fill a buffer together, each its part of a box (box.mojo). One thread of the team issues all of
its TMA stores, so only this thread can wait until TMA has read their source. `elect_one_sync` elects the same thread
of a warp each time (PTX ISA 9.7.13.14).
"""
from .config import GemmConfig
from .ptx import fence_proxy_async
from .tma import tma_commit_group, tma_wait_group_read
from max.gpu.primitives.cluster import elect_one_sync
from max.gpu.sync import syncwarp


trait Team(TrivialRegisterPassable):
    """The warps that write a part of a tile together."""

    comptime words: Int

    def read[step: Int](self) -> SIMD[DType.uint32, Self.words]:
        """Returns this warp's part of one step: adjacent columns in the type of C."""
        ...

    def write[buffer: Int](self, words: SIMD[DType.uint32, Self.words]):
        """Stores this warp's part of one step to a buffer in shared memory."""
        ...

    def store[step: Int, buffer: Int](self, c_map: UInt64):
        """Starts the TMA stores of one step. One thread calls this after the whole team has filled the buffer."""
        ...

    def barrier(self):
        """Waits until all threads of the team have arrived."""
        ...

    def leads(self) -> Bool:
        """This warp issues the TMA stores of the team."""
        ...


@inline(.always)
def write_tile[config: GemmConfig, T: Team](team: T, c_map: UInt64):
    """Writes the whole tile to shared memory, then to global memory as one bulk group of TMA stores."""
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
    """Returns how many bulk groups a team has committed, before this step, since the last one that reads the buffer of
    this step: in this tile, or in the previous tile, whose steps used the same buffers."""
    if step >= config.c_buffers():
        return config.c_buffers() - 1
    var last = config.epilogue_steps() - 1
    while last % config.c_buffers() != step % config.c_buffers():
        last -= 1
    return config.epilogue_steps() - 1 - last + step


@inline(.always)
def write_step[T: Team, //, config: GemmConfig, step: Int](team: T, words: SIMD[DType.uint32, T.words], c_map: UInt64):
    """Writes one step of the tile through its buffer: the team fills a buffer while TMA still reads the other."""
    comptime buffer = step % config.c_buffers()
    comptime if step >= config.c_buffers() or config.kernel.is_persistent:
        # One thread waits until TMA has read the last step from this buffer. The barrier holds the others.
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
    """Writes the tile in steps, through two buffers in turn."""
    comptime for step in range(config.epilogue_steps()):
        write_step[config, step](team, team.read[step](), c_map)


@inline(.always)
def finish_stores(leads: Bool):
    """Waits until TMA has read all buffers, before the CTA exits. `leads`: this warp issued the stores of its team."""
    if leads:
        if elect_one_sync():
            tma_wait_group_read[0]()
        syncwarp()
