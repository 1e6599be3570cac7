"""The epilogue of sm_100a: loads an accumulator from TMEM to registers, and writes it to C.

Four warps share the work, because a warp can access only the 32 TMEM lanes of its quadrant (warp % 4). The MMA shape
decides in which lane a row of the accumulator lies (PTX ISA 9.7.16.10.5):
    128 rows a CTA               row r in lane r
    64 rows a CTA, in a pair     row r in lane r, the right half of the columns in lane r + 64
    64 rows a CTA, alone         row r in lane r % 16 + 32 * (r / 16)
"""
from ..common.box import BoxRows, PlainRows
from ..common.config import GemmConfig
from ..common.cta import Cta, Tile
from ..common.epilogue_store import Team
from ..common.pipeline import MBarrier
from .start_and_finish import tmem_address
from .tcgen05 import fence_after_thread_sync, fence_before_thread_sync, tmem_load
from max.gpu.primitives.cluster import elect_one_sync
from max.gpu.sync import named_barrier, syncwarp

comptime EPILOGUE_WARPS = 4


@fieldwise_init
struct Epilogue[config: GemmConfig, Rows: BoxRows = PlainRows[config]](Team, TrivialRegisterPassable):
    """The part of a tile that one epilogue warp writes. Shared memory holds C in boxes of `cta_m` rows; one TMA store
    writes a box."""

    comptime width = Self.config.epilogue_width
    comptime halves = 1 if Self.config.half_lanes() else 2  # groups of 16 rows in the warp's 32 lanes
    comptime words = Self.halves * Self.Rows.words
    comptime count = Self.halves * Self.width // 2
    comptime Values = SIMD[DType.float32, Self.count]

    var tmem: UInt32
    var empty: MBarrier  # of the accumulator, in the CTA that leads the MMA; only persistent kernels have it
    var boxes: UInt32  # C in shared memory
    var rows: Self.Rows
    var column: Int32  # first column of the CTA's tile in the product
    var row: Int32
    var end: Int32  # the row after the last one to store
    var warp: UInt32
    var values_row: UInt32  # row in the product of this thread's first value
    var values_column: UInt32

    @inline(.always)
    def load[step: Int](self) -> Self.Values:
        """Loads this thread's part of one step from TMEM."""
        var registers = tmem_load[Self.width, Self.halves](self.tmem + UInt32(step * Self.width))
        var values = Self.Values()
        comptime for i in range(Self.count):
            values[i] = registers[i]
        return values

    @inline(.always)
    def pack_words(self, values: Self.Values) -> SIMD[DType.uint32, Self.words]:
        """Converts the values of one step to the type of C."""
        comptime each = Self.Rows.values
        var words = SIMD[DType.uint32, Self.words]()
        comptime for i in range(Self.words):
            words[i] = Self.Rows.pack(values.slice[each, offset=each * i]())
        return words

    @inline(.always)
    def read[step: Int](self) -> SIMD[DType.uint32, Self.words]:
        return self.pack_words(self.load[step]())

    @inline(.always)
    def write[buffer: Int](self, words: SIMD[DType.uint32, Self.words]):
        comptime for half in range(Self.halves):
            comptime count = Self.Rows.words
            self.rows.write[buffer * Self.config.step_bytes(), half](words.slice[count, offset=half * count]())

    @inline(.always)
    def store[step: Int, buffer: Int](self, c_map: UInt64):
        comptime for box in range(Self.config.boxes_per_step()):
            var column = self.column + Int32(box * Self.config.warp_columns() + step * Self.width)
            Self.Rows.store(
                self.boxes + UInt32(buffer * Self.config.step_bytes() + box * Self.config.c_box_bytes()),
                c_map,
                column,
                self.row,
                self.end,
            )

    @inline(.always)
    def barrier(self):
        """Waits at named barrier 1; barrier 0 belongs to the whole CTA."""
        named_barrier[Int32(EPILOGUE_WARPS * 32)](1)

    @inline(.always)
    def leads(self) -> Bool:
        return self.warp == 0


@inline(.always)
def wait_for_accumulator[
    config: GemmConfig, //, Rows: BoxRows = PlainRows[config]
](cta: Cta[config], tile: Tile, accumulator: UInt32 = 0, parity: UInt32 = 0) -> Epilogue[config, Rows]:
    """Waits until the accumulator holds the tile (consumer wait). Returns the part that this warp writes. The defaults
    are those of a CTA with one tile: its only accumulator, and the first phase of the full barrier."""
    comptime E = Epilogue[config, Rows]
    comptime alone = config.accumulator_barriers == 1
    var number: UInt32 = 0 if alone else accumulator
    cta.accumulator_full().next(number).wait(parity)
    fence_after_thread_sync()
    var row = cta.warp * UInt32(16 * E.halves)
    var box: UInt32 = 0
    comptime if config.split_columns():
        row = cta.warp % 2 * 32
        box = cta.warp // 2
    # The upper 16 bits of a TMEM address are the lane.
    comptime columns = UInt32(config.accumulator_columns())
    var tmem = tmem_address(cta) + (cta.warp * 32 << 16) + accumulator * columns
    var empty = cta.accumulator_empty().next(number).in_cta(cta.rank - cta.rank_in_pair())
    var boxes = cta.shared + UInt32(cta.layout.c)
    var rows = Rows(boxes + box * UInt32(config.c_box_bytes()), row, cta.lane)
    var values_row = UInt32(tile.row) + row + cta.lane // 4
    var values_column = UInt32(tile.column) + box * UInt32(config.warp_columns()) + cta.lane % 4 * 2
    return {tmem, empty, boxes, rows, tile.column, tile.row, tile.end, cta.warp, values_row, values_column}


@inline(.always)
def release_accumulator(epilogue: Epilogue):
    """Arrives at the empty barrier of the accumulator, which this warp has read. The barrier may be the other CTA's of
    the pair. For that the ISA's pattern has an arrival and a wait that are relaxed at cluster scope, between these
    fences (9.7.16.6.4.4); with the default, release at CTA scope, ptxas 13.0 makes the same machine code."""
    fence_before_thread_sync()
    syncwarp()
    if elect_one_sync():
        epilogue.empty.arrive()
    syncwarp()
