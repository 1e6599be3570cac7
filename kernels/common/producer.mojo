"""The producer loads stages of A and B by TMA, and multicasts each slice to the CTAs of the cluster that need it."""
from .config import SWIZZLE_ROW_BYTES, GemmConfig
from .cta import Cta, Problem, Tile
from .multicast import Slices
from .pipeline import PRODUCER, MBarrier
from .tma import tma_load


struct Operand[cta_group: Int, slices: Slices, row_bytes: Int = SWIZZLE_ROW_BYTES](TrivialRegisterPassable):
    """The slices of one operand tile that this CTA loads, and the CTAs that receive them."""

    comptime box_lines = Self.slices.box_lines()
    comptime box_rows = Int32(Self.slices.box_rows())
    comptime box_bytes = Self.box_lines * Self.row_bytes

    var map: UInt64
    var rows: Int32  # of the tensor
    var line: Int32  # of the first box, in the tile
    var offset: UInt32  # of the first box, in the stage's tile
    var mask: UInt16
    var part: UInt32

    @inline(.always)
    def __init__(out self, map: UInt64, rows: UInt32, first_row: UInt32, part: UInt32, mask: UInt32):
        self.map = map
        self.rows = Int32(rows)
        self.line = Int32(first_row + part * UInt32(Self.box_lines))
        self.offset = part * UInt32(Self.box_bytes)
        self.mask = UInt16(mask)
        self.part = part

    @inline(.always)
    def load(self, stage: UInt32, full: MBarrier, tile_row: Int32, k: Int32):
        """Starts the TMA copies of this CTA's slices to all CTAs that need them. `stage`: address of the tile."""
        comptime for index in range(Self.slices.boxes_per_part()):
            comptime first = index * Self.slices.parts
            comptime everybody = first + Self.slices.parts <= Self.slices.boxes()
            comptime left = UInt32(Self.slices.boxes() - first)
            if everybody or self.part < left:
                var line = self.line + Int32(first * Self.box_lines)
                var row = line & ~63 if Self.slices.mn_major else line
                row = self.inside(tile_row + row)
                var column = k
                comptime if Self.slices.mn_major:
                    column, row = row, k + line % 64
                tma_load[Self.cta_group, Self.slices.parts > 1](
                    stage + self.offset + UInt32(first * Self.box_bytes), self.map, full.address, column, row, self.mask
                )

    @inline(.always)
    def inside(self, row: Int32) -> Int32:
        """Returns the row where a box begins. A box that would lie wholly out of bounds loads the last rows instead; no
        thread stores their products. L2 serves out-of-bounds boxes for all SMs from one place, so a few of them delay
        all SMs of an H200 (docs/hopper-kernel8.md)."""
        var last = max(Int32(0), self.rows - Self.box_rows)
        comptime if Self.slices.mn_major:
            last &= ~7  # an H200 traps on a box that does not begin at a multiple of 16 bytes
        return row if row < self.rows else last


struct Loader[config: GemmConfig](TrivialRegisterPassable):
    """Fills stages. One thread of every CTA uses it."""

    var a: Operand[Self.config.cta_group, Self.config.a_slices()]
    var b: Operand[Self.config.cta_group, Self.config.b_slices()]
    var problem: Problem

    @inline(.always)
    def __init__(out self, cta: Cta[Self.config], problem: Problem, b_rows: UInt32):
        """Takes the slices of this CTA. The tensor B has `b_rows` rows."""
        comptime sharing = Self.config.sharing()
        self.a = {problem.a, problem.m, 0, sharing.a_part(cta.rank), sharing.a_mask(cta.rank)}
        var b_row = cta.rank_in_pair() * UInt32(Self.config.cta_b_rows())
        self.b = {problem.b, b_rows, b_row, sharing.b_part(cta.rank), sharing.b_mask(cta.rank)}
        self.problem = problem

    @inline(.always)
    def expect_and_load(self, cta: Cta[Self.config], tile: Tile, stage: UInt32, k: Int32):
        """Fills an empty stage. The CTA that leads the MMA arrives at its full barrier and announces the bytes of all
        CTAs of the MMA. Every CTA starts its copies of A and B, from column k of the tensor maps on; the barrier counts
        their bytes. Some may arrive before they are announced, but none that belong to the next phase: every CTA waits
        until the MMAs have read the stage."""
        var full = cta.full().next(stage).in_leader[Self.config.cta_group]()
        if cta.leads_mma():
            full.arrive_and_expect(UInt32(Self.config.full_bytes()))
        var a = cta.shared + UInt32(cta.layout.a) + stage * UInt32(Self.config.a_bytes())
        self.a.load(a, full, tile.row, k)
        var b = cta.shared + UInt32(cta.layout.b) + stage * UInt32(Self.config.b_bytes())
        self.b.load(b, full, self.problem.b_row(tile), k)


@inline(.always)
def produce_tile[config: GemmConfig](cta: Cta[config], problem: Problem, tile: Tile):
    """Fills a stage for each K step of the only tile of a CTA. One thread of every CTA calls this."""
    var loader = Loader[config](cta, problem, problem.n)
    var stages = cta.stages(PRODUCER)
    var k: Int32 = 0
    for _ in range(problem.k_iterations):
        stages.producer_acquire()
        loader.expect_and_load(cta, tile, stages.stage, k)
        k += Int32(config.stage_columns())
        stages.advance()
    stages.producer_tail()
