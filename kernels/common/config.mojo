"""What a GEMM kernel is compiled for: types, tile, cluster, pipeline and schedule.

`C[M, N] = A[M, K] . B[N, K]^T`; sums are f32. Extensions of `GemmConfig` in tile.mojo, accumulator.mojo and
shared_memory.mojo derive sizes from it. A file sees the methods of an extension if it imports all of its module
(`import *`). All of this is integer arithmetic: the kernels evaluate it at compile time, the launch plan and the tests
at run time. `LayerConfig` (layer_config.mojo) makes it from options, and has what only kernels 8 and 9 do."""

from .accumulator import *
from .kernel import Capabilities
from .shared_memory import *
from .tile import *
from .word import Word

comptime SHARED_MEMORY_LIMIT = 232448
"""Bytes of dynamic shared memory one CTA can have, 227 KB (CUDA Programming Guide, compute capability 9.0 and 10.0)."""

comptime MMA_K_BYTES = 32
"""Bytes along K of one MMA instruction."""

comptime TMEM_COLUMNS = 512
"""Columns of the tensor memory of an SM (PTX ISA 9.7.16.1)."""

comptime SWIZZLE_ROW_BYTES = 128
"""Bytes of a row of a swizzled tile. The swizzle pattern repeats every 8 rows (PTX ISA 5.5.7)."""


@fieldwise_init
struct GemmConfig(TrivialRegisterPassable):
    """The compile-time choices of a kernel.

    On sm_100a, `mma_m x mma_n` is the shape of one MMA instruction. With `cta_group` 2 it is the tile of a CTA pair,
    and each CTA holds half of its rows. On sm_90a, `mma_m x mma_n` is the tile of a CTA. The consumer warpgroups share
    its rows; an instruction has 64 rows."""

    var kernel: Capabilities
    var arch: StaticString
    var dtype: DType  # of A and B; bytes where an element has 4 bits
    var out_dtype: DType  # of C; bytes where an element has 4 bits
    var layout: StaticString  # of the MMA's A and B, in BLAS letters: n is [M, K] and [K, N], t is [K, M] and [N, K]
    var cta_group: Int  # CTAs that work on one MMA: 1, or 2 (a pair)
    var mma_m: Int
    var mma_n: Int
    var consumers: Int  # sm_90a: warpgroups that issue MMAs
    var consumers_of_tile: Int  # consumers that share the rows of a tile, and so read each of its stages
    var consumer_arrivals: Int  # of one consumer that has read a stage
    var stages: Int
    var more_stage_bytes: Int  # of a stage, besides A and B
    var cluster_m: Int  # CTAs of a cluster along M (grid x)
    var cluster_n: Int  # CTAs of a cluster along N (grid y)
    var multicast: Bool
    var epilogue_width: Int  # columns of the accumulator in one step of the epilogue
    var step_row_bytes: Int  # of C that a step makes of a row of the accumulator
    var accumulator_barriers: Int  # pairs of a full and an empty one: of each accumulator in TMEM, or of all together
    var shared_columns: Int  # TMEM columns that two accumulators share
    var tmem_columns: Int  # to allocate
    var band_m: Int  # CTAs along M in a band of the grid, at most; 0: no bands
    var scheduler: Word  # gives a cluster its next tile: none (there is no next), static, clc, dynamic
    var raster_group: Int  # columns of cluster tiles that the raster walks along M together
    var response_slots: Int  # in shared memory, for responses of the scheduler about the next tile

    def has_tmem(self) -> Bool:
        """The kernel is for sm_100a: tensor memory holds the accumulator, and one thread issues the MMAs. On sm_90a,
        the registers of the warpgroups that issue the MMAs hold it."""
        return self.arch == "sm_100a" and not self.kernel.reads_directly

    def warps(self) -> Int:
        """Returns the warps of a CTA. On sm_100a: four epilogue warps, a producer and an MMA warp if the kernel is
        pipelined, and a scheduler warp if it sends responses. On sm_90a: the consumer warpgroups, and a producer
        warpgroup if the kernel is pipelined; its second warp sends responses."""
        if not self.has_tmem():
            return 4 * (self.consumers + (1 if self.kernel.pipelined else 0))
        return 4 + (2 if self.kernel.pipelined else 0) + (1 if self.response_slots > 0 else 0)

    def threads(self) -> Int:
        return self.warps() * 32
