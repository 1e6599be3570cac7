"""Instructions of the tensor core of sm_100a: tensor memory (TMEM), MMA, commit (PTX ISA 9.7.16).

A whole warp, in code that is uniform across it, issues allocation, deallocation and loads. One thread issues MMA,
commit and fences. In a CTA pair, one thread of the even CTA issues MMA and commit for both."""
from ..common.config import SWIZZLE_ROW_BYTES, GemmConfig
from ..common.pipeline import MBarrier
from ..common.ptx import Registers, operands, repeat
from std.sys._assembly import inlined_assembly


# ---- descriptors ---------------------------------------------------------------------------------------------------
def instruction_descriptor(config: GemmConfig) -> UInt32:
    """Returns the descriptor of shape, types and layouts of an MMA of kind f16, f32 sums (PTX ISA 9.7.16.4.2)."""
    var accumulate_f32 = 1 << 4
    var bf16 = 1 if config.dtype == DType.bfloat16 else 0
    var types = accumulate_f32 | bf16 << 7 | bf16 << 10
    var mn_major = (1 << 15 if config.a_mn_major() else 0) | (1 << 16 if config.b_mn_major() else 0)
    return UInt32(types | mn_major | (config.mma_n // 8) << 17 | (config.mma_m // 16) << 24)


@inline(.always)
def operand_descriptor(tile: UInt32, mn_major: Bool = False) -> UInt64:
    """Returns the descriptor of an operand of 128-byte swizzled lines that starts at `tile` (PTX ISA 9.7.16.4.1).

    Its address field counts 16-byte units: add `k_advance` for another MMA, bytes / 16 for another stage. If MN-major,
    the leading dimension is the distance between groups of 64 rows. K-major does not use it, as one line holds all of
    K."""
    comptime swizzle_128b = UInt64(2) << 61
    comptime version = UInt64(1) << 46
    comptime group_of_8_lines = UInt64(8 * SWIZZLE_ROW_BYTES // 16) << 32
    var leading = UInt64(64 * SWIZZLE_ROW_BYTES // 16 if mn_major else 0) << 16
    return swizzle_128b | version | group_of_8_lines | leading | UInt64((tile & 0x3FFFF) >> 4)


# ---- tensor memory -------------------------------------------------------------------------------------------------
@inline(.always)
def tmem_allocate[config: GemmConfig](address_slot: UInt32):
    """Allocates TMEM, stores its address to shared memory, and gives up further allocations (PTX ISA 9.7.16.7.1). One
    warp of every CTA that shares the MMA calls this."""
    inlined_assembly[
        String(
            "tcgen05.alloc.cta_group::",
            config.cta_group,
            ".sync.aligned.shared::cta.b32 [$0], ",
            config.tmem_columns,
            ";",
        ),
        NoneType,
        constraints="r,~{memory}",
    ](address_slot)
    inlined_assembly[
        String("tcgen05.relinquish_alloc_permit.cta_group::", config.cta_group, ".sync.aligned;"),
        NoneType,
        constraints="~{memory}",
    ]()


@inline(.always)
def tmem_deallocate[config: GemmConfig](tmem: UInt32):
    """Frees the TMEM of this CTA (PTX ISA 9.7.16.7.1). One warp of every CTA that shares the MMA calls this."""
    inlined_assembly[
        String("tcgen05.dealloc.cta_group::", config.cta_group, ".sync.aligned.b32 $0, ", config.tmem_columns, ";"),
        NoneType,
        constraints="r,~{memory}",
    ](tmem)


def load_text(columns: Int, first: Int, address: Int) -> String:
    """Returns the text of a load of 16 lanes x `columns` columns into the operands from `first` on."""
    var registers = operands(first, columns // 2)
    return String("tcgen05.ld.sync.aligned.16x256b.x", columns // 8, ".b32 ", registers, ", [$", address, "]; ")


@inline(.always)
def tmem_load[columns: Int, halves: Int](address: UInt32) -> Registers[halves * columns // 2]:
    """Loads `columns` columns of 16 lanes, or of 32 with 2 halves, into the registers of one warp, and waits for them.

    Register 4j + i of a half holds, in thread t, lane t / 4 + 8 * (i / 2) and column 8j + 2 * (t % 4) + i % 2 (PTX ISA
    9.7.16.2.3.1). One asm statement contains the loads and the wait, so that no use of a register can move in between.
    """
    comptime count = columns // 2
    comptime wait = "tcgen05.wait::ld.sync.aligned;"
    comptime if halves == 1:
        return inlined_assembly[
            load_text(columns, 0, count) + wait,
            Registers[halves * columns // 2],
            constraints=repeat("=f", count) + "r,~{memory}",
        ](address)
    else:
        return inlined_assembly[
            load_text(columns, 0, 2 * count) + load_text(columns, count, 2 * count + 1) + wait,
            Registers[halves * columns // 2],
            constraints=repeat("=f", 2 * count) + "r,r,~{memory}",
        ](address, address + (16 << 16))


# ---- MMA -----------------------------------------------------------------------------------------------------------
@inline(.always)
def mma[config: GemmConfig](tmem: UInt32, a: UInt64, b: UInt64, accumulate: Bool):
    """Starts D = A.B, plus the old D if `accumulate` (PTX ISA 9.7.16.10.9.1). A later commit signals its completion."""
    comptime descriptor = instruction_descriptor(config)
    inlined_assembly[
        String("tcgen05.mma.cta_group::", config.cta_group, ".kind::f16 [$0], $1, $2, $3, $4;"),
        NoneType,
        constraints="r,l,l,r,b,~{memory}",
    ](tmem, a, b, descriptor, accumulate)


@inline(.always)
def commit[cta_group: Int](barrier: MBarrier, ctas: UInt32):
    """Arrives at the barrier at this offset in every CTA of the mask once all earlier MMAs of this thread are done."""
    inlined_assembly[
        String(
            "tcgen05.commit.cta_group::",
            cta_group,
            ".mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [$0], $1;",
        ),
        NoneType,
        constraints="r,h,~{memory}",
    ](barrier.address, UInt16(ctas))


@inline(.always)
def fence_before_thread_sync():
    """Orders this thread's earlier tcgen05 operations before the barrier that follows."""
    inlined_assembly["tcgen05.fence::before_thread_sync;", NoneType, constraints="~{memory}"]()


@inline(.always)
def fence_after_thread_sync():
    """Orders this thread's later tcgen05 operations after the barrier before it."""
    inlined_assembly["tcgen05.fence::after_thread_sync;", NoneType, constraints="~{memory}"]()
