"""What a kernel is compiled for, with all that only kernels 8 and 9 do for the layers of a model: A, B and C with scale
factors, split-K, groups of rows, a swapped product, fused epilogues."""

from .block_scaling import ATOM_BYTES, ATOM_COLUMNS, ATOM_ROWS, F32_BLOCK, SCALE_SLOTS, BlockScaling
from .config import (
    SHARED_MEMORY_LIMIT,
    SWIZZLE_ROW_BYTES,
    TMEM_COLUMNS,
    GemmConfig,
    SharedMemory,
    element_bytes,
    power_of_two,
)
from .epilogues import NO_EPILOGUE, Fusion
from .few_rows import CHUNK
from .multicast import Multicast, Slices
from .types import float_name
from .word import Word
from std.math import ceildiv

comptime TEAM_THREADS = 128
"""Threads of a team, which writes C together: a consumer warpgroup on sm_90a, the four epilogue warps on sm_100a."""


struct LayerConfig(TrivialRegisterPassable):
    """The compile-time choices of a kernel: `gemm`, which is all that kernels 5 to 7 know, and the rest.

    Any combination of options makes a configuration (choices.mojo); `config_error` (rules.mojo) says which rule it
    breaks."""

    var gemm: GemmConfig
    var scaling: BlockScaling  # of A and B
    var scales: Word  # none; tensor: alpha, one factor for all of C; block: scale factors of A and B, and alpha
    var out_scaling: BlockScaling  # of C, where it has scale factors
    var accumulators: Int  # in TMEM: the MMA fills one while the epilogue reads another
    var clc_depth: Int  # CLC response slots in shared memory; 0 without clc
    var sms: Int  # SMs that a persistent launch uses; 0 where the launch has a cluster for each tile
    var ping_pong: Bool  # sm_90a: the consumer warpgroups take whole tiles in turn, not half of each tile
    var epilogue: Int  # number of the fused epilogue
    var results: Int  # columns of C (bytes, where its elements have 4 bits) made of 8 columns of the product
    var split_k: Int  # parts of K that different CTAs multiply, or warps of a CTA where the kernel reads directly
    var layout: StaticString  # of A and B in memory, in BLAS letters: n is [M, K] and [K, N], t is [K, M] and [N, K]
    var swapped: Bool  # the kernel computes B . A^T and stores its transpose, so few rows of A lie along the MMA's N
    var grouped: Bool  # rows of A belong to groups, each with its own B: groups.mojo
    var masked: Bool  # all groups have the same number of rows in memory; only the first ones of each count

    def threads(self) -> Int:
        return 32 * self.split_k if self.gemm.kernel.reads_directly else self.gemm.threads()

    # ---- types -----------------------------------------------------------------------------------------------------
    def dtype_name(self) -> Word:
        """Returns the name of the type of A and B."""
        return self.scaling.name if self.scaling.bits < 16 else float_name(self.gemm.dtype)

    def c_dtype_name(self) -> Word:
        return self.out_scaling.name if self.quantises() else float_name(self.gemm.out_dtype)

    def block_k(self) -> Int:
        """Returns the K elements of a stage: one swizzle row, or a chunk where the kernel reads directly."""
        return 8 * (CHUNK if self.gemm.kernel.reads_directly else SWIZZLE_ROW_BYTES) // self.scaling.bits

    def a_is_k_by_m(self) -> Bool:
        """The tensor A is [K, M] in memory, not [M, K]."""
        return self.layout == "tn" or self.layout == "tt"

    def b_is_k_by_n(self) -> Bool:
        """The tensor B is [K, N] in memory, not [N, K]."""
        return self.layout == "tn" or self.layout == "nn"

    # ---- scale factors of A and B ----------------------------------------------------------------------------------
    def has_scale_factors(self) -> Bool:
        """A and B have scale factors; each stage holds those of its rows."""
        return self.scales == "block"

    def promotes(self) -> Bool:
        """On sm_90a, the consumers multiply the sums of each stage by their scale factors and add them in f32, because
        the tensor core adds fp8 with 13 fraction bits only."""
        return self.has_scale_factors() and not self.gemm.has_tmem()

    def b_scale_sharing(self) -> Multicast:
        """Returns how the CTAs of a cluster share the scale factors of B: all CTAs with equal y need the same."""
        return Multicast(self.gemm.cluster_m, self.gemm.cluster_n, 1, self.gemm.multicast)

    def a_scale_slices(self) -> Slices:
        """Returns how the CTAs divide the scale factors of A, in rows of atoms. They share them like A."""
        return Slices(max(1, self.gemm.cta_m() // ATOM_ROWS), self.gemm.sharing().a_parts(), unit=1)

    def b_scale_slices(self) -> Slices:
        """Returns how the CTAs divide the scale factors of B, in rows of atoms."""
        return Slices(max(1, self.gemm.mma_n // ATOM_ROWS), self.b_scale_sharing().b_parts(), unit=1)

    def atom_row_bytes(self) -> Int:
        """Returns the bytes of the scale factors of 128 rows in a stage; 0 without block scaling."""
        return self.scaling.atoms_per_stage() * ATOM_BYTES

    def a_scale_bytes(self) -> Int:
        if self.promotes():
            return 4 * self.gemm.cta_m()
        return self.gemm.cta_m() // ATOM_ROWS * self.atom_row_bytes()

    def b_scale_bytes(self) -> Int:
        """Returns the bytes of the scale factors of B in a stage. Each CTA of a pair needs those of all columns. A row
        of f32 factors takes 128 bytes, the alignment of a copy; the CTA uses one of them."""
        if self.promotes():
            return 128 * ceildiv(self.gemm.mma_n, F32_BLOCK)
        return self.gemm.mma_n // ATOM_ROWS * self.atom_row_bytes()

    def b_scales_offset(self) -> Int:
        """Returns the offset of the scale factors of B in shared memory, behind those of A (`SharedMemory.more`)."""
        return SharedMemory(self.gemm).more + self.gemm.stages * self.a_scale_bytes()

    # ---- tensor memory ---------------------------------------------------------------------------------------------
    def scale_columns(self) -> Int:
        """Returns the TMEM columns of the scale factors of one stage: those of the CTA's rows of A, then of B."""
        return self.scaling.atoms_per_stage() * ATOM_COLUMNS * (self.gemm.cta_m() + self.gemm.mma_n) // ATOM_ROWS

    def shared_columns(self) -> Int:
        """Returns how many TMEM columns two accumulators share. With block scaling, an accumulator and the scale
        factors leave too little room for another one of 256 columns; its place is rounded to steps of the epilogue."""
        if not self.gemm.kernel.is_block_scaled:
            return 0
        var columns, step = self.gemm.warp_columns(), self.gemm.epilogue_width
        var room = TMEM_COLUMNS - SCALE_SLOTS * self.scale_columns() - columns
        return max(0, columns - room // step * step)

    def first_scale_column(self) -> Int:
        """Returns the first TMEM column of the scale factors, behind the accumulators."""
        return (self.accumulators - 1) * self.gemm.accumulator_columns() + self.gemm.warp_columns()

    def tmem_columns(self) -> Int:
        """Returns how many TMEM columns to allocate: a power of two, at least 32 (PTX ISA 9.7.16.7.1); 0 on sm_90a."""
        if not self.gemm.has_tmem():
            return 0
        if not self.gemm.kernel.is_block_scaled:
            return max(32, self.accumulators * self.gemm.accumulator_columns())
        return power_of_two(self.first_scale_column() + SCALE_SLOTS * self.scale_columns())

    def shared_steps(self) -> Int:
        """Returns the steps, at least one, after which the epilogue has read what the next tile overwrites."""
        if self.accumulators == 1:
            return self.gemm.epilogue_steps()
        return max(1, (self.gemm.warp_columns() - self.gemm.accumulator_columns()) // self.gemm.epilogue_width)

    # ---- split-K ---------------------------------------------------------------------------------------------------
    def splits_k(self) -> Bool:
        """Several CTAs compute the sums of a tile, each over a part of K: split_k.mojo."""
        return self.split_k > 1 and not self.gemm.kernel.reads_directly

    def teams(self) -> Int:
        """Returns how many teams of `TEAM_THREADS` threads write the tile of a CTA."""
        return self.gemm.cta_m() // self.gemm.team_rows()

    def partial_words(self) -> Int:
        """Returns how many f32 sums of an accumulator one thread of a team holds."""
        return self.gemm.team_rows() * self.gemm.mma_n // TEAM_THREADS

    def shared_memory_bytes(self) -> Int:
        """Returns the bytes of dynamic shared memory that a CTA uses. With split-K, two teams have a word each behind
        all else. A kernel that reads directly has the sums of its warps there."""
        if self.gemm.kernel.reads_directly:
            return 4 * self.split_k * 16 * self.gemm.mma_n
        return SharedMemory(self.gemm).end + (8 if self.splits_k() else 0)

    def stages_that_fit(self) -> Int:
        """Returns the most stages that fit into shared memory, each with a full and an empty barrier."""
        var stage = self.gemm.stage_bytes() + 16
        var free = SHARED_MEMORY_LIMIT - self.shared_memory_bytes() + self.gemm.stages * stage
        return free // max(1, stage)

    # ---- epilogue --------------------------------------------------------------------------------------------------
    def fusion(self) -> Fusion:
        return Fusion(self.epilogue)

    def is_fused(self) -> Bool:
        return self.epilogue != NO_EPILOGUE

    def quantises(self) -> Bool:
        """C has a scale factor for each block of a row: f32 with e4m3, otherwise that of its block-scaled format."""
        return self.out_scaling.bits < 16

    def stores_product(self) -> Bool:
        """C is the product itself: no split-K, no fused epilogue, no scale factors."""
        return not self.splits_k() and not self.is_fused() and not self.quantises()

    def blocks_in_step(self) -> Int:
        """Returns how many blocks of a row one step of the epilogue makes, where C is block-scaled."""
        return self.gemm.epilogue_width * self.fusion().results // 8 // self.out_scaling.block()

    def defers_epilogue(self) -> Bool:
        """On sm_90a, the consumers keep a finished tile in registers, in the type of C, and write it while they
        multiply the next. They write it at once with split-K, or if the tile, the accumulator and the partial sums to
        be promoted do not fit into the 255 registers of a thread."""
        var sums = self.gemm.consumer_m() * self.gemm.mma_n // 128
        var kept = sums * element_bytes(self.gemm.out_dtype) // 4
        var promoted = min(self.gemm.mma_n, 128) // 2 if self.promotes() else 0
        var fits = sums + kept + promoted <= 192
        var is_possible = self.gemm.kernel.is_persistent and not self.gemm.has_tmem()
        return is_possible and not self.ping_pong and fits and not self.splits_k()

    # ---- C ---------------------------------------------------------------------------------------------------------
    def step_columns(self) -> Int:
        """Returns how many columns of C one step makes of `epilogue_width` columns of the accumulator."""
        return self.gemm.epilogue_width * self.results // 8

    def c_box(self) -> Tuple[Int, Int]:
        """Returns the rows and columns that one TMA store of C writes."""
        if self.swapped:
            var across = SWIZZLE_ROW_BYTES // element_bytes(self.gemm.out_dtype)
            return self.gemm.epilogue_width, min(self.team_columns(), across)
        return self.gemm.team_rows(), self.step_columns()

    def c_pitch(self) -> Int:
        """Returns the bytes of one row of a box of C."""
        return self.c_box()[1] * element_bytes(self.gemm.out_dtype)

    def team_columns(self) -> Int:
        """Returns how many columns of C the rows of a team become, where `swapped`."""
        return self.gemm.team_rows() * self.results // 8

    def c_column(self, column: Int32) -> Int32:
        """Returns the column of C for a column of the product, which is the first of 16."""
        return column // Int32(8 // self.results)


def partials_offset(teams: Int) -> Int:
    """Returns the byte offset of the partial sums in the workspace of a launch. They follow the counter of tiles and a
    counter for each team's part of C, 4 bytes each, and begin at a multiple of 128."""
    return (4 * (1 + teams) + 127) // 128 * 128
