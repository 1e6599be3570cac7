"""What a GEMM kernel is compiled for, and the sizes that follow from it.

`C[M, N] = A[M, K] . B[N, K]^T`, all row-major, 16-bit elements, f32 accumulation. Everything here is plain integer
arithmetic: the kernels evaluate it at compile time, the launch plan and the tests at run time.
"""
from .multicast import Multicast, Slices
from .residency import sms_filled

comptime SERIES = [StaticString("kernel5"), "kernel6", "kernel7", "kernel8"]
"""The kernels by name. What each can do follows from `GemmConfig.step_of_series`."""

comptime SHARED_MEMORY_LIMIT = 232448
"""Bytes of dynamic shared memory one CTA can have, 227 KB (CUDA Programming Guide, compute capability 9.0 and 10.0)."""

comptime ELEMENT_BYTES = 2
comptime MMA_K = 16
"""K of one MMA instruction with 16-bit operands: 32 bytes of A and of B (PTX ISA 9.7.15.2, 9.7.16.2.1)."""

comptime SWIZZLE_ROW_BYTES = 128
"""One row of a 128-byte swizzled tile; 8 such rows are the repeating pattern (PTX ISA 5.5.7)."""


struct GemmConfig(TrivialRegisterPassable):
    """Compile-time choices of a kernel. What follows from its place in the series has a method under "series"; nothing
    else asks for its name but `run`, which calls it.

    sm_100a: `mma_m x mma_n` is the shape of one MMA instruction: with `cta_group` 2 that is the tile of a CTA pair, and
    each CTA holds half of its rows.
    sm_90a: `mma_m x mma_n` is the tile of a CTA, whose rows the consumer warpgroups share; instructions have 64 rows.

    Any combination can be made; `config_error` (rules.mojo) says what is wrong with one.
    """

    var kernel: StaticString
    var arch: StaticString
    var dtype: DType
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

    def __init__(
        out self,
        kernel: StaticString,
        *,
        arch: StaticString = "sm_100a",
        dtype: DType = DType.bfloat16,
        cta_group: Int = 0,
        mma_m: Int = 0,
        mma_n: Int = 256,
        block_k: Int = 64,
        stages: Int = 0,
        cluster_m: Int = 0,
        cluster_n: Int = 0,
        epilogue_width: Int = 0,
        multicast: Bool = True,
        band_m: Int = 0,
        scheduler: StaticString = "",
        raster_group: Int = 0,
        accumulators: Int = 0,
        clc_depth: Int = 0,
        sms: Int = 0,
        ping_pong: Bool = False,
    ):
        """Zeros stand for a choice of the kernel's: `cta_group` 2 on sm_100a, 1 on sm_90a; `mma_m` 128 rows a CTA;
        as many `stages` as fit (kernel5: one); `cluster_m` x `cluster_n` 4 x 4 on sm_100a, 2 x 1 on sm_90a;
        `epilogue_width` 64, but 32 where the epilogue is double-buffered, or less if that does not divide the columns of
        a warp; `band_m` 2048 rows for kernel7 on sm_90a, else no bands. So does an empty `scheduler`: in a persistent
        kernel clc on sm_100a, static on sm_90a; `raster_group` 8, with `ping_pong` and its smaller tiles 16;
        `accumulators` 2 in TMEM where the kernel is persistent; `clc_depth` 2; `sms` those of a B200 or H200 that such
        clusters can fill."""
        self.kernel = kernel
        self.arch = arch
        self.dtype = dtype
        self.cta_group = cta_group
        if cta_group == 0:
            self.cta_group = 2 if arch == "sm_100a" else 1
        self.mma_m = mma_m if mma_m != 0 else 128 * self.cta_group
        self.mma_n = mma_n
        self.block_k = block_k
        self.stages = stages
        self.cluster_m = cluster_m
        self.cluster_n = cluster_n
        self.epilogue_width = epilogue_width
        self.multicast = multicast
        self.band_m = band_m
        self.scheduler = scheduler
        self.raster_group = raster_group
        self.accumulators = accumulators
        self.clc_depth = clc_depth
        self.sms = sms
        self.ping_pong = ping_pong
        if band_m == 0 and self.double_buffers_epilogue() and not self.is_persistent() and arch == "sm_90a":
            self.band_m = 2048 // max(1, self.mma_m)
        if cluster_m == 0:
            self.cluster_m = 4 if self.has_tmem() else 2
        if cluster_n == 0:
            self.cluster_n = 4 if self.has_tmem() else 1
        if epilogue_width == 0:
            self.epilogue_width = 32 if self.double_buffers_epilogue() else 64
            while self.epilogue_width > 16 and self.warp_columns() % self.epilogue_width != 0:
                self.epilogue_width //= 2
        if scheduler.byte_length() == 0:
            self.scheduler = "none"
            if self.is_persistent():
                self.scheduler = "clc" if self.has_tmem() else "static"
        if raster_group == 0:
            self.raster_group = (16 if ping_pong else 8) if self.is_persistent() else 1
        if accumulators == 0:
            self.accumulators = 2 if self.is_persistent() and self.has_tmem() else 1
        if clc_depth == 0 and self.cancels_clusters():
            self.clc_depth = 2
        if sms == 0 and self.fills_sms():
            self.sms = sms_filled(self.cluster_size(), self.has_tmem())
        if stages == 0:
            self.stages = self.stages_that_fit() if self.pipelined() else 1

    # ---- series --------------------------------------------------------------------------------------------------
    def step_of_series(self) -> Int:
        """Each kernel has what the ones before it have."""
        if self.kernel == "kernel5":
            return 5
        if self.kernel == "kernel6":
            return 6
        if self.kernel == "kernel7":
            return 7
        return 8 if self.kernel == "kernel8" else 0

    def pipelined(self) -> Bool:
        """A ring of stages between warps of different roles; otherwise there is one stage."""
        return self.step_of_series() >= 6

    def double_buffers_epilogue(self) -> Bool:
        """C leaves through two small buffers, one stored while the next is written; otherwise the whole tile has its
        place in shared memory."""
        return self.step_of_series() >= 7

    def is_persistent(self) -> Bool:
        """Tiles have numbers in an order of their own, and CTAs compute tile after tile, unless the scheduler is `none`;
        otherwise a CTA's place in the grid is its tile."""
        return self.step_of_series() >= 8

    def overlaps_launches(self) -> Bool:
        """A launch may begin while the one before it in the stream ends (programmatic dependent launch): it prepares
        its barriers, and touches global memory once the other is over. Only where it was measured to pay."""
        return self.step_of_series() >= 8 and not self.has_tmem()

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
        return self.cta_m() * self.block_k * ELEMENT_BYTES

    def b_bytes(self) -> Int:
        return self.cta_b_rows() * self.block_k * ELEMENT_BYTES

    def full_bytes(self) -> Int:
        """Bytes that arrive on one full barrier: the stage of every CTA that shares the MMA."""
        return self.cta_group * (self.a_bytes() + self.b_bytes())

    def cluster_size(self) -> Int:
        return self.cluster_m * self.cluster_n

    def sharing(self) -> Multicast:
        return Multicast(self.cluster_m, self.cluster_n, self.cta_group, self.multicast)

    def empty_arrivals(self) -> Int:
        """Arrivals an empty barrier waits for: each reader of what a CTA loads into a stage says once that it has read
        it. A reader is an MMA on sm_100a, a consumer warpgroup on sm_90a."""
        return self.sharing().readers() * (1 if self.has_tmem() else self.consumers_of_tile())

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
        return max(32, self.accumulators * self.accumulator_columns()) if self.has_tmem() else 0

    def accumulator_columns(self) -> Int:
        """From the start of one accumulator in TMEM to the next: a power of two."""
        var columns = 16
        while columns < self.warp_columns():
            columns *= 2
        return columns

    def block_rows(self) -> Int:
        """Rows of one box of C: those of the warps that write out together, four of the CTA or a warpgroup."""
        return self.cta_m() if self.has_tmem() else self.consumer_m()

    def block_bytes(self) -> Int:
        """One box of C in shared memory, `epilogue_width` columns wide."""
        return self.block_rows() * self.epilogue_width * ELEMENT_BYTES

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
        return 2 if self.double_buffers_epilogue() else self.epilogue_steps()

    def c_bytes(self) -> Int:
        return self.c_buffers() * self.step_bytes()

    # ---- CTA -----------------------------------------------------------------------------------------------------
    def warps(self) -> Int:
        """sm_100a: four epilogue warps, a producer and an MMA warp where these are warps of their own, and a scheduler warp
        where tiles must be fetched. sm_90a: the consumer warpgroups, and a producer warpgroup where it is one of
        its own; its second warp fetches tiles."""
        if not self.has_tmem():
            return 4 * (self.consumers() + (1 if self.pipelined() else 0))
        return 4 + (2 if self.pipelined() else 0) + (1 if self.fetches_tiles() else 0)

    def threads(self) -> Int:
        return self.warps() * 32

    def barrier_bytes(self) -> Int:
        """Full and empty barrier of each stage, and what `fixed_barrier_bytes` counts."""
        return 16 * self.stages + self.fixed_barrier_bytes()

    def fixed_barrier_bytes(self) -> Int:
        """sm_100a: the full barrier of each accumulator, its empty barrier where it is used again, the word for the
        TMEM address. For each response slot 16 bytes and a full and an empty barrier."""
        var tmem = 8 * (self.accumulators * (2 if self.is_persistent() else 1) + 1) if self.has_tmem() else 0
        return tmem + 32 * self.response_slots()

    def shared_memory_bytes(self) -> Int:
        return self.stages * (self.a_bytes() + self.b_bytes()) + self.c_bytes() + self.barrier_bytes()

    def stages_that_fit(self) -> Int:
        var free = SHARED_MEMORY_LIMIT - self.c_bytes() - self.fixed_barrier_bytes()
        return free // max(1, self.a_bytes() + self.b_bytes() + 16)

    # ---- names ---------------------------------------------------------------------------------------------------
    def dtype_name(self) -> StaticString:
        return "bf16" if self.dtype == DType.bfloat16 else "fp16"
