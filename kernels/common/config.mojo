"""What a GEMM kernel is compiled for, and the sizes that follow from it.

`C[M, N] = A[M, K] . B[N, K]^T`, all row-major, A and B of 16-bit elements or block-scaled, f32 accumulation, C of 16 or
32 bits. Everything here is plain integer arithmetic: the kernels evaluate it at compile time, the launch plan and the
tests at run time.
"""
from .block_scaling import (
    ATOM_BYTES,
    ATOM_COLUMNS,
    ATOM_ROWS,
    E4M3,
    F32_BLOCK,
    SCALE_SLOTS,
    UNSCALED,
    BlockScaling,
    block_scaled_names,
)
from ..own import KERNEL as OWN
from .epilogues import NONE, Fusion, epilogue_number
from .multicast import Multicast, Slices
from std.math import ceildiv


@fieldwise_init
struct Kernel(TrivialRegisterPassable):
    """One kernel of the series, by what it can do. Shared code asks for these capabilities, never for a name."""

    var name: StaticString
    var pipelined: Bool  # a ring of stages between warps of different roles; otherwise there is one stage
    var double_buffers_epilogue: Bool  # C leaves through two small buffers, one stored while the next is written
    var is_persistent: Bool  # CTAs compute tile after tile; or a CTA's place in the grid is its tile
    var is_block_scaled: Bool  # A and B have scale factors

    def fuses(self) -> Bool:
        """C leaves through a fused epilogue, if one is asked for."""
        return self.is_persistent and not self.is_block_scaled


comptime SERIES = [
    Kernel("kernel5", pipelined=False, double_buffers_epilogue=False, is_persistent=False, is_block_scaled=False),
    Kernel("kernel6", pipelined=True, double_buffers_epilogue=False, is_persistent=False, is_block_scaled=False),
    Kernel("kernel7", pipelined=True, double_buffers_epilogue=True, is_persistent=False, is_block_scaled=False),
    Kernel("kernel8", pipelined=True, double_buffers_epilogue=True, is_persistent=True, is_block_scaled=False),
    Kernel("kernel9", pipelined=True, double_buffers_epilogue=True, is_persistent=True, is_block_scaled=True),
    OWN,
]


def dtype_names() -> List[StaticString]:
    """Of A and B."""
    var names: List[StaticString] = ["bf16", "fp16", E4M3.name]
    return names + block_scaled_names()


comptime OUT_DTYPES: List[StaticString] = ["bf16", "fp16", "f32"]
"""Of C."""


def float_type(name: StaticString) -> DType:
    """bf16 for what is neither fp16 nor f32."""
    if name == "f32":
        return DType.float32
    return DType.float16 if name == "fp16" else DType.bfloat16


def float_name(dtype: DType) -> StaticString:
    if dtype == DType.float32:
        return "f32"
    return "bf16" if dtype == DType.bfloat16 else "fp16"


def kernel_names() -> List[StaticString]:
    return [kernel.name for kernel in materialize[SERIES]() if kernel.name != ""]


def find_kernel(name: StaticString) -> Kernel:
    """One without capabilities for a name that is not of the series: `find_error` refuses it."""
    comptime for kernel in SERIES:
        if name == kernel.name:
            return kernel
    return Kernel(name, pipelined=False, double_buffers_epilogue=False, is_persistent=False, is_block_scaled=False)


comptime SHARED_MEMORY_LIMIT = 232448
"""Bytes of dynamic shared memory one CTA can have, 227 KB (CUDA Programming Guide, compute capability 9.0 and 10.0)."""

comptime ELEMENT_BYTES = 2
"""Of A and B that are not block-scaled."""

comptime MMA_K_BYTES = 32
"""K of one MMA instruction: 32 bytes of a row of A and of B, whatever their type (PTX ISA 9.7.15.2, 9.7.16.2.1)."""

comptime TMEM_COLUMNS = 512

