"""The epilogue of sm_90a: each consumer warpgroup writes its rows of C from its own registers."""
from ..common.box import BoxRows, PlainRows
from ..common.config import GemmConfig
from ..common.cta import Cta, Tile
from ..common.epilogue_store import Team
from .warpgroup import WARPGROUP_WARPS, sync_warpgroup, warp_of_group, warpgroup
from .wgmma import MMA_M, Accumulator, Sums
from std.utils.static_tuple import StaticTuple

comptime WARP_ROWS = MMA_M // WARPGROUP_WARPS
"""Rows that one warp holds of a block of 64 rows."""


struct Epilogue[config: GemmConfig, Rows: BoxRows = PlainRows[config]](Team, TrivialRegisterPassable):
    """The part of a finished tile that one warp writes, in the type of C. With 16 bits, it takes half the registers of
    the accumulator. Shared memory holds C in boxes of a warpgroup's rows; one TMA store writes a box."""

    comptime width = Self.config.epilogue_width
    comptime blocks = Accumulator[Self.config].blocks
    comptime words = Self.blocks * Self.Rows.words
    comptime steps = Self.config.epilogue_steps()

    var tile: StaticTuple[SIMD[DType.uint32, Self.words], Self.steps]
    var box: UInt32  # shared memory address of this warpgroup's box in the first buffer
    var rows: Self.Rows
    var column: Int32  # first column of the warpgroup's part in the product
    var row: Int32
    var end: Int32  # the row after the last one to store
    var group: UInt32
    var warp: UInt32

    @inline(.always)
    def __init__[S: Sums](out self, cta: Cta[Self.config], tile: Tile, sums: S):
        """Converts the sums to the type of C."""
        comptime count = Self.Rows.words
        comptime each = Self.Rows.values
        self.tile = {fill = SIMD[DType.uint32, Self.words](0)}
        comptime for step in range(Self.steps):
            var words = SIMD[DType.uint32, Self.words]()
            comptime for block in range(Self.blocks):
                comptime for i in range(count):
                    var values = SIMD[DType.float32, each]()
                    comptime for value in range(each):
                        values[value] = sums.value[block, each * (step * count + i) + value]()
                    words[block * count + i] = Self.Rows.pack(values)
            self.tile[step] = words
        self.group = warpgroup(cta)
        self.warp = warp_of_group(cta)
        self.box = cta.shared + UInt32(cta.layout.c) + self.group * UInt32(Self.config.c_box_bytes())
        self.rows = {self.box, self.warp * UInt32(WARP_ROWS), cta.lane}
        self.column = tile.column
        var part = self.group % UInt32(Self.config.consumers_of_tile)
        self.row = tile.row + Int32(part) * Int32(Self.config.consumer_m())
        self.end = tile.end

    @inline(.always)
    def read[step: Int](self) -> SIMD[DType.uint32, Self.words]:
        return self.tile[step]

    @inline(.always)
    def write[buffer: Int](self, words: SIMD[DType.uint32, Self.words]):
        comptime for block in range(Self.blocks):
            comptime offset = buffer * Self.config.step_bytes()
            comptime count = Self.Rows.words
            self.rows.write[offset, MMA_M // 16 * block](words.slice[count, offset=block * count]())

    @inline(.always)
    def store[step: Int, buffer: Int](self, c_map: UInt64):
        var box = self.box + UInt32(buffer * Self.config.step_bytes())
        var column = self.column + Int32(step * Self.width)
        Self.Rows.store(box, c_map, column, self.row, self.end)

    @inline(.always)
    def barrier(self):
        sync_warpgroup(self.group)

    @inline(.always)
    def leads(self) -> Bool:
        return self.warp == 0
