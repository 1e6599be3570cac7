"""Where a tile is added up, and the boxes in which it becomes C."""

from .box import size_of
from .block_scaling import ATOM_COLUMNS, ATOM_ROWS, SCALE_SLOTS
from .config import SWIZZLE_ROW_BYTES, TMEM_COLUMNS, GemmConfig
from .epilogues import NONE, Fusion

comptime TEAM = 128
"""Threads that write out together: a consumer warpgroup of sm_90a, the epilogue warps of sm_100a."""


__extension GemmConfig:
    def split_columns(self) -> Bool:
        """M = 128 in a pair: 64 rows a CTA, the right half of N in lanes 64-127 (layout B, PTX ISA 9.7.16.10.5)."""
        return self.cta_group == 2 and self.mma_m == 128

    def half_lanes(self) -> Bool:
        """M = 64 in one CTA: 16 rows in each quadrant of 32 TMEM lanes (layout F)."""
        return self.cta_group == 1 and self.mma_m == 64

    def warp_columns(self) -> Int:
        """Columns of the accumulator that one warp writes out, on sm_100a also the TMEM columns in use."""
        return self.mma_n // 2 if self.split_columns() else self.mma_n

    def tmem_columns(self) -> Int:
        """TMEM columns to allocate: a power of two, at least 32 (PTX ISA 9.7.16.7.1). None on sm_90a."""
        if not self.has_tmem():
            return 0
        if not self.kernel.is_block_scaled:
            return max(32, self.accumulators * self.accumulator_columns())
        return power_of_two(self.scale_column() + SCALE_SLOTS * self.scale_columns())

    def accumulator_columns(self) -> Int:
        """From the start of one accumulator in TMEM to the next: a power of two. With block scaling as many as leave room
        for the scale factors, in whole steps of the epilogue: two accumulators of 256 columns overlap."""
        if not self.kernel.is_block_scaled:
            return power_of_two(max(16, self.warp_columns()))
        var room = TMEM_COLUMNS - SCALE_SLOTS * self.scale_columns() - self.warp_columns()
        return min(self.warp_columns(), room // self.epilogue_width * self.epilogue_width)

    def accumulators_overlap(self) -> Bool:
        """The MMA may start a tile once the epilogue has read the columns that the accumulators share. There is then one
        pair of barriers for both, as tiles are accumulated and read in one order."""
        return self.kernel.is_block_scaled

    def shared_steps(self) -> Int:
        """Steps of the epilogue, at least one, after which it has read the columns that the next tile is accumulated in.
        """
        if self.accumulators == 1:
            return self.epilogue_steps()
        return max(1, (self.warp_columns() - self.accumulator_columns()) // self.epilogue_width)

    def scale_columns(self) -> Int:
        """TMEM columns of the scale factors of one stage: those of the CTA's rows of A, then those of B."""
        return self.scaling.atoms() * ATOM_COLUMNS * (self.cta_m() + self.mma_n) // ATOM_ROWS

    def scale_column(self) -> Int:
        """Where they begin: behind the accumulators."""
        return (self.accumulators - 1) * self.accumulator_columns() + self.warp_columns()

    def splits_k(self) -> Bool:
        """Several CTAs add up a tile: split_k.mojo."""
        return self.split_k > 1

    def teams(self) -> Int:
        """Groups of `TEAM` threads of a CTA that write out parts of a tile."""
        return self.cta_m() // self.block_rows()

    def partial_words(self) -> Int:
        """What a thread of a team holds of an accumulator."""
        return self.block_rows() * self.mma_n // TEAM

    def c_element_bytes(self) -> Int:
        return size_of(self.out_dtype)

    def block_rows(self) -> Int:
        """Rows of one box of C: those of the warps that write out together, four of the CTA or a warpgroup."""
        return self.cta_m() if self.has_tmem() else self.consumer_m()

    def is_fused(self) -> Bool:
        return self.epilogue != NONE

    def quantises(self) -> Bool:
        """C has scale factors of blocks of its rows: f32 ones of e4m3, or those of a block-scaled format."""
        return self.out_scaling.bits < 16

    def blocks_in_step(self) -> Int:
        """Blocks of a row that share a factor in one step, where C is block-scaled."""
        return self.epilogue_width * self.fusion().results // 8 // self.out_scaling.block()

    def fusion(self) -> Fusion:
        return Fusion(self.epilogue)

    def c_width(self) -> Int:
        """Columns of C that `epilogue_width` columns of the accumulator become: those of a TMA store."""
        return self.epilogue_width * self.results // 8

    def c_box(self) -> Tuple[Int, Int]:
        """Rows and columns of a TMA store of C."""
        if self.swapped:
            return self.epilogue_width, min(self.swapped_columns(), SWIZZLE_ROW_BYTES // self.c_element_bytes())
        return self.block_rows(), self.c_width()

    def c_pitch(self) -> Int:
        """Bytes of a row of a box of C."""
        return self.c_box()[1] * self.c_element_bytes()

    def swapped_columns(self) -> Int:
        """Columns of C that the rows of a box become."""
        return self.block_rows() * self.results // 8

    def c_column(self, column: Int32) -> Int32:
        """Where a column of the product, the first of 16, comes to lie in C."""
        return column // Int32(8 // self.results)

    def block_bytes(self) -> Int:
        """One box of C in shared memory, `c_width` columns wide."""
        return self.block_rows() * self.c_width() * self.c_element_bytes()

    def epilogue_steps(self) -> Int:
        return self.warp_columns() // self.epilogue_width

    def blocks_per_step(self) -> Int:
        """Boxes that the CTA fills in one step."""
        if not self.has_tmem():
            return self.consumers()
        return 2 if self.split_columns() else 1

    def step_bytes(self) -> Int:
        return self.blocks_per_step() * self.block_bytes()

    def c_buffers(self) -> Int:
        """Steps of the epilogue that have their own shared memory: two, used alternately, or all of them."""
        return 2 if self.kernel.double_buffers_epilogue else self.epilogue_steps()

    def c_bytes(self) -> Int:
        return self.c_buffers() * self.step_bytes()


def partials_offset(teams: Int) -> Int:
    """Where partial sums begin in the workspace of a launch, behind one word for the counter of tiles and one for
    each team's part of C."""
    return (4 * (1 + teams) + 127) // 128 * 128


def power_of_two(count: Int) -> Int:
    """The smallest that is at least `count`."""
    var found = 1
    while found < count:
        found *= 2
    return found
