"""Write-out of the accumulator: TMEM -> registers -> 16-bit -> swizzled shared memory -> TMA store.

Four warps share the work, because a warp reaches only the 32 TMEM lanes of its quadrant (warp % 4). Where a row of the
accumulator lies depends on the MMA shape (PTX ISA 9.7.16.10.5):
    128 rows a CTA               row r in lane r
    64 rows a CTA, in a pair     row r in lane r, the right half of the columns in lane r + 64
    64 rows a CTA, alone         row r in lane r % 16 + 32 * (r / 16)
"""
from ..common.config import ELEMENT_BYTES, GemmConfig
from ..common.ptx import (
    fence_proxy_async,
    mbarrier_wait,
    pack_pair,
    store_matrices,
    tma_commit_group,
    tma_store,
    tma_wait_group_read,
)
from .cta import Cta
from .tcgen05 import fence_after_thread_sync, tmem_load
from max.gpu.primitives.cluster import elect_one_sync
from max.gpu.sync import named_barrier

comptime EPILOGUE_THREADS = 128


@inline(.always)
def epilogue_barrier():
    """All four epilogue warps; named barrier 1, as 0 belongs to the whole CTA."""
    named_barrier[Int32(EPILOGUE_THREADS)](1)


struct WriteOut[config: GemmConfig](TrivialRegisterPassable):
    """What one epilogue warp writes, in steps of `epilogue_width` columns.

    Shared memory holds C in boxes of `cta_m` rows x `epilogue_width` columns, each a TMA store of its own, swizzled
    over the box's whole row: the 16-byte chunk number is XORed with the number of the 128-byte line.
    """

    comptime width = Self.config.epilogue_width
    comptime pitch = Self.width * ELEMENT_BYTES
    comptime halves = 1 if Self.config.half_lanes() else 2  # groups of 16 rows in the warp's 32 lanes

    var tmem: UInt32
    var address: UInt32  # where this lane's matrix rows go in the first step's boxes
    var column: Int32  # of C, where the CTA's tile starts
    var row: Int32

    @inline(.always)
    def __init__(out self, cta: Cta[Self.config]):
        var row = cta.warp * UInt32(16 * Self.halves)
        var box: UInt32 = 0
        comptime if Self.config.split_columns():
            row = cta.warp % 2 * 32
            box = cta.warp // 2
        var lane_row = cta.lane % 16
        var line = lane_row * UInt32(Self.pitch) // 128
        var chunk = cta.lane // 16 ^ line % UInt32(Self.pitch // 16)
        self.tmem = cta.tmem + (cta.warp * 32 << 16)  # the lane is in the upper half of a TMEM address
        self.address = (
            cta.shared + UInt32(cta.layout.c) + box * UInt32(Self.config.block_bytes())
            + (row + lane_row) * UInt32(Self.pitch) + chunk * 16
        )
        self.column = cta.column
        self.row = cta.row

    @inline(.always)
    def read[step: Int](self) -> SIMD[DType.uint32, Self.halves * Self.width // 4]:
        """This warp's part of one step, from TMEM into registers: pairs of adjacent columns, rounded to 16 bits."""
        var values = tmem_load[Self.width, Self.halves](self.tmem + UInt32(step * Self.width))
        var pairs = SIMD[DType.uint32, Self.halves * Self.width // 4]()
        comptime for i in range(Self.halves * Self.width // 4):
            pairs[i] = pack_pair[Self.config.dtype](values[2 * i], values[2 * i + 1])
        return pairs

    @inline(.always)
    def write[buffer: Int](self, pairs: SIMD[DType.uint32, Self.halves * Self.width // 4]):
        """From registers into a buffer of shared memory."""
        comptime for half in range(Self.halves):
            comptime for group in range(Self.width // 16):
                # 16 rows x 16 columns: rows 0-7 and 8-15 of the left 8 columns, then of the right 8. Two chunks further
                # is an XOR, as the swizzle is one, of address bits that nothing else contributes to.
                comptime first = half * Self.width // 4 + group * 4
                store_matrices[buffer * Self.config.step_bytes() + half * 16 * Self.pitch](
                    self.address ^ UInt32(group * 32),
                    pairs[first],
                    pairs[first + 1],
                    pairs[first + 2],
                    pairs[first + 3],
                )

    @inline(.always)
    def store[step: Int, buffer: Int](self, cta: Cta[Self.config], c_map: UInt64):
        """Starts the TMA stores of one step. One thread, after all epilogue warps have filled the buffer."""
        comptime for box in range(Self.config.blocks_per_step()):
            tma_store(
                cta.shared + UInt32(cta.layout.c + buffer * Self.config.step_bytes() + box * Self.config.block_bytes()),
                c_map,
                self.column + Int32(box * Self.config.warp_columns() + step * Self.width),
                self.row,
            )


@inline(.always)
def write_tile[config: GemmConfig](cta: Cta[config], c_map: UInt64):
    """The plain write-out: the whole tile into shared memory, then one bulk group of TMA stores."""
    mbarrier_wait(cta.accumulator(), 0)
    fence_after_thread_sync()
    var out = WriteOut[config](cta)
    comptime for step in range(config.write_out_steps()):
        out.write[step](out.read[step]())
    fence_proxy_async()
    epilogue_barrier()
    if cta.warp == 0:
        if elect_one_sync():
            comptime for step in range(config.write_out_steps()):
                out.store[step, step](cta, c_map)
            tma_commit_group()
            tma_wait_group_read[0]()