comptime SWIZZLE_ROW_BYTES = 128
"""One row of a 128-byte swizzled tile; 8 such rows are the repeating pattern (PTX ISA 5.5.7)."""


struct GemmConfig(TrivialRegisterPassable):
    """Compile-time choices of a kernel.

    sm_100a: `mma_m x mma_n` is the shape of one MMA instruction: with `cta_group` 2 that is the tile of a CTA pair, and
    each CTA holds half of its rows.
    sm_90a: `mma_m x mma_n` is the tile of a CTA, whose rows the consumer warpgroups share; instructions have 64 rows.

    Any combination can be made; `config_error` (rules.mojo) says what is wrong with one.
    """

    var kernel: Kernel
    var arch: StaticString
    var dtype: DType  # of A and B that `scaling` does not name
    var scaling: BlockScaling  # of A and B
    var scales: StaticString  # none; tensor: one number for all of C; block: scale factors of A and B, and that number
    var out_dtype: DType  # of C
    var cta_group: Int  # CTAs that work on one MMA: 1, or 2 (a pair)
    var mma_m: Int
    var mma_n: Int
    var block_k: Int  # K elements of a stage: one swizzle row
    var stages: Int
    var cluster_m: Int  # CTAs of a cluster along M (grid x)
    var cluster_n: Int  # CTAs of a cluster along N (grid y)
    var epilogue_width: Int  # columns of C in one TMA store
    var multicast: Bool
    var band_m: Int  # at most so many CTAs along M run side by side before the next columns; 0: all of them
    var scheduler: StaticString  # where a cluster's next tile comes from: none (there is no next), static, clc, dynamic
    var raster_group: Int  # columns of cluster tiles that the raster walks along M together
    var accumulators: Int  # in TMEM: the MMA fills one while the epilogue reads another
    var clc_depth: Int  # CLC response slots in shared memory; 0 without clc
    var sms: Int  # SMs used by a persistent launch; 0 where a cluster is launched for each tile
    var ping_pong: Bool  # sm_90a: the consumer warpgroups take tiles in turn, in place of halves of each
    var epilogue: Int  # number of the fused epilogue
    var results: Int  # columns of C that 8 columns of the product become

    def __init__(
        out self,
        name: StaticString,
        *,
        arch: StaticString = "sm_100a",
        dtype: DType = DType.bfloat16,
        scaling: BlockScaling = UNSCALED,
        scales: Optional[StaticString] = None,
        out_dtype: Optional[DType] = None,
        cta_group: Optional[Int] = None,
        mma_m: Optional[Int] = None,
        mma_n: Int = 256,
        block_k: Optional[Int] = None,
        stages: Optional[Int] = None,
        cluster_m: Optional[Int] = None,
        cluster_n: Optional[Int] = None,
        epilogue_width: Optional[Int] = None,
        multicast: Bool = True,
        band_m: Optional[Int] = None,
        scheduler: Optional[StaticString] = None,
        raster_group: Optional[Int] = None,
        accumulators: Optional[Int] = None,
        clc_depth: Optional[Int] = None,
        sms: Optional[Int] = None,
        ping_pong: Bool = False,
        epilogue: StaticString = "none",
    ):
        """What is not given the kernel chooses: `scales` block where it is block-scaled, tensor with e4m3; `out_dtype` as
        `dtype`; `cta_group` 2 on sm_100a, 1 on sm_90a; `mma_m` 128 rows a CTA; as many
        `stages` as fit (kernel5: one); `cluster_m` x `cluster_n` 4 x 4 on sm_100a, 2 x 1 on sm_90a; `epilogue_width` 64,
        but 32 where the epilogue is double-buffered or C is f32, or less if that does not divide the columns of a warp; `band_m` 2048
        rows for kernel7 on sm_90a, else no bands; in a persistent kernel the `scheduler` clc on sm_100a, static on sm_90a,
        `raster_group` 8, with `ping_pong` and its smaller tiles 16, and 2 `accumulators` in TMEM; `clc_depth` 2; `sms`
        those of a B200 or H200 that such clusters can fill."""
        var blackwell = arch == "sm_100a"
        var kernel = find_kernel(name)
        self.kernel = kernel
        self.arch = arch
        self.dtype = dtype
        self.scaling = scaling
        self.scales = "none"
        if kernel.is_block_scaled:
            self.scales = "block"
        elif scaling.name == E4M3.name:
            self.scales = "tensor"
        self.scales = scales.or_else(self.scales)
        self.out_dtype = out_dtype.or_else(dtype)
        self.cta_group = cta_group.or_else(2 if blackwell else 1)
        self.mma_m = mma_m.or_else(128 * self.cta_group)
        self.mma_n = mma_n
        self.block_k = block_k.or_else(8 * SWIZZLE_ROW_BYTES // scaling.bits)
        self.stages = 1
        self.cluster_m = cluster_m.or_else(4 if blackwell else 2)
        self.cluster_n = cluster_n.or_else(4 if blackwell else 1)
        self.epilogue_width = epilogue_width.or_else(
            32 if kernel.double_buffers_epilogue or self.out_dtype == DType.float32 else 64
        )
        self.multicast = multicast
        self.band_m = 0
        self.scheduler = "none"
        self.raster_group = 1
        self.accumulators = 1
        self.clc_depth = 0
        self.sms = 0
        self.ping_pong = ping_pong
        self.epilogue = epilogue_number(epilogue)
        self.results = Fusion(self.epilogue).results
        if not epilogue_width:
            while self.epilogue_width > 16 and self.warp_columns() % self.epilogue_width != 0:
                self.epilogue_width //= 2
        if kernel.double_buffers_epilogue and not kernel.is_persistent and arch == "sm_90a":
            self.band_m = 2048 // max(1, self.mma_m)
        self.band_m = band_m.or_else(self.band_m)
        if kernel.is_persistent:
            self.scheduler = "clc" if blackwell else "static"
            self.raster_group = 16 if ping_pong else 8
            self.accumulators = 2 if blackwell else 1
        self.scheduler = scheduler.or_else(self.scheduler)
        self.raster_group = raster_group.or_else(self.raster_group)
        self.accumulators = accumulators.or_else(self.accumulators)
        self.clc_depth = clc_depth.or_else(2 if self.cancels_clusters() else 0)
        self.sms = sms.or_else(sms_filled(self.cluster_size(), blackwell) if self.fills_sms() else 0)
        self.stages = stages.or_else(self.stages_that_fit() if kernel.pipelined else 1)

    # ---- types ---------------------------------------------------------------------------------------------------
    def operand_dtype(self) -> DType:
        """Of A and B, on sm_90a."""
        return DType.float8_e4m3fn if self.scaling.name == E4M3.name else self.dtype

    def has_scale_factors(self) -> Bool:
        """A stage holds those of its rows of A and B."""
        return self.scales == "block"

    def promotes(self) -> Bool:
        """sm_90a: the products of a stage are multiplied by their scale factors and added up in f32, not by the tensor
        core, which adds fp8 with 13 fraction bits."""
        return self.has_scale_factors() and not self.has_tmem()

    # ---- schedule ------------------------------------------------------------------------------------------------
    def overlaps_launches(self) -> Bool:
        """A launch may begin while the one before it in the stream ends (programmatic dependent launch): it prepares
        its barriers, and touches global memory once the other is over. Only where it was measured to pay."""
        return self.kernel.is_persistent and not self.has_tmem()

    def is_static(self) -> Bool:
        """A cluster knows all of its tiles from the start."""
        return self.scheduler == "static"

    def cancels_clusters(self) -> Bool:
        """A cluster requests each further tile from the hardware: cluster launch control (PTX ISA 9.7.13.17)."""
        return self.scheduler == "clc"

    def counts_tiles(self) -> Bool:
        """A cluster takes the number of each further tile from a counter in global memory."""
        return self.scheduler == "dynamic"

    def fetches_tiles(self) -> Bool:
        """One thread fetches the next tile, and passes it to all roles of the cluster through a ring of responses."""
        return self.cancels_clusters() or self.counts_tiles()

    def fills_sms(self) -> Bool:
        """As many clusters are launched as run at the same time, if there are as many tiles."""
        return self.is_static() or self.counts_tiles()

    def response_slots(self) -> Int:
        """Answers about the next tile that have a place of their own in shared memory. With a counter one is enough,
        and best: what a cluster has not asked for, another can still take."""
        return 1 if self.counts_tiles() else self.clc_depth

    # ---- architecture --------------------------------------------------------------------------------------------
    def has_tmem(self) -> Bool:
        """The accumulator is in tensor memory, and one thread issues the MMA: sm_100a. Otherwise it is in the registers
        of the warpgroups that issue it."""
        return self.arch == "sm_100a"

    def consumers(self) -> Int:
        """Warpgroups that multiply, sm_90a: each has 64 or 128 rows."""
        return 1 if self.mma_m == 64 and not self.ping_pong else 2

    def consumers_of_tile(self) -> Int:
        """Of them, those that share the rows of a tile, and so all read its stages."""
        return 1 if self.ping_pong else self.consumers()

    def defers_epilogue(self) -> Bool:
        """sm_90a: the consumers keep a finished tile in registers, in the type of C, and write it while they multiply the
        next. Not where 128 registers a thread add up a tile, and 64 more hold what the tensor core adds to it."""
        var fits = not self.promotes() or self.consumer_m() * self.mma_n <= 64 * 128
        return self.kernel.is_persistent and not self.has_tmem() and not self.ping_pong and fits

    def consumer_m(self) -> Int:
        return self.mma_m // self.consumers_of_tile()

    # ---- tiles ---------------------------------------------------------------------------------------------------
    def cta_m(self) -> Int:
        """Rows of A, and of C, that one CTA holds."""
        return self.mma_m // self.cta_group

    def cta_b_rows(self) -> Int:
        """Rows of B (columns of C) that one CTA loads: the CTAs of a pair share the MMA's N."""
        return self.mma_n // self.cta_group

    def cluster_rows(self) -> Int:
        """Rows of C that a cluster computes together."""
        return self.cluster_m * self.cta_m()

    def cluster_columns(self) -> Int:
        return self.cluster_n * self.mma_n

    def a_bytes(self) -> Int:
        return self.cta_m() * SWIZZLE_ROW_BYTES

    def b_bytes(self) -> Int:
        return self.cta_b_rows() * SWIZZLE_ROW_BYTES

    def atom_row_bytes(self) -> Int:
        """Scale factors of 128 rows in a stage; 0 without block scaling."""
        return self.scaling.atoms() * ATOM_BYTES

    def a_scale_bytes(self) -> Int:
        if self.promotes():
            return 4 * self.cta_m()
        return self.cta_m() // ATOM_ROWS * self.atom_row_bytes()

    def b_scale_bytes(self) -> Int:
        """Each CTA of a pair multiplies all columns of B, and needs the factors of all. f32: 128 bytes of a row, which is as
        much as copies are aligned to; one factor of them is used."""
        if self.promotes():
            return 128 * ceildiv(self.mma_n, F32_BLOCK)
        return self.mma_n // ATOM_ROWS * self.atom_row_bytes()

    def stage_bytes(self) -> Int:
        return self.a_bytes() + self.b_bytes() + self.a_scale_bytes() + self.b_scale_bytes()

    def full_bytes(self) -> Int:
        """Bytes that arrive on one full barrier: the stage of every CTA that shares the MMA."""
        return self.cta_group * self.stage_bytes()

    def cluster_size(self) -> Int:
        return self.cluster_m * self.cluster_n

    def sharing(self) -> Multicast:
        return Multicast(self.cluster_m, self.cluster_n, self.cta_group, self.multicast)

    def empty_arrivals(self) -> Int:
        """Arrivals an empty barrier waits for: each reader of what a CTA loads into a stage says once that it has read
        it. A reader is an MMA on sm_100a, a consumer warpgroup on sm_90a; or each of its warps, as they read scale factors
        by themselves."""
        var warps = 4 if self.promotes() else 1
        return self.sharing().readers() * (1 if self.has_tmem() else warps * self.consumers_of_tile())

    def accumulator_readers(self) -> Int:
        """Warps that read an accumulator in TMEM: four of each CTA of the MMA."""
        return 4 * self.cta_group

    def response_readers(self) -> Int:
        """Arrivals that say a response has been read. sm_100a, in a cluster: in each CTA the producer, the scheduler and
        four epilogue warps, and in each CTA that leads an MMA the MMA thread. sm_90a, in a CTA: the producer and the
        warps of the consumers; rank 0 also hears the other CTAs, once each."""
        if self.has_tmem():
            return 6 * self.cluster_size() + self.cluster_size() // self.cta_group
        return 1 + 4 * self.consumers()

    def a_slices(self) -> Slices:
        return Slices(self.cta_m(), self.sharing().a_parts())

    def b_slices(self) -> Slices:
        return Slices(self.cta_b_rows(), self.sharing().b_parts())

    def a_scale_slices(self) -> Slices:
        """In rows of atoms."""
        return Slices(max(1, self.cta_m() // ATOM_ROWS), self.sharing().a_parts(), unit=1)

    def b_scale_slices(self) -> Slices:
        return Slices(max(1, self.mma_n // ATOM_ROWS), self.sharing().b_scale_parts(), unit=1)

    def l2_promotion(self) -> Int:
        """Bytes that a TMA load makes L2 fetch at once, at least. 128 is one row of a box; 256 brings the next K step's
        row, too. On an H200 that gains 6 to 15 % where nothing else loads ahead, with one stage; with more stages it
        loses up to 6 %, as L2 moves 10 % more bytes."""
        return 256 if self.has_tmem() or self.stages == 1 else 128

    # ---- accumulator and epilogue ----------------------------------------------------------------------------------
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

    def accumulator_barriers(self) -> Int:
        """Pairs of a full and an empty barrier."""
        return 1 if self.accumulators_overlap() else self.accumulators

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

    def c_element_bytes(self) -> Int:
        return 4 if self.out_dtype == DType.float32 else 2

    def block_rows(self) -> Int:
        """Rows of one box of C: those of the warps that write out together, four of the CTA or a warpgroup."""
        return self.cta_m() if self.has_tmem() else self.consumer_m()

    def is_fused(self) -> Bool:
        return self.epilogue != NONE

    def fusion(self) -> Fusion:
        return Fusion(self.epilogue)

    def c_width(self) -> Int:
        """Columns of C that `epilogue_width` columns of the accumulator become: those of a TMA store."""
        return self.epilogue_width * self.results // 8

    def c_column(self, column: Int32) -> Int32:
        """Where a column of the product, the first of 16, comes to lie in C."""
        return column if self.results == 8 else column // 2

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

    # ---- CTA -----------------------------------------------------------------------------------------------------
    def warps(self) -> Int:
        """sm_100a: four epilogue warps, a producer and an MMA warp where these are warps of their own, and a scheduler warp
        where tiles must be fetched. sm_90a: the consumer warpgroups, and a producer warpgroup where it is one of
        its own; its second warp fetches tiles."""
        if not self.has_tmem():
            return 4 * (self.consumers() + (1 if self.kernel.pipelined else 0))
        return 4 + (2 if self.kernel.pipelined else 0) + (1 if self.fetches_tiles() else 0)

    def threads(self) -> Int:
        return self.warps() * 32

    def barrier_bytes(self) -> Int:
        """Full and empty barrier of each stage, and what `fixed_barrier_bytes` counts."""
        return 16 * self.stages + self.fixed_barrier_bytes()

    def fixed_barrier_bytes(self) -> Int:
        """sm_100a: the full barrier of each accumulator, its empty barrier where it is used again, the empty barrier of
        each slot of scale factors, the word for the TMEM address. For each response slot 16 bytes and a full and an empty barrier.
        """
        var scales = SCALE_SLOTS if self.kernel.is_block_scaled else 0
        var accumulators = self.accumulator_barriers() * (2 if self.kernel.is_persistent else 1)
        return (8 * (accumulators + scales + 1) if self.has_tmem() else 0) + 32 * self.response_slots()

    def shared_memory_bytes(self) -> Int:
        return self.stages * self.stage_bytes() + self.c_bytes() + self.barrier_bytes()

    def stages_that_fit(self) -> Int:
        var free = SHARED_MEMORY_LIMIT - self.c_bytes() - self.fixed_barrier_bytes()
        return free // max(1, self.stage_bytes() + 16)

    # ---- names ---------------------------------------------------------------------------------------------------
    def dtype_name(self) -> StaticString:
        """Of A and B."""
        if self.scaling.bits < 16:
            return self.scaling.name
        return float_name(self.dtype)

    def c_dtype_name(self) -> StaticString:
        return float_name(self.out_dtype)


def power_of_two(count: Int) -> Int:
    """The smallest that is at least `count`."""
    var found = 1
    while found < count:
        found *= 2
    return found


def sms_filled(cluster_size: Int, blackwell: Bool) -> Int:
    """CTAs that run at the same time, one an SM; a cluster lies within one graphics processing cluster (GPC). 132 SMs of
    an H200, where 66, 30, 15 and 7 clusters of 2, 4, 8 and 16 CTAs were resident at once; 148 of a B200, how they are
    spread over GPCs is an estimate."""
    var gpcs = [20, 20, 18, 18, 18, 18, 18, 18] if blackwell else [18, 18, 18, 18, 18, 16, 16, 10]
    var clusters = 0
    for sms in gpcs:
        clusters += sms // cluster_size
    return clusters * cluster_size


struct SharedMemory(TrivialRegisterPassable):
    """Where things lie in a CTA's dynamic shared memory, as byte offsets from its start: A stages, B stages, C boxes,
    scale factors, scheduler responses, then barriers; what concerns accumulators and TMEM exists on sm_100a only. Tiles come first: they
    are 128-byte swizzled and need 1024-byte alignment (PTX ISA 5.5.7), which every tile size here is a multiple of."""

    var a: Int
    var b: Int
    var c: Int
    var a_scales: Int
    var b_scales: Int
    var responses: Int
    var full: Int
    var empty: Int
    var accumulator_full: Int
    var accumulator_empty: Int
    var response_full: Int
    var response_empty: Int
    var scales_empty: Int
    var tmem_address: Int

    def __init__(out self, config: GemmConfig):
        self.a = 0
        self.b = self.a + config.stages * config.a_bytes()
        self.c = self.b + config.stages * config.b_bytes()
        self.a_scales = self.c + config.c_bytes()
        self.b_scales = self.a_scales + config.stages * config.a_scale_bytes()
        self.responses = self.b_scales + config.stages * config.b_scale_bytes()
        self.full = self.responses + 16 * config.response_slots()
        self.empty = self.full + 8 * config.stages
        self.accumulator_full = self.empty + 8 * config.stages
        var accumulators = 8 * config.accumulator_barriers() if config.has_tmem() else 0
        self.accumulator_empty = self.accumulator_full + accumulators
        self.response_full = self.accumulator_empty + (accumulators if config.kernel.is_persistent else 0)
        self.response_empty = self.response_full + 8 * config.response_slots()
        self.scales_empty = self.response_empty + 8 * config.response_slots()
        self.tmem_address = self.scales_empty + (8 * SCALE_SLOTS if config.kernel.is_block_scaled else 0)
