"""The size and place of the accumulators, and of the boxes of C that they are written to."""

from .box import element_bytes
from .block_scaling import ATOM_COLUMNS, ATOM_ROWS, SCALE_SLOTS
from .config import SWIZZLE_ROW_BYTES, TMEM_COLUMNS, GemmConfig

comptime TEAM_THREADS = 128
"""Threads of a team, which writes C together: a consumer warpgroup on sm_90a, the four epilogue warps on sm_100a."""


__extension GemmConfig:
    def split_columns(self) -> Bool:
        """Each CTA of a pair holds 64 rows, the right half of N in lanes 64 to 127: layout B (PTX ISA 9.7.16.10.5)."""
        return self.cta_group == 2 and self.mma_m == 128

    def half_lanes(self) -> Bool:
        """One CTA holds 64 rows, 16 in each quadrant of 32 TMEM lanes: layout F (PTX ISA 9.7.16.10.5)."""
        return self.cta_group == 1 and self.mma_m == 64

    def warp_columns(self) -> Int:
        """Returns the columns of the accumulator that one warp writes; on sm_100a, also its TMEM columns."""
        return self.mma_n // 2 if self.split_columns() else self.mma_n

    def tmem_columns(self) -> Int:
        """Returns how many TMEM columns to allocate: a power of two, at least 32 (PTX ISA 9.7.16.7.1); 0 on sm_90a."""
        if not self.has_tmem():
            return 0
        if not self.kernel.is_block_scaled:
            return max(32, self.accumulators * self.accumulator_columns())
        return power_of_two(self.first_scale_column() + SCALE_SLOTS * self.scale_columns())

    def accumulator_columns(self) -> Int:
        """Returns the distance in TMEM columns from one accumulator to the next: a power of two. With block scaling it
        is what the scale factors leave, in whole steps of the epilogue, so two accumulators of 256 columns overlap."""
        if not self.kernel.is_block_scaled:
            return power_of_two(max(16, self.warp_columns()))
        var room = TMEM_COLUMNS - SCALE_SLOTS * self.scale_columns() - self.warp_columns()
        return min(self.warp_columns(), room // self.epilogue_width * self.epilogue_width)

    def accumulators_overlap(self) -> Bool:
        """The two accumulators share TMEM columns: the MMA may start a tile once the epilogue has read these. One pair
        of barriers serves both, because tiles are accumulated and read in the same order."""
        return self.kernel.is_block_scaled

    def shared_steps(self) -> Int:
        """Returns the steps, at least one, after which the epilogue has read what the next tile overwrites."""
        if self.accumulators == 1:
            return self.epilogue_steps()
        return max(1, (self.warp_columns() - self.accumulator_columns()) // self.epilogue_width)

    def scale_columns(self) -> Int:
        """Returns the TMEM columns of the scale factors of one stage: those of the CTA's rows of A, then of B."""
        return self.scaling.atoms_per_stage() * ATOM_COLUMNS * (self.cta_m() + self.mma_n) // ATOM_ROWS

    def first_scale_column(self) -> Int:
        """Returns the first TMEM column of the scale factors, behind the accumulators."""
        return (self.accumulators - 1) * self.accumulator_columns() + self.warp_columns()

    def splits_k(self) -> Bool:
        """Several CTAs compute the sums of a tile, each over a part of K: split_k.mojo."""
        return self.split_k > 1

    def teams(self) -> Int:
        """Returns how many teams of `TEAM_THREADS` threads write the tile of a CTA."""
        return self.cta_m() // self.team_rows()

    def partial_words(self) -> Int:
        """Returns how many f32 sums of an accumulator one thread of a team holds."""
        return self.team_rows() * self.mma_n // TEAM_THREADS

    def c_element_bytes(self) -> Int:
        return element_bytes(self.out_dtype)

    def team_rows(self) -> Int:
        """Returns how many rows of the accumulator one team writes."""
        return self.cta_m() if self.has_tmem() else self.consumer_m()

    def quantises(self) -> Bool:
        """C has a scale factor for each block of a row: f32 with e4m3, otherwise that of its block-scaled format."""
        return self.out_scaling.bits < 16

    def step_columns(self) -> Int:
        """Returns how many columns of C one step makes of `epilogue_width` columns of the accumulator."""
        return self.epilogue_width * self.results // 8

    def c_box(self) -> Tuple[Int, Int]:
        """Returns the rows and columns that one TMA store of C writes."""
        if self.swapped:
            return self.epilogue_width, min(self.team_columns(), SWIZZLE_ROW_BYTES // self.c_element_bytes())
        return self.team_rows(), self.step_columns()

    def c_pitch(self) -> Int:
        """Returns the bytes of one row of a box of C."""
        return self.c_box()[1] * self.c_element_bytes()

    def team_columns(self) -> Int:
        """Returns how many columns of C the rows of a team become, where `swapped`."""
        return self.team_rows() * self.results // 8

    def c_column(self, column: Int32) -> Int32:
        """Returns the column of C for a column of the product, which is the first of 16."""
        return column // Int32(8 // self.results)

    def c_box_bytes(self) -> Int:
        """Returns the bytes of one box of C in shared memory: the rows of a team, `step_columns` columns."""
        return self.team_rows() * self.step_columns() * self.c_element_bytes()

    def epilogue_steps(self) -> Int:
        return self.warp_columns() // self.epilogue_width

    def boxes_per_step(self) -> Int:
        """Returns how many boxes the CTA fills in one step."""
        if not self.has_tmem():
            return self.consumers()
        return 2 if self.split_columns() else 1

    def step_bytes(self) -> Int:
        return self.boxes_per_step() * self.c_box_bytes()

    def c_buffers(self) -> Int:
        """Returns how many steps of the epilogue have their own buffer in shared memory: two, in turn, or all."""
        return 2 if self.kernel.double_buffers_epilogue else self.epilogue_steps()

    def c_bytes(self) -> Int:
        return self.c_buffers() * self.step_bytes()


def partials_offset(teams: Int) -> Int:
    """Returns the byte offset of the partial sums in the workspace of a launch. They follow the counter of tiles and a
    counter for each team's part of C, 4 bytes each, and begin at a multiple of 128."""
    return (4 * (1 + teams) + 127) // 128 * 128


def power_of_two(count: Int) -> Int:
    """Returns the smallest power of two that is at least `count`."""
    var found = 1
    while found < count:
        found *= 2
    return found
