"""What a GEMM kernel is compiled for: types, tile, cluster, pipeline and schedule.

`C[M, N] = A[M, K] . B[N, K]^T`, all row-major. A and B have 16-bit elements, are e4m3 or block-scaled; C has 16 or 32
bits, or scale factors of its own; sums are f32. A and B of 16 bits may be [K, M] and [K, N] in memory. Extensions of
`GemmConfig` in tile.mojo, accumulator.mojo and shared_memory.mojo derive sizes from it, those in types.mojo and
epilogues.mojo say more of its types and its epilogue, and choices.mojo reads it from options. A file sees the methods
of an extension if it imports all of its module (`import *`). All of this is integer arithmetic: the kernels evaluate it
at compile time, the launch plan and the tests at run time."""

from .accumulator import *
from .block_scaling import BlockScaling
from .kernel import Capabilities, Kernel
from .shared_memory import *
from .tile import *
from .word import Word

comptime SHARED_MEMORY_LIMIT = 232448
"""Bytes of dynamic shared memory one CTA can have, 227 KB (CUDA Programming Guide, compute capability 9.0 and 10.0)."""

comptime ELEMENT_BYTES = 2
"""Bytes of a 16-bit element of A and B."""

comptime MMA_K_BYTES = 32
"""K of one MMA instruction in bytes of a row of A and of B, the same for all types (PTX ISA 9.7.15.2, 9.7.16.2.1)."""

comptime TMEM_COLUMNS = 512
"""Columns of tensor memory of an SM (PTX ISA 9.7.16.1)."""

comptime SWIZZLE_ROW_BYTES = 128
"""Bytes of a row of a swizzled tile. The swizzle pattern repeats every 8 rows (PTX ISA 5.5.7)."""


