"""The accumulators, and the boxes of C that the epilogue writes them to."""

from .config import GemmConfig


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

    def accumulator_columns(self) -> Int:
        """Returns the distance in TMEM columns from one accumulator to the next."""
        return power_of_two(max(16, self.warp_columns())) - self.shared_columns

    def team_rows(self) -> Int:
        """Returns how many rows of the accumulator one team writes: a consumer warpgroup on sm_90a, the four epilogue
        warps on sm_100a."""
        return self.cta_m() if self.has_tmem() else self.consumer_m()

    def c_box_bytes(self) -> Int:
        """Returns the bytes of one box of C in shared memory: what a team writes in a step."""
        return self.team_rows() * self.step_row_bytes

    def epilogue_steps(self) -> Int:
        return self.warp_columns() // self.epilogue_width

    def boxes_per_step(self) -> Int:
        """Returns how many boxes the CTA fills in one step."""
        if not self.has_tmem():
            return self.consumers
        return 2 if self.split_columns() else 1

    def step_bytes(self) -> Int:
        return self.boxes_per_step() * self.c_box_bytes()

    def c_buffers(self) -> Int:
        """Returns how many steps of the epilogue have their own buffer in shared memory: two, in turn, or all."""
        return 2 if self.kernel.double_buffers_epilogue else self.epilogue_steps()

    def c_bytes(self) -> Int:
        return self.c_buffers() * self.step_bytes()


def power_of_two(count: Int) -> Int:
    """Returns the smallest power of two that is at least `count`."""
    var found = 1
    while found < count:
        found *= 2
    return found
