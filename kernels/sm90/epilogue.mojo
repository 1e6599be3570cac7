"""The epilogue of sm_90a: each consumer warpgroup writes its rows of C from its own registers."""
from ..common.box import pack_word, values_per_word
from ..common.config import GemmConfig
from ..common.cta import Cta, Tile
from ..common.epilogue_store import Team
from ..common.epilogues import EPILOGUES
from ..common.fragment import Fragment, Values
from ..common.layer import EpilogueOperands
from ..common.ptx import mul_after_wait, pinned
from ..common.store_rows import RowsOfBox, store_rows
from .cta import WARPGROUP_WARPS, sync_warpgroup, warp_of_group, warpgroup
from .wgmma import MMA_M, Accumulator
from std.utils.static_tuple import StaticTuple

comptime WARP_ROWS = MMA_M // WARPGROUP_WARPS
"""Rows that one warp holds of a block of 64 rows."""


struct Epilogue[config: GemmConfig](Team, TrivialRegisterPassable):
    """The part of a finished tile that one warp writes, in the type of C. With 16 bits, it takes half the registers of
    the accumulator. Shared memory holds C in boxes of a warpgroup's rows x `step_columns` columns; one TMA store writes
    a box."""

    comptime width = Self.config.epilogue_width
    comptime blocks = Accumulator[Self.config].blocks
    comptime Rows = RowsOfBox[Self.config]
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
    def __init__(
        out self, cta: Cta[Self.config], tile: Tile, accumulator: Accumulator[Self.config], alpha: Float32 = 1
    ):
        """Converts the accumulator to the type of C. If the configuration has `scales`, it multiplies by `alpha`,
        unless `quantise` has done so."""
        comptime count = Self.Rows.words
        comptime each = values_per_word(Self.config.out_dtype)
        self.tile = {fill = SIMD[DType.uint32, Self.words](0)}
        comptime for step in range(Self.steps):
            var words = SIMD[DType.uint32, Self.words]()
            comptime for block in range(Self.blocks):
                comptime for i in range(count):
                    var values = SIMD[DType.float32, each]()
                    comptime for value in range(each):
                        values[value] = accumulator.values[block][each * (step * count + i) + value]
                        comptime if Self.config.scales != "none" and not Self.config.quantises():
                            values[value] = mul_after_wait(values[value], alpha)
                    words[block * count + i] = pack_word[Self.config.out_dtype](values)
            self.tile[step] = words
        self.group = warpgroup(cta)
        self.warp = warp_of_group(cta)
        self.box = cta.shared + UInt32(cta.layout.c) + self.group * UInt32(Self.config.c_box_bytes())
        self.rows = {self.box, self.warp * UInt32(WARP_ROWS), cta.lane}
        self.column = tile.column
        var part = self.group % UInt32(Self.config.consumers_of_tile())
        self.row = tile.row + Int32(part) * Int32(Self.config.consumer_m())
        self.end = tile.end

    @inline(.always)
    def read[step: Int](self) -> SIMD[DType.uint32, Self.words]:
        return self.tile[step]

    @inline(.always)
    def write[buffer: Int](self, words: SIMD[DType.uint32, Self.words]):
        comptime for block in range(Self.blocks):
            comptime offset = buffer * Self.config.step_bytes() + block * MMA_M * Self.Rows.pitch
            comptime count = Self.Rows.words
            self.rows.write[offset](words.slice[count, offset=block * count]())

    @inline(.always)
    def store[step: Int, buffer: Int](self, c_map: UInt64):
        var box = self.box + UInt32(buffer * Self.config.step_bytes())
        var column = self.column + Int32(step * Self.width)
        store_rows[Self.config](box, c_map, column, self.row, self.end)

    @inline(.always)
    def barrier(self):
        sync_warpgroup(self.group)

    @inline(.always)
    def leads(self) -> Bool:
        return self.warp == 0


@inline(.always)
def first_row_of_thread[config: GemmConfig](cta: Cta[config], tile: Tile) -> UInt32:
    """Returns the first row of the product that this thread's registers hold."""
    var part = warpgroup(cta) % UInt32(config.consumers_of_tile())
    return (
        UInt32(tile.row) + part * UInt32(config.consumer_m()) + warp_of_group(cta) * UInt32(WARP_ROWS) + cta.lane // 4
    )


@inline(.always)
def apply_epilogue[
    config: GemmConfig
](cta: Cta[config], tile: Tile, product: Accumulator[config], operands: EpilogueOperands) -> Accumulator[config]:
    """Applies the fused epilogue to a finished tile. If C has fewer columns, the last registers are unused."""
    comptime E = EPILOGUES[config.epilogue - 1]
    var results = Accumulator[config]()
    var first_column = UInt32(tile.column) + cta.lane % 4 * 2
    comptime for block in range(product.blocks):
        comptime for first in range(0, product.registers, 8):
            var values = Values()
            comptime for i in range(8):
                values[i] = pinned(product.values[block][first + i])  # stays behind the wait for it
            var row = first_row_of_thread(cta, tile) + UInt32(block * MMA_M)
            var column = first_column + UInt32(2 * first)
            comptime if config.swapped:
                swap(row, column)
            var found = E.apply(Fragment[config.dtype, config.swapped](values, row, column, operands))
            comptime for i in range(E.results):
                results.values[block][first * E.results // 8 + i] = found[i]
    return results
