"""The epilogue of sm_100a: waits for an accumulator, moves it from TMEM to registers, writes it out.

Four warps share the work, because a warp reaches only the 32 TMEM lanes of its quadrant (warp % 4). Where a row of the
accumulator lies depends on the MMA shape (PTX ISA 9.7.16.10.5):
    128 rows a CTA               row r in lane r
    64 rows a CTA, in a pair     row r in lane r, the right half of the columns in lane r + 64
    64 rows a CTA, alone         row r in lane r % 16 + 32 * (r / 16)
"""
from ..common.config import GemmConfig
from ..common.cta import Cta
from ..common.epilogue_store import BoxRows, Team
from ..common.ptx import address_in, mbarrier_arrive_cluster, mbarrier_wait, pack_pair, tma_store
from ..common.ring import Ring
from ..common.scheduler import Tile
from .cta import tmem_address
from .tcgen05 import fence_after_thread_sync, fence_before_thread_sync, tmem_load
from max.gpu.primitives.cluster import elect_one_sync
from max.gpu.sync import named_barrier, syncwarp

comptime EPILOGUE_WARPS = 4


struct Epilogue[config: GemmConfig](Team, TrivialRegisterPassable):
    """What one epilogue warp writes. Shared memory holds C in boxes of `cta_m` rows x `epilogue_width` columns, each a
    TMA store of its own."""

    comptime width = Self.config.epilogue_width
    comptime halves = 1 if Self.config.half_lanes() else 2  # groups of 16 rows in the warp's 32 lanes
    comptime words = Self.halves * BoxRows[Self.width].words

    var tmem: UInt32
    var empty: UInt32  # barrier of the accumulator, in the CTA that leads the MMA
    var boxes: UInt32  # C in shared memory
    var rows: BoxRows[Self.width]
    var column: Int32  # of C, where the CTA's tile starts
    var row: Int32
    var warp: UInt32

    @inline(.always)
    def __init__(out self, cta: Cta[Self.config], tile: Tile, accumulators: Ring[Self.config.accumulators]):
        """Waits for the last commit of the MMA thread."""
        mbarrier_wait(cta.accumulator_full(accumulators.stage), accumulators.parity)
        fence_after_thread_sync()
        var row = cta.warp * UInt32(16 * Self.halves)
        var box: UInt32 = 0
        comptime if Self.config.split_columns():
            row = cta.warp % 2 * 32
            box = cta.warp // 2
        # The lane is in the upper half of a TMEM address.
        comptime columns = UInt32(Self.config.accumulator_columns())
        self.tmem = tmem_address(cta) + (cta.warp * 32 << 16) + accumulators.stage * columns
        self.empty = address_in(cta.accumulator_empty(accumulators.stage), cta.rank - cta.in_pair())
        self.boxes = cta.shared + UInt32(cta.layout.c)
        self.rows = {self.boxes + box * UInt32(Self.config.block_bytes()), row, cta.lane}
        self.column = tile.column
        self.row = tile.row
        self.warp = cta.warp

    @inline(.always)
    def read[step: Int](self) -> SIMD[DType.uint32, Self.words]:
        var values = tmem_load[Self.width, Self.halves](self.tmem + UInt32(step * Self.width))
        comptime if Self.config.is_persistent() and step == Self.config.epilogue_steps() - 1:
            self.release()
        var pairs = SIMD[DType.uint32, Self.words]()
        comptime for i in range(Self.words):
            pairs[i] = pack_pair[Self.config.dtype](values[2 * i], values[2 * i + 1])
        return pairs

    @inline(.always)
    def release(self):
        """Signals the MMA thread that this warp has read all of its accumulator: it may multiply the tile after next,
        or with one accumulator the next. The whole warp, after its last load."""
        fence_before_thread_sync()
        syncwarp()
        if elect_one_sync():
            mbarrier_arrive_cluster(self.empty)
        syncwarp()

    @inline(.always)
    def write[buffer: Int](self, pairs: SIMD[DType.uint32, Self.words]):
        comptime for half in range(Self.halves):
            comptime offset = buffer * Self.config.step_bytes() + half * 16 * BoxRows[Self.width].pitch
            comptime words = BoxRows[Self.width].words
            self.rows.write[offset](pairs.slice[words, offset=half * words]())

    @inline(.always)
    def store[step: Int, buffer: Int](self, c_map: UInt64):
        comptime for box in range(Self.config.blocks_per_step()):
            tma_store(
                self.boxes + UInt32(buffer * Self.config.step_bytes() + box * Self.config.block_bytes()),
                c_map,
                self.column + Int32(box * Self.config.warp_columns() + step * Self.width),
                self.row,
            )

    @inline(.always)
    def barrier(self):
        """Named barrier 1, as 0 belongs to the whole CTA."""
        named_barrier[Int32(EPILOGUE_WARPS * 32)](1)

    @inline(.always)
    def leads(self) -> Bool:
        return self.warp == 0
