"""A product with few rows of A, such as the tokens of a decoding step, where reading the weights B bounds the time.

A CTA has `mma_n` rows of B. Its warps, `split_k` of them, take turns along K. A thread loads 16 bytes of each of its
rows from global memory to registers, `stages` times before it multiplies, so that many loads are in flight. As each
byte of B is used once, TMA and shared memory would gain nothing. At the end the warps add their sums through shared
memory.

`mma.sync` multiplies 16 rows of A by 8 rows of B (PTX ISA 9.7.14.5). Of 16 elements of K, it takes 2t, 2t + 1, 2t + 8
and 2t + 9 from lane t of four. The order of K within a sum is free if A and B have the same, so lane t loads the 16
bytes at 16t of both: words 0 and 1 are its part of one MMA, words 2 and 3 that of the next. The sums lie in registers
like those of wgmma, so fused epilogues take them."""
from .box import pack_pair
from .epilogues import *
from .fragment import Fragment, Values
from .global_memory import store_bytes, store_global
from .launch_control import griddepcontrol_wait, launch_dependents
from .layer import EpilogueOperands
from .layer_config import LayerConfig
from .ptx import Registers
from max.gpu import block_idx, thread_idx
from max.gpu.memory import external_memory
from max.gpu.primitives.warp import broadcast
from max.gpu.sync import barrier
from std.sys import _RegisterPackType, size_of
from std.sys._assembly import inlined_assembly
from std.utils.static_tuple import StaticTuple

comptime CHUNK = 64
"""Bytes of a row that its four lanes load together. They are two MMAs deep."""

comptime Four = _RegisterPackType[UInt32, UInt32, UInt32, UInt32]
comptime Words = SIMD[DType.uint32, 4]
comptime Sums = SIMD[DType.float32, 4]


@fieldwise_init
struct Matrix(TrivialRegisterPassable):
    """A row-major matrix in global memory."""

    var address: UInt64
    var rows: UInt32
    var pitch: UInt32  # bytes from one row to the next

    @inline(.always)
    def row(self, number: UInt32) -> UInt64:
        """Returns the address of a row, or of the last one if there are fewer: nothing is stored for the others."""
        return self.address + UInt64(min(number, self.rows - 1)) * UInt64(self.pitch)


