"""What a GEMM kernel is compiled for: types, tile, cluster, pipeline and schedule.

`C[M, N] = A[M, K] . B[N, K]^T`, all row-major. A and B have 16-bit elements, are e4m3 or block-scaled; C has 16 or 32
bits, or scale factors of its own; sums are f32. A and B of 16 bits may be [K, M] and [K, N] in memory. Extensions of
`GemmConfig` in tile.mojo, accumulator.mojo and shared_memory.mojo derive sizes from it. All of this is integer
arithmetic: the kernels evaluate it at compile time, the launch plan and the tests at run time."""

from .accumulator import *
from .block_scaling import E4M3, UNSCALED, BlockScaling, block_scaled_names, find_scaling
from .epilogues import Fusion, epilogue_names, epilogue_number
from .options import Options
from .series import *
from .shared_memory import *
from .tile import *
from .word import Word, matching_string

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


def dtype_names() -> List[Word]:
    """Returns the names of the types that A and B may have."""
    var names: List[Word] = ["bf16", "fp16", E4M3.name]
    return names + block_scaled_names()


comptime OUT_DTYPES: List[Word] = ["bf16", "fp16", "f32", E4M3.name, "nvfp4", "mxfp8", "mxfp4"]
"""The names of the types that C may have."""


def element_type(name: Word) -> DType:
    """Returns the type of this name: bytes for elements of 4 bits, bf16 for a name not in `OUT_DTYPES`."""
    if name == "f32":
        return DType.float32
    if find_scaling(name).bits < 16:
        return DType.uint8 if find_scaling(name).bits == 4 else DType.float8_e4m3fn
    return DType.float16 if name == "fp16" else DType.bfloat16


def float_name(dtype: DType) -> Word:
    if dtype == DType.float32:
        return "f32"
    return "bf16" if dtype == DType.bfloat16 else "fp16"


struct GemmConfig(TrivialRegisterPassable):
    """The compile-time choices of a kernel.

    On sm_100a, `mma_m x mma_n` is the shape of one MMA instruction. With `cta_group` 2 it is the tile of a CTA pair,
    and each CTA holds half of its rows. On sm_90a, `mma_m x mma_n` is the tile of a CTA. The consumer warpgroups share
    its rows; an instruction has 64 rows.

    Any combination of options makes a configuration; `config_error` (rules.mojo) says which rule it breaks."""

    var kernel: Kernel
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

    def __init__(out self, var options: Options) raises:
        """Takes the given options. The kernel chooses the others."""
        var arch = options.word[["sm_100a", "sm_90a"]]("arch", "sm_100a")
        var blackwell = arch == "sm_100a"
        var kernel = find_kernel(options.word[kernel_names()]("kernel", "kernel6"))
        self.kernel = kernel
        self.arch = matching_string["sm_100a", "sm_90a"](arch)
        var dtype = options.word[dtype_names()]("dtype", "bf16")
        self.scaling = find_scaling(dtype)
        self.dtype = element_type(dtype) if self.scaling.bits == 16 else DType.bfloat16
        var scales: Word = "none"
        if kernel.is_block_scaled:
            scales = "block"
        elif dtype == E4M3.name:
            scales = "tensor"
        self.scales = options.word[["none", "tensor", "block"]]("scales", scales)
        var out_dtype = options.word[OUT_DTYPES]("out_dtype", float_name(self.dtype))
        self.out_dtype = element_type(out_dtype)
        self.out_scaling = find_scaling(out_dtype)
        self.cta_group = options.number("cta_group", 2 if blackwell else 1)
        self.mma_m = options.number("mma_m", 128 * self.cta_group)
        self.mma_n = options.number("mma_n", 256)
        self.block_k = options.number("block_k", 8 * SWIZZLE_ROW_BYTES // self.scaling.bits)
        self.grouped = options.switch("grouped")
        self.masked = options.switch("masked")
        self.cluster_m = options.number("cluster_m", 4 if blackwell and not self.grouped else 2)
        self.cluster_n = options.number("cluster_n", 4 if blackwell and not self.grouped else 1)
        self.multicast = options.switch("multicast", True)
        var bands = kernel.double_buffers_epilogue and not kernel.is_persistent and not blackwell
        self.band_m = options.number("band_m", 2048 // max(1, self.mma_m) if bands else 0)
        self.ping_pong = options.switch("ping_pong")
        var scheduler: Word = "none"
        if kernel.is_persistent:
            scheduler = "clc" if blackwell and not self.grouped else "static"
        self.scheduler = options.word[["clc", "static", "dynamic", "none"]]("scheduler", scheduler)
        var raster_group = 16 if self.ping_pong else 8
        self.raster_group = options.number("raster_group", raster_group if kernel.is_persistent else 1)
        self.accumulators = options.number("accumulators", 2 if blackwell and kernel.is_persistent else 1)
        self.epilogue = epilogue_number(options.word[epilogue_names()]("epilogue", "none"))
        self.results = Fusion(self.epilogue).results * min(8, self.out_scaling.bits) // 8
        self.split_k = options.number("split_k", 1)
        self.layout = matching_string["nt", "nn", "tn", "tt"](options.word[["nt", "nn", "tn", "tt"]]("layout", "nt"))
        self.swapped = options.switch("swapped")
        # A step is half as wide if C is f32, or if it has two buffers and no scale factors.
        var halves = self.out_dtype == DType.float32
        halves = halves or (kernel.double_buffers_epilogue and self.out_scaling.bits == 16)
        self.epilogue_width = 32 if halves else 64
        self.clc_depth, self.sms, self.stages = 0, 0, 1
        # All fields have a value from here on, so methods may be called.
        while self.epilogue_width > 16 and self.warp_columns() % self.epilogue_width != 0:
            self.epilogue_width //= 2
        self.epilogue_width = options.number("epilogue_width", self.epilogue_width)
        self.clc_depth = options.number("clc_depth", 2 if self.cancels_clusters() else 0)
        self.sms = options.number("sms", resident_ctas(self.cluster_size(), blackwell) if self.fills_sms() else 0)
        self.stages = options.number("stages", self.stages_that_fit() if kernel.pipelined else 1)
        options.finish()

    def operand_dtype(self) -> DType:
        """Returns the type of A and B on sm_90a."""
        return DType.float8_e4m3fn if self.scaling.name == E4M3.name else self.dtype

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

    def dtype_name(self) -> Word:
        """Returns the name of the type of A and B."""
        if self.scaling.bits < 16:
            return self.scaling.name
        return float_name(self.dtype)

    def c_dtype_name(self) -> Word:
        return self.out_scaling.name if self.quantises() else float_name(self.out_dtype)


def resident_ctas(cluster_size: Int, blackwell: Bool) -> Int:
    """Returns how many CTAs run at the same time, one on each SM. A cluster runs within one graphics processing cluster
    (GPC). An H200 has 132 SMs: 66, 30, 15 and 7 clusters of 2, 4, 8 and 16 CTAs were resident at once. A B200 has 148;
    their distribution over GPCs is an estimate."""
    var gpcs = [20, 20, 18, 18, 18, 18, 18, 18] if blackwell else [18, 18, 18, 18, 18, 16, 16, 10]
    var clusters = 0
    for sms in gpcs:
        clusters += sms // cluster_size
    return clusters * cluster_size
