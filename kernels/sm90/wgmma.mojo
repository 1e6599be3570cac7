"""The tensor core of sm_90a: a warpgroup issues MMAs together, and its registers hold the accumulator (PTX ISA 9.7.15).

All 128 threads of a warpgroup call these functions, in code that is uniform across it. wgmma is asynchronous: between a
multiplication and the wait for its group, no thread may access the accumulator or overwrite the stage.
"""
from ..common.config import MMA_K_BYTES, SWIZZLE_ROW_BYTES, GemmConfig, element_bytes, k_advance
from max.gpu.compute.mma import (
    WGMMADescriptor,
    wgmma_async,
    wgmma_commit_group_sync,
    wgmma_fence_aligned,
    wgmma_wait_group_sync,
)
from std.sys._assembly import inlined_assembly
from std.utils.static_tuple import StaticTuple

comptime MMA_M = 64
"""Rows of one instruction, 16 in each warp."""


@inline(.always)
def operand_descriptor(tile: UInt32, mn_major: Bool) -> UInt64:
    """Returns the descriptor of an operand of 128-byte swizzled lines that starts at `tile` (PTX ISA 9.7.15.5.1.2.2).

    Its address field counts 16-byte units: add `k_advance` for another MMA, bytes / 16 for another stage. If MN-major,
    the leading dimension is the distance between groups of 64 rows. K-major does not use it, as one line holds all of
    K."""
    comptime swizzle_128b = UInt64(1) << 62
    comptime group_of_8_lines = UInt64(8 * SWIZZLE_ROW_BYTES // 16) << 32
    var leading = UInt64(64 * SWIZZLE_ROW_BYTES // 16 if mn_major else 1) << 16
    return swizzle_128b | group_of_8_lines | leading | UInt64((tile & 0x3FFFF) >> 4)


@inline(.always)
def multiply_slice[
    config: GemmConfig, columns: Int, scale_d: Int
](a: UInt64, b: UInt64, values: StaticTuple[Float32, columns // 2]) -> StaticTuple[Float32, columns // 2]:
    """Starts one wgmma of 64 rows x `columns` columns x 32 bytes of K; `scale_d` 0 ignores the old values."""
    comptime dtype = config.dtype
    return wgmma_async[
        MMA_M,
        columns,
        MMA_K_BYTES // element_bytes(config.dtype),
        a_type=dtype,
        b_type=dtype,
        accum_type=DType.float32,
        scale_d=scale_d,
        layout_a="col" if config.a_mn_major() else "row",
        layout_b="row" if config.b_mn_major() else "col",
    ](WGMMADescriptor[dtype](Int64(a)), WGMMADescriptor[dtype](Int64(b)), values)


trait Sums(TrivialRegisterPassable):
    """The finished sums of a tile, as the registers of an accumulator hold them."""

    def value[block: Int, register: Int](self) -> Float32:
        """Returns one sum of this thread."""
        ...


struct Accumulator[config: GemmConfig](Sums):
    """The sums of one consumer warpgroup, in blocks of 64 rows. Register 4j + i of a block holds, in thread t of warp
    w, row 16w + t / 4 + 8 * (i / 2) and column 8j + 2 * (t % 4) + i % 2 (PTX ISA 9.7.15.5.1.1)."""

    comptime blocks = Self.config.consumer_m() // MMA_M
    comptime registers = Self.config.mma_n // 2
    comptime Block = StaticTuple[Float32, Self.registers]

    var values: StaticTuple[Self.Block, Self.blocks]

    @inline(.always)
    def __init__(out self):
        self.values = {fill = Self.Block(fill=0)}

    @inline(.always)
    def multiply[*, first_stage: Bool](mut self, a: UInt64, b: UInt64):
        """Starts to add a stage, as one wgmma group. `a` is the descriptor of this warpgroup's rows, `b` that of all
        columns. The `first_stage` of a tile ignores the old registers, so no instruction has to set them to 0."""
        wgmma_fence_aligned()
        comptime for step in range(SWIZZLE_ROW_BYTES // MMA_K_BYTES):
            comptime a_advance = k_advance(step, Self.config.a_mn_major())
            comptime b_advance = k_advance(step, Self.config.b_mn_major())
            comptime for block in range(Self.blocks):
                comptime rows = UInt64(block * MMA_M * SWIZZLE_ROW_BYTES // 16)
                self.values[block] = multiply_slice[
                    Self.config, Self.config.mma_n, 0 if first_stage and step == 0 else 1
                ](a + a_advance + rows, b + b_advance, self.values[block])
        wgmma_commit_group_sync()

    @inline(.always)
    def wait[pending: Int](self):
        """Waits until at most `pending` of the newest groups are unfinished."""
        wgmma_wait_group_sync[pending]()

    @inline(.always)
    def value[block: Int, register: Int](self) -> Float32:
        return self.values[block][register]


# ---- operations behind the wait for the tensor core ------------------------------------------------------------------
@inline(.always)
def mul_after_wait(a: Float32, b: Float32) -> Float32:
    """Returns a * b. The compiler keeps this behind the wait for the tensor core, which writes `a`."""
    return inlined_assembly["mul.rn.f32 $0, $1, $2;", Float32, constraints="=f,f,f"](a, b)


@inline(.always)
def fma_after_wait(a: Float32, b: Float32, c: Float32) -> Float32:
    """Returns a * b + c, rounded once. It stays behind the wait too."""
    return inlined_assembly["fma.rn.f32 $0, $1, $2, $3;", Float32, constraints="=f,f,f,f"](a, b, c)