struct Rows[config: LayerConfig](TrivialRegisterPassable):
    """The rows of A and of B whose elements a thread loads: of each 8 rows, one that it shares with three lanes.
    Addresses are those of the thread's part of the first chunk."""

    comptime of_a = Self.config.gemm.mma_m // 8
    comptime of_b = Self.config.gemm.mma_n // 8

    var a: StaticTuple[UInt64, Self.of_a]
    var b: UInt64  # of the first row; all others are as far from it in all threads
    var down: StaticTuple[UInt64, Self.of_b]
    var part: UInt32  # bytes from the start of a chunk to the thread's part
    var end: UInt32  # bytes of a row

    @inline(.always)
    def __init__(out self, a: Matrix, b: Matrix, first_a: UInt32, first_b: UInt32, lane: UInt32, end: UInt32):
        self.part, self.end = 16 * (lane % 4), end
        self.a, self.down = {}, {}
        comptime for i in range(Self.of_a):
            self.a[i] = a.row(first_a + UInt32(8 * i) + lane // 4) + UInt64(self.part)
        self.b = b.row(first_b + lane // 4) + UInt64(self.part)
        comptime for i in range(Self.of_b):
            # B has whole groups of 8 rows. Beyond them the last is read again, and nothing is stored.
            self.down[i] = UInt64(b.pitch) * UInt64(min(UInt32(8 * i), b.rows - 8 - first_b))

    @inline(.always)
    def prefetch(self, at: UInt32):
        """Lets L2 fetch what a step loads of B."""
        comptime for i in range(Self.of_b):
            comptime for chunk in range(Self.config.gemm.stages):
                prefetch(self.b + UInt64(at) + UInt64(CHUNK * chunk) + self.down[i])

    @inline(.always)
    def multiply[whole: Bool](self, mut sums: StaticTuple[Sums, Self.of_b], at: UInt32):
        """Adds the products of one step, `stages` chunks from byte `at` of the rows on. Unless it is `whole`, the rows
        end within it. All loads come before the first MMA."""
        comptime chunks = Self.config.gemm.stages
        var b = StaticTuple[Words, chunks * Self.of_b](fill=Words(0))
        var a = StaticTuple[Words, chunks * 2](fill=Words(0))  # rows that the CTA does not have are 0
        comptime for chunk in range(chunks):
            comptime offset = CHUNK * chunk
            var inside = at + UInt32(offset) + self.part < self.end
            comptime for i in range(Self.of_b):
                b[chunk * Self.of_b + i] = load[offset, whole, once=True](self.b + UInt64(at) + self.down[i], inside)
            comptime for i in range(Self.of_a):
                a[chunk * 2 + i] = load[offset, whole, once=False](self.a[i] + UInt64(at), inside)
        comptime for chunk in range(chunks):
            var upper, lower = a[chunk * 2], a[chunk * 2 + 1]
            comptime for low in [0, 2]:
                var rows_of_a = Words(upper[low], lower[low], upper[low + 1], lower[low + 1])
                comptime for i in range(Self.of_b):
                    var words = b[chunk * Self.of_b + i]
                    sums[i] = mma[Self.config](rows_of_a, words[low], words[low + 1], sums[i])


@inline(.always)
def few_rows[
    config: LayerConfig
](a: Matrix, b: Matrix, c: UInt64, c_pitch: UInt32, bytes: UInt32, operands: EpilogueOperands):
    """Computes `mma_m` rows and `mma_n` columns of C in one CTA. Rows of A and B have so many bytes. All threads call
    this."""
    comptime blocks = config.gemm.mma_n // 8
    comptime step = UInt32(CHUNK * config.gemm.stages)
    var warp, lane = broadcast(UInt32(thread_idx.x) // 32), UInt32(thread_idx.x) % 32
    var row = UInt32(block_idx.x) * UInt32(config.gemm.mma_m)
    var column = UInt32(block_idx.y) * UInt32(config.gemm.mma_n)
    var rows = Rows[config](a, b, row, column, lane, bytes)
    var at = warp * step

    launch_dependents()
    if at + step <= bytes:
        rows.prefetch(at)  # while the grid before ends: this is no read, so that grid may write B
    griddepcontrol_wait()

    var sums = StaticTuple[Sums, blocks](fill=Sums(0))
    while at + step <= bytes:
        rows.multiply[whole=True](sums, at)
        at += UInt32(config.split_k) * step
    if at < bytes:
        rows.multiply[whole=False](sums, at)

    # The sums of 8 columns lie together, those of a warp in 512 bytes, in the order of its registers.
    var shared = UInt32(Int(external_memory[UInt8, address_space=.SHARED, alignment=16]())) + 16 * lane
    comptime for i in range(blocks):
        store_sums(shared + 512 * (UInt32(i * config.split_k) + warp), sums[i])
    barrier()
    for pair in range(Int(warp), (blocks + 1) // 2, config.split_k):
        var values = Values(0)
        comptime for j in range(2):
            if 2 * pair + j < blocks:
                var found = Sums(0)
                comptime for part in range(config.split_k):
                    found += load_sums(shared + 512 * UInt32((2 * pair + j) * config.split_k + part))
                values = values.insert[offset=4 * j](found)
        var end = min(operands.columns, column + UInt32(config.gemm.mma_n))
        store[config](values, row, column + UInt32(16 * pair), end, c, c_pitch, operands)


@inline(.always)
def store[
    config: LayerConfig
](values: Values, row: UInt32, column: UInt32, end: UInt32, c: UInt64, pitch: UInt32, operands: EpilogueOperands):
    """Applies the epilogue to what the warp has of 16 rows and 16 columns of the product, from `row` and `column` on
    and up to column `end`, and stores it."""
    comptime each = SIMDLength(config.fusion().results)
    comptime width = size_of[config.gemm.out_dtype]()
    var lane = UInt32(thread_idx.x) % 32
    var first = row + lane // 4
    var results = SIMD[DType.float32, each]()
    comptime if config.is_fused():
        comptime E = EPILOGUES[config.epilogue - 1]
        var fragment = Fragment[config.gemm.dtype](values, first, column + 2 * (lane % 4), operands)
        results = rebind[SIMD[DType.float32, each]](E.apply(fragment))
    else:
        results = rebind[SIMD[DType.float32, each]](values * operands.alpha if config.scales != "none" else values)
    comptime for i in range(0, Int(each), 2):
        comptime down = 8 * (i // 2 % 2)
        comptime if down < config.gemm.mma_m:
            var to_row = first + UInt32(down)
            var to_column = column * UInt32(each) // 8 + UInt32(8 * (i // 4)) + 2 * (lane % 4)
            if to_row < operands.rows and to_column < end * UInt32(each) // 8:
                var place = c + UInt64(to_row) * UInt64(pitch) + UInt64(UInt32(width) * to_column)
                comptime if width == 4:
                    store_global(place, SIMD[DType.float32, 2](results[i], results[i + 1]))
                else:
                    store_bytes[4](place, pack_pair[config.gemm.out_dtype](results[i], results[i + 1]))


# ---- instructions ----------------------------------------------------------------------------------------------------
@inline(.always)
def prefetch(address: UInt64):
    """Fetches the line of an address into L2 (PTX ISA 9.7.9.15)."""
    inlined_assembly["prefetch.global.L2 [$0];", NoneType, constraints="l,~{memory}"](address)


@inline(.always)
def load[offset: Int, whole: Bool, once: Bool](address: UInt64, inside: Bool) -> Words:
    """Loads 16 bytes of global memory, `offset` bytes after the address; unless `whole`, zeros where not `inside`. What
    is read `once` does not go to L1."""
    comptime hint = ".L1::no_allocate" if once else ""
    comptime instruction = String("ld.global", hint, ".v4.b32 {$0, $1, $2, $3}, [$4+", offset, "];")
    comptime if whole:
        return words(inlined_assembly[instruction, Four, constraints="=r,=r,=r,=r,l,~{memory}"](address))
    else:
        comptime zeros = "mov.b32 $0, 0; mov.b32 $1, 0; mov.b32 $2, 0; mov.b32 $3, 0; @$5 "
        comptime outputs = "=&r,=&r,=&r,=&r,l,b,~{memory}"
        return words(inlined_assembly[zeros + instruction, Four, constraints=outputs](address, inside))


@inline(.always)
def mma[config: LayerConfig](a: Words, low: UInt32, high: UInt32, sums: Sums) -> Sums:
    """Returns the sums, and added to them 16 rows of A times 8 rows of B, 32 bytes deep. All threads of a warp call
    this, with the thread's part of A and two words of B."""
    comptime half: StaticString = "bf16" if config.gemm.dtype == DType.bfloat16 else "f16"
    comptime type = "e4m3" if config.scaling.bits == 8 else half
    comptime shape = String("m16n8k", config.scaling.mma_k())
    var found = inlined_assembly[
        String("mma.sync.aligned.", shape, ".row.col.f32.", type, ".", type, ".f32")
        + " {$0, $1, $2, $3}, {$4, $5, $6, $7}, {$8, $9}, {$10, $11, $12, $13};",
        Registers[4],
        constraints="=f,=f,=f,=f,r,r,r,r,r,r,f,f,f,f",
    ](a[0], a[1], a[2], a[3], low, high, sums[0], sums[1], sums[2], sums[3])
    return {found[0], found[1], found[2], found[3]}


@inline(.always)
def store_sums(address: UInt32, sums: Sums):
    """Stores four f32 to shared memory."""
    inlined_assembly["st.shared.v4.f32 [$0], {$1, $2, $3, $4};", NoneType, constraints="r,f,f,f,f,~{memory}"](
        address, sums[0], sums[1], sums[2], sums[3]
    )


@inline(.always)
def load_sums(address: UInt32) -> Sums:
    """Loads four f32 from shared memory."""
    var found = inlined_assembly[
        "ld.shared.v4.f32 {$0, $1, $2, $3}, [$4];", Registers[4], constraints="=f,=f,=f,=f,r,~{memory}"
    ](address)
    return {found[0], found[1], found[2], found[3]}


@inline(.always)
def words(found: Four) -> Words:
    return {found[0], found[1], found[2], found[3]}