struct GemmConfig(TrivialRegisterPassable):
    """The compile-time choices of a kernel.

    On sm_100a, `mma_m x mma_n` is the shape of one MMA instruction. With `cta_group` 2 it is the tile of a CTA pair,
    and each CTA holds half of its rows. On sm_90a, `mma_m x mma_n` is the tile of a CTA. The consumer warpgroups share
    its rows; an instruction has 64 rows.

    Any combination of options makes a configuration; `config_error` (rules.mojo) says which rule it breaks."""

    var kernel: Capabilities
    var arch: StaticString
    var dtype: DType  # of 16-bit A and B; `scaling` names other types
    var scaling: BlockScaling  # of A and B
    var scales: Word  # none; tensor: alpha, one factor for all of C; block: scale factors of A and B, and alpha
    var out_dtype: DType  # of C; a byte where its elements have 4 bits
    var out_scaling: BlockScaling  # of C, where it has scale factors
    var cta_group: Int  # CTAs that work on one MMA: 1, or 2 (a pair)
    var mma_m: Int
    var mma_n: Int
    var block_k: Int  # K elements of a stage: one swizzle row
    var stages: Int
    var cluster_m: Int  # CTAs of a cluster along M (grid x)
    var cluster_n: Int  # CTAs of a cluster along N (grid y)
    var epilogue_width: Int  # columns of C in one TMA store
    var multicast: Bool
    var band_m: Int  # CTAs along M in a band of the grid, at most; 0: no bands
    var scheduler: Word  # gives a cluster its next tile: none (there is no next), static, clc, dynamic
    var raster_group: Int  # columns of cluster tiles that the raster walks along M together
    var accumulators: Int  # in TMEM: the MMA fills one while the epilogue reads another
    var clc_depth: Int  # CLC response slots in shared memory; 0 without clc
    var sms: Int  # SMs that a persistent launch uses; 0 where the launch has a cluster for each tile
    var ping_pong: Bool  # sm_90a: the consumer warpgroups take whole tiles in turn, not half of each tile
    var epilogue: Int  # number of the fused epilogue
    var results: Int  # columns of C (bytes, where its elements have 4 bits) made of 8 columns of the product
    var split_k: Int  # parts of K that different CTAs multiply
    var layout: StaticString  # of A and B in memory, in BLAS letters: n is [M, K] and [K, N], t is [K, M] and [N, K]
    var swapped: Bool  # the kernel computes B . A^T and stores its transpose, so few rows of A lie along the MMA's N
    var grouped: Bool  # rows of A belong to groups, each with its own B: groups.mojo
    var masked: Bool  # all groups have the same number of rows in memory; only the first ones of each count

    def has_scale_factors(self) -> Bool:
        """A and B have scale factors; each stage holds those of its rows."""
        return self.scales == "block"

    def promotes(self) -> Bool:
        """On sm_90a, the consumers multiply the sums of each stage by their scale factors and add them in f32, because
        the tensor core adds fp8 with 13 fraction bits only."""
        return self.has_scale_factors() and not self.has_tmem()

    def overlaps_launches(self) -> Bool:
        """A launch may begin before the previous one has ended (programmatic dependent launch). Until then it only
        initialises barriers and does not access global memory. Kernels do this where it was measured to pay."""
        return self.kernel.is_persistent and not self.has_tmem()

    def is_static(self) -> Bool:
        """Each cluster has a fixed list of tiles."""
        return self.scheduler == "static"

    def cancels_clusters(self) -> Bool:
        """A cluster requests each further tile from the hardware: cluster launch control (PTX ISA 9.7.13.17)."""
        return self.scheduler == "clc"

    def counts_tiles(self) -> Bool:
        """A cluster takes the number of each further tile from a counter in global memory."""
        return self.scheduler == "dynamic"

    def fetches_tiles(self) -> Bool:
        """One thread fetches the next tile and sends it to all roles of the cluster through a ring of responses."""
        return self.cancels_clusters() or self.counts_tiles()

    def fills_sms(self) -> Bool:
        """The launch has as many clusters as run at the same time, or one for each tile if there are fewer tiles."""
        return self.is_static() or self.counts_tiles()

    def has_tmem(self) -> Bool:
        """The kernel is for sm_100a: tensor memory holds the accumulator, and one thread issues the MMAs. On sm_90a,
        the registers of the warpgroups that issue the MMAs hold it."""
        return self.arch == "sm_100a"

    def consumers(self) -> Int:
        """Returns how many warpgroups issue MMAs on sm_90a: each has 64 or 128 rows."""
        return 1 if self.mma_m == 64 and not self.ping_pong else 2

    def consumers_of_tile(self) -> Int:
        """Returns how many consumers share the rows of a tile, and so read each of its stages."""
        return 1 if self.ping_pong else self.consumers()

    def defers_epilogue(self) -> Bool:
        """On sm_90a, the consumers keep a finished tile in registers, in the type of C, and write it while they
        multiply the next. They write it at once with split-K, or if the tile, the accumulator and the partial sums to
        be promoted do not fit into the 255 registers of a thread."""
        var sums = self.consumer_m() * self.mma_n // 128
        var kept = sums * self.c_element_bytes() // 4
        var promoted = min(self.mma_n, 128) // 2 if self.promotes() else 0
        var fits = sums + kept + promoted <= 192
        return self.kernel.is_persistent and not self.has_tmem() and not self.ping_pong and fits and not self.splits_k()

    def warps(self) -> Int:
        """Returns the warps of a CTA. On sm_100a: four epilogue warps, a producer and an MMA warp if the kernel is
        pipelined, and a scheduler warp if tiles are fetched. On sm_90a: the consumer warpgroups, and a producer
        warpgroup if the kernel is pipelined; its second warp fetches tiles."""
        if not self.has_tmem():
            return 4 * (self.consumers() + (1 if self.kernel.pipelined else 0))
        return 4 + (2 if self.kernel.pipelined else 0) + (1 if self.fetches_tiles() else 0)

    def threads(self) -> Int:
        return self.warps() * 32


def resident_ctas(cluster_size: Int, blackwell: Bool) -> Int:
    """Returns how many CTAs run at the same time, one on each SM. A cluster runs within one graphics processing cluster
    (GPC). An H200 has 132 SMs: 66, 30, 15 and 7 clusters of 2, 4, 8 and 16 CTAs were resident at once. A B200 has 148;
    their distribution over GPCs is an estimate."""
    var gpcs = [20, 20, 18, 18, 18, 18, 18, 18] if blackwell else [18, 18, 18, 18, 18, 16, 16, 10]
    var clusters = 0
    for sms in gpcs:
        clusters += sms // cluster_size
    return clusters * cluster_size
