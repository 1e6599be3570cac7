"""Promotion of fp8 sums on sm_90a: the partial sum of each stage is multiplied by its scale factors and added in f32.

    C[row, column] = sum over blocks of 128 along K: A factor[row, block] * B factor[column // 128, block] * partial sum

wgmma adds fp8 with 13 fraction bits (measured on an H200; arXiv 2511.10909), so after each stage f32 registers take
over its sums: *promotion*. A warpgroup has 64 rows x 128 columns of partial sums at a time, a *piece*, and waits for
them. Meanwhile the tensor core works for the other warpgroup."""
from ..common.block_scaling import F32_BLOCK
from ..common.config import MMA_K_BYTES, SWIZZLE_ROW_BYTES
from ..common.cta import Cta
from ..common.layer_config import LayerConfig
from ..common.pipeline import Pipeline
from ..common.ptx import fence_proxy_async, load_shared_f32
from .mainloop import Consumer, StageConsumer
from .warpgroup import warp_of_group
from .wgmma import MMA_M, Accumulator, fma_after_wait, multiply_slice
from max.gpu.compute.mma import wgmma_commit_group_sync, wgmma_fence_aligned
from max.gpu.sync import syncwarp
from std.utils.static_tuple import StaticTuple


struct Factors[config: LayerConfig](TrivialRegisterPassable):
    """The scale factors of a stage that this thread needs: of its two rows in each block of 64, and of the columns."""

    comptime blocks = Accumulator[Self.config.gemm].blocks

    var a: StaticTuple[Float32, 2 * Self.blocks]
    var b: StaticTuple[Float32, Promotion[Self.config].across]

    @inline(.always)
    def __init__(out self, a: UInt32, b: UInt32):
        """Loads the factors from the addresses of those of the thread's first row and of the first columns."""
        self.a = {fill = 0}
        self.b = {fill = 0}
        comptime for i in range(2 * Self.blocks):
            self.a[i] = load_shared_f32[4 * (MMA_M * (i // 2) + 8 * (i % 2))](a)
        comptime for i in range(Promotion[Self.config].across):
            self.b[i] = load_shared_f32[128 * i](b)


struct Promotion[config: LayerConfig](TrivialRegisterPassable):
    """Multiplies and promotes stages. All threads of a consumer warpgroup use it."""

    comptime columns = min(Self.config.gemm.mma_n, F32_BLOCK)  # of a piece
    comptime across = Self.config.gemm.mma_n // Self.columns  # pieces side by side
    comptime pieces = Self.across * Accumulator[Self.config.gemm].blocks
    comptime registers = Self.columns // 2

    var a: UInt32  # shared memory address of the factor of this thread's first row, in the first stage
    var b: UInt32
    var block: UInt32  # the current block of K in the tile
    var partial: StaticTuple[Float32, Self.registers]

    @inline(.always)
    def __init__(out self, cta: Cta[Self.config.gemm], row: Int32):
        var first = UInt32(row) + 16 * warp_of_group(cta) + cta.lane // 4
        self.a = cta.shared + UInt32(cta.layout.more) + 4 * first
        self.b = cta.shared + UInt32(Self.config.b_scales_offset())
        self.block = 0
        self.partial = {fill = 0}

    @inline(.always)
    def factors[*, first_stage: Bool](mut self, stage: UInt32) -> Factors[Self.config]:
        """Loads the factors of a full stage, the `first_stage` of a tile or the next one."""
        self.block = 0 if first_stage else self.block + 1
        var a = self.a + stage * UInt32(Self.config.a_scale_bytes())
        return {a, self.b + stage * UInt32(Self.config.b_scale_bytes()) + self.block % 4 * 4}

    @inline(.always)
    def multiply[piece: Int](mut self, a: UInt64, b: UInt64):
        """Starts to multiply a piece of a stage, as one wgmma group."""
        comptime rows = UInt64(piece // Self.across * MMA_M * SWIZZLE_ROW_BYTES // 16)
        comptime columns = UInt64(piece % Self.across * F32_BLOCK * SWIZZLE_ROW_BYTES // 16)
        wgmma_fence_aligned()
        comptime for step in range(SWIZZLE_ROW_BYTES // MMA_K_BYTES):
            comptime advance = UInt64(step * MMA_K_BYTES // 16)
            self.partial = multiply_slice[Self.config.gemm, Self.columns, 0 if step == 0 else 1](
                a + rows + advance, b + columns + advance, self.partial
            )
        wgmma_commit_group_sync()

    @inline(.always)
    def promote[
        piece: Int, *, first_stage: Bool
    ](self, factors: Factors[Self.config], mut accumulator: Accumulator[Self.config.gemm]):
        """Adds a finished piece to its part of the accumulator. The `first_stage` of a tile overwrites that part."""
        comptime block = piece // Self.across
        comptime first = piece % Self.across * Self.registers
        var b = factors.b[piece % Self.across]
        var total = accumulator.values[block]
        comptime for i in range(Self.registers):
            var scale = factors.a[2 * block + i % 4 // 2] * b
            total[first + i] = fma_after_wait(self.partial[i], scale, Float32(0) if first_stage else total[first + i])
        accumulator.values[block] = total


struct LayerConsumer[layer: LayerConfig](StageConsumer):
    """Multiplies like a `Consumer`, or promotes each stage."""

    comptime config = Self.layer.gemm

    var plain: Consumer[Self.layer.gemm]
    var promotion: Promotion[Self.layer]

    @inline(.always)
    def __init__(out self, cta: Cta[Self.layer.gemm]):
        self.plain = {cta}
        self.promotion = {cta, self.plain.row}

    @inline(.always)
    def multiply_stage[
        *, first_stage: Bool = False
    ](
        mut self,
        mut accumulator: Accumulator[Self.layer.gemm],
        mut stages: Pipeline[Self.layer.gemm.stages],
        mut previous: UInt32,
    ):
        comptime if Self.layer.promotes():
            self.promote_stage[first_stage=first_stage](accumulator, stages)
        else:
            self.plain.multiply_stage[first_stage=first_stage](accumulator, stages, previous)

    @inline(.always)
    def promote_stage[
        *, first_stage: Bool
    ](mut self, mut accumulator: Accumulator[Self.layer.gemm], mut stages: Pipeline[Self.layer.gemm.stages]):
        """Waits for the next stage, multiplies it, releases it, and promotes its sums with its scale factors."""
        comptime pieces = Promotion[Self.layer].pieces
        stages.consumer_wait()
        var factors = self.promotion.factors[first_stage=first_stage](stages.stage)
        comptime for piece in range(pieces):
            self.promotion.multiply[piece](self.plain.a_of(stages.stage), self.plain.b_of(stages.stage))
            comptime if piece == 0:
                fence_proxy_async()  # the async proxy writes the next factors: only after these reads
            accumulator.wait[0]()
            comptime if piece == pieces - 1:
                syncwarp()  # all lanes have read their factors; one lane arrives
                self.plain.release(stages.stage)
            self.promotion.promote[piece, first_stage=first_stage](factors, accumulator)
        stages.advance()

    @inline(.always)
    def finish_tile(self, accumulator: Accumulator[Self.layer.gemm], last: UInt32):
        comptime if not Self.layer.promotes():
            self.plain.finish_tile(accumulator, last)
