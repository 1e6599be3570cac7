"""PTX instructions that the library does not offer in the form a kernel needs: memory accesses, approximations,
launches.

Shared memory addresses have 32 bits; bits 24 and up of a CTA's own addresses hold its rank in the cluster. Convergent
instructions (barriers, `elect.sync`, shuffles) use the library instead, because the compiler may duplicate inline
assembly into both sides of a branch. Other files wrap TMA copies (tma.mojo), conversions (pack.mojo) and mbarriers
(pipeline.mojo)."""
from max.gpu.host.nvidia.tma import TMADescriptor
from std.memory import bitcast
from std.sys import _RegisterPackType
from std.sys._assembly import inlined_assembly

comptime Registers[count: Int] = _RegisterPackType[*TypeList.splat[count, Float32]()]
"""The result of an instruction with many output registers. Read it as `r[i]` with a compile-time i."""


# ---- operand text --------------------------------------------------------------------------------------------------
def repeat(constraint: StaticString, count: Int) -> String:
    """Returns the constraint `count` times, each followed by a comma."""
    var text = String()
    for _ in range(count):
        text += constraint
        text += ","
    return text


def operands(first: Int, count: Int) -> String:
    """Returns a vector operand of `count` registers, `{$first, ...}`."""
    var text = String("{")
    for i in range(count):
        if i > 0:
            text += ", "
        text += "$"
        text += String(first + i)
    text += "}"
    return text


# ---- shared memory -------------------------------------------------------------------------------------------------
@inline(.always)
def load_shared(address: UInt32) -> UInt32:
    """Loads 4 bytes from shared memory."""
    return inlined_assembly["ld.shared.b32 $0, [$1];", UInt32, constraints="=r,r,~{memory}"](address)


@inline(.always)
def load_shared_f32[offset: Int](address: UInt32) -> Float32:
    """Loads an f32 from shared memory, `offset` bytes after the address."""
    comptime text = String("ld.shared.f32 $0, [$1+", offset, "];")
    return inlined_assembly[text, Float32, constraints="=f,r,~{memory}"](address)


@inline(.always)
def store_shared[offset: Int = 0](address: UInt32, value: UInt32):
    """Stores 4 bytes to shared memory, `offset` bytes after the address."""
    inlined_assembly[String("st.shared.b32 [$0+", offset, "], $1;"), NoneType, constraints="r,r,~{memory}"](
        address, value
    )


@inline(.always)
def store_async(address: UInt32, value: UInt32, barrier: UInt32):
    """Stores 4 bytes to shared memory of any CTA of the cluster, asynchronously. A barrier of that CTA counts them when
    they have arrived (PTX ISA 9.7.9.12)."""
    inlined_assembly[
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [$0], $1, [$2];",
        NoneType,
        constraints="r,r,r,~{memory}",
    ](address, value, barrier)


@inline(.always)
def fence_proxy_async():
    """Makes this thread's generic accesses to shared memory visible to TMA and MMA, the async proxy (PTX ISA
    9.7.13.4)."""
    inlined_assembly["fence.proxy.async.shared::cta;", NoneType, constraints="~{memory}"]()


# ---- global memory --------------------------------------------------------------------------------------
@inline(.always)
def load_number(address: UInt64) -> UInt32:
    """Loads 4 bytes from global memory."""
    return inlined_assembly["ld.global.u32 $0, [$1];", UInt32, constraints="=r,l,~{memory}"](address)


@inline(.always)
def next_number(counter: UInt64, last: UInt32) -> UInt32:
    """Increments a counter in global memory, which wraps from `last` to 0. Returns its old value (PTX ISA 9.7.13.6)."""
    return inlined_assembly["atom.relaxed.gpu.global.inc.u32 $0, [$1], $2;", UInt32, constraints="=r,l,r,~{memory}"](
        counter, last
    )


@inline(.always)
def arrive_at_counter(counter: UInt64, last: UInt32) -> UInt32:
    """Increments a counter like `next_number`, with acquire and release at gpu scope (PTX ISA 9.7.13.6). Later arrivals
    observe what this CTA wrote before its barrier, and this thread observes what earlier arrivals released."""
    return inlined_assembly["atom.acq_rel.gpu.global.inc.u32 $0, [$1], $2;", UInt32, constraints="=r,l,r,~{memory}"](
        counter, last
    )


@inline(.always)
def store_global[offset: Int](address: UInt64, values: SIMD[DType.float32, 4]):
    """Stores four f32 to global memory, at a multiple of 16 bytes, `offset` bytes after the address."""
    inlined_assembly[
        String("st.global.v4.f32 [$0+", offset, "], {$1, $2, $3, $4};"), NoneType, constraints="l,f,f,f,f,~{memory}"
    ](address, values[0], values[1], values[2], values[3])


@inline(.always)
def store_global(address: UInt64, value: Float32):
    """Stores one f32 to global memory."""
    inlined_assembly["st.global.f32 [$0], $1;", NoneType, constraints="l,f,~{memory}"](address, value)


@inline(.always)
def store_bytes[count: Int](address: UInt64, word: UInt32):
    """Stores the lowest `count` bytes of a word (1, 2 or 4) to global memory, at a multiple of `count` bytes."""
    inlined_assembly[String("st.global.b", 8 * count, " [$0], $1;"), NoneType, constraints="l,r,~{memory}"](
        address, word
    )


@inline(.always)
def load_global[offset: Int](address: UInt64) -> SIMD[DType.float32, 4]:
    """Loads four f32 from global memory, at a multiple of 16 bytes, `offset` bytes after the address."""
    var found = inlined_assembly[
        String("ld.global.v4.f32 {$0, $1, $2, $3}, [$4+", offset, "];"),
        Registers[4],
        constraints="=f,=f,=f,=f,l,~{memory}",
    ](address)
    return {found[0], found[1], found[2], found[3]}


# ---- operands and functions of an epilogue ---------------------------------------------------------------------------
@inline(.always)
def load_pair[dtype: DType](address: UInt64, element: UInt64, inside: Bool) -> SIMD[DType.float32, 2]:
    """Loads two adjacent elements of an array of 16-bit floats in global memory; the first has an even index. If not
    `inside`, it loads nothing and returns zeros."""
    var pair = inlined_assembly["mov.b32 $0, 0; @$2 ld.global.b32 $0, [$1];", UInt32, constraints="=&r,l,b,~{memory}"](
        address + 2 * element, inside
    )
    return bitcast[dtype, 2](pair).cast[DType.float32]()


@inline(.always)
def load_one[dtype: DType](address: UInt64, element: UInt64, inside: Bool) -> Float32:
    """Loads one element of an array of 16-bit floats in global memory. If not `inside`, it loads nothing and returns
    0."""
    var one = inlined_assembly["mov.b16 $0, 0; @$2 ld.global.b16 $0, [$1];", UInt16, constraints="=&h,l,b,~{memory}"](
        address + 2 * element, inside
    )
    return bitcast[dtype](one).cast[DType.float32]()


@inline(.always)
def exp2(x: Float32) -> Float32:
    """Returns 2^x with a relative error of 2^-22.5. Subnormal results become 0 (PTX ISA 9.7.3.21)."""
    return inlined_assembly["ex2.approx.ftz.f32 $0, $1;", Float32, constraints="=f,f", has_side_effect=False](x)


@inline(.always)
def reciprocal(x: Float32) -> Float32:
    """Returns 1 / x with a relative error of 2^-23. Subnormal results become 0 (PTX ISA 9.7.3.13)."""
    return inlined_assembly["rcp.approx.ftz.f32 $0, $1;", Float32, constraints="=f,f", has_side_effect=False](x)


# ---- cluster launch control ------------------------------------------------------------------------------------------
@inline(.always)
def try_cancel[multicast: Bool](response: UInt32, barrier: UInt32):
    """Requests to cancel a cluster of this grid that has not started, so that this cluster can compute its tile (PTX
    ISA 9.7.13.17). The hardware writes 16 bytes to `response` and counts them on `barrier`; with `multicast`, at these
    offsets in every CTA of the cluster. One thread calls this."""
    comptime to = ".multicast::cluster::all" if multicast else ""
    inlined_assembly[
        String(
            "clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes", to, ".b128 [$0], [$1];"
        ),
        NoneType,
        constraints="r,r,~{memory}",
    ](response, barrier)


comptime NOTHING_CANCELED = ~UInt32(0)


@inline(.always)
def canceled_x(response: UInt32) -> UInt32:
    """Returns blockIdx.x of the first CTA of the canceled cluster in a response, or NOTHING_CANCELED."""
    return inlined_assembly[
        (
            "{ .reg .b128 answer; .reg .pred granted; ld.shared.b128 answer, [$1];"
            " clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 granted, answer; mov.b32 $0, -1;"
            " @granted clusterlaunchcontrol.query_cancel.get_first_ctaid::x.b32.b128 $0, answer; }"
        ),
        UInt32,
        constraints="=&r,r,~{memory}",
    ](response)


# ---- launches ------------------------------------------------------------------------------------------------------
@inline(.always)
def launch_dependents():
    """Lets the next launch of the stream start, if it has the attribute for it (PTX ISA 9.7.13.13). The instruction is
    not convergent, and executing it twice is harmless."""
    inlined_assembly["griddepcontrol.launch_dependents;", NoneType, constraints="~{memory}"]()


@inline(.always)
def griddepcontrol_wait():
    """Waits until the grids that this launch depends on have ended and their writes are visible (PTX ISA 9.7.13.13)."""
    inlined_assembly["griddepcontrol.wait;", NoneType, constraints="~{memory}"]()


# ---- TMA -----------------------------------------------------------------------------------------------------------
@inline(.always)
def tensor_map_address(map: Pointer[TMADescriptor, _]) -> UInt64:
    """Returns the address of a tensor map, which is a parameter of the kernel."""
    return UInt64(Int(map))


@inline(.always)
def prefetch_tensor_map(map: UInt64):
    """Prefetches a tensor map for later copies."""
    inlined_assembly["prefetch.tensormap [$0];", NoneType, constraints="l,~{memory}"](map)


@inline(.always)
def tma_load[
    cta_group: Int, multicast: Bool
](destination: UInt32, map: UInt64, barrier: UInt32, column: Int32, row: Int32, mask: UInt16):
    """Starts to copy one box to `destination` in shared memory; `barrier` counts its bytes (PTX ISA 9.7.9.27).

    With `multicast`, every CTA of `mask` receives the box, and its barrier the signal, at the same offsets. With
    `cta_group` 2, the signal goes to that CTA of the receiver's pair that has the parity of the CTA of `barrier`.
    """
    comptime group = ".cta_group::2" if cta_group == 2 else ""
    comptime copy = String(
        "cp.async.bulk.tensor.2d", group, ".shared::cluster.global.tile.mbarrier::complete_tx::bytes"
    )
    comptime if multicast:
        inlined_assembly[
            copy + ".multicast::cluster [$0], [$1, {$3, $4}], [$2], $5;", NoneType, constraints="r,l,r,r,r,h,~{memory}"
        ](destination, map, barrier, column, row, mask)
    else:
        inlined_assembly[copy + " [$0], [$1, {$3, $4}], [$2];", NoneType, constraints="r,l,r,r,r,~{memory}"](
            destination, map, barrier, column, row
        )


@inline(.always)
def tma_store(source: UInt32, map: UInt64, column: Int32, row: Int32):
    """Starts to copy one box to global memory, except what lies outside of the tensor, in this thread's open bulk
    group."""
    inlined_assembly[
        "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [$1, {$2, $3}], [$0];",
        NoneType,
        constraints="r,l,r,r,~{memory}",
    ](source, map, column, row)


@inline(.always)
def tma_store_in_window(source: UInt32, map: UInt64, column: Int32, row: Int32, window: Int32):
    """Starts a copy like `tma_store`, to a tensor of overlapping windows (groups.mojo)."""
    inlined_assembly[
        "cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [$1, {$2, $3, $4}], [$0];",
        NoneType,
        constraints="r,l,r,r,r,~{memory}",
    ](source, map, column, row, window)


@inline(.always)
def tma_commit_group():
    """Closes this thread's bulk group of TMA stores (PTX ISA 9.7.9.25)."""
    inlined_assembly["cp.async.bulk.commit_group;", NoneType, constraints="~{memory}"]()


@inline(.always)
def tma_wait_group_read[pending: Int]():
    """Waits until at most `pending` of this thread's newest bulk groups still read shared memory."""
    inlined_assembly[String("cp.async.bulk.wait_group.read ", pending, ";"), NoneType, constraints="~{memory}"]()


# ---- registers to shared memory ------------------------------------------------------------------------------------
@inline(.always)
def pack_pair[dtype: DType](low: Float32, high: Float32) -> UInt32:
    """Rounds two f32 values to 16-bit floats, to nearest even, and packs them, `low` in the lower half. The compiler
    takes this for a side effect, so it stays behind the wait for asynchronously written registers."""
    comptime assert dtype == DType.bfloat16 or dtype == DType.float16, "a pair is two 16-bit floats"
    comptime type = "bf16x2" if dtype == DType.bfloat16 else "f16x2"
    return inlined_assembly[String("cvt.rn.", type, ".f32 $0, $1, $2;"), UInt32, constraints="=r,f,f"](high, low)


@inline(.always)
def pack_four(first: Float32, second: Float32, third: Float32, fourth: Float32) -> UInt32:
    """Rounds four f32 values to the nearest finite e4m3, ties to even, and packs them, `first` in the lowest byte. It
    stays behind the wait, like `pack_pair`."""
    return inlined_assembly[
        (
            "{ .reg .b16 low, high; cvt.rn.satfinite.e4m3x2.f32 low, $2, $1; cvt.rn.satfinite.e4m3x2.f32 high, $4, $3;"
            " mov.b32 $0, {low, high}; }"
        ),
        UInt32,
        constraints="=r,f,f,f,f",
    ](first, second, third, fourth)


@inline(.always)
def pack_eight(values: SIMD[DType.float32, 8]) -> UInt32:
    """Rounds eight f32 values to the nearest finite e2m1 and packs them, the first in the lowest 4 bits. It stays
    behind the wait, like `pack_pair`."""
    return inlined_assembly[
        (
            "{ .reg .b8 a, b, c, d; cvt.rn.satfinite.e2m1x2.f32 a, $2, $1; cvt.rn.satfinite.e2m1x2.f32 b, $4, $3;"
            " cvt.rn.satfinite.e2m1x2.f32 c, $6, $5; cvt.rn.satfinite.e2m1x2.f32 d, $8, $7; mov.b32 $0, {a, b, c, d}; }"
        ),
        UInt32,
        constraints="=r,f,f,f,f,f,f,f,f",
    ](values[0], values[1], values[2], values[3], values[4], values[5], values[6], values[7])


@inline(.always)
def mul_after_wait(a: Float32, b: Float32) -> Float32:
    """Returns a * b. The compiler keeps this behind the wait for the tensor core, which writes `a`."""
    return inlined_assembly["mul.rn.f32 $0, $1, $2;", Float32, constraints="=f,f,f"](a, b)


@inline(.always)
def fma_after_wait(a: Float32, b: Float32, c: Float32) -> Float32:
    """Returns a * b + c, rounded once. The compiler keeps this behind the wait for the tensor core, which writes
    `a`."""
    return inlined_assembly["fma.rn.f32 $0, $1, $2, $3;", Float32, constraints="=f,f,f,f"](a, b, c)


@inline(.always)
def store_matrices[
    count: SIMDLength, //, offset: Int, transposed: Bool = False
](address: UInt32, matrices: SIMD[DType.uint32, count]):
    """Stores two or four 8x8 matrices of 16-bit elements, or their transposes, to shared memory. Lane l passes the
    address of row l % 8 of matrix l / 8 as it is stored (PTX ISA 9.7.14.5.16)."""
    comptime trans = ".trans" if transposed else ""
    comptime text = String("stmatrix.sync.aligned.m8n8.x", Int(count), trans, ".shared.b16 [$0+", offset, "], ")
    comptime if count == 2:
        inlined_assembly[text + "{$1, $2};", NoneType, constraints="r,r,r,~{memory}"](address, matrices[0], matrices[1])
    else:
        inlined_assembly[text + "{$1, $2, $3, $4};", NoneType, constraints="r,r,r,r,r,~{memory}"](
            address, matrices[0], matrices[1], matrices[2], matrices[3]
        )


@inline(.always)
def store_pair[offset: Int](address: UInt32, low: UInt32, high: UInt32):
    """Stores two words side by side to shared memory."""
    inlined_assembly[String("st.shared.v2.b32 [$0+", offset, "], {$1, $2};"), NoneType, constraints="r,r,r,~{memory}"](
        address, low, high
    )


@inline(.always)
def store_halves[low: Int, high: Int](address: UInt32, word: UInt32):
    """Stores the lower 16 bits of a word at offset `low` in shared memory, the upper 16 bits at `high`."""
    inlined_assembly[
        String(
            "{ .reg .b16 low, high; mov.b32 {low, high}, $1; st.shared.b16 [$0+",
            low,
            "], low; st.shared.b16 [$0+",
            high,
            "], high; }",
        ),
        NoneType,
        constraints="r,r,~{memory}",
    ](address, word)


@inline(.always)
def store_quarters[low: Int, high: Int](address: UInt32, word: UInt32):
    """Stores bytes 0 and 1 of a word at offsets `low` and `high` in shared memory, and bytes 2 and 3 at the same
    offsets from the address with bit 2 flipped."""
    inlined_assembly[
        String(
            "{ .reg .b8 a, b, c, d; .reg .b32 next; mov.b32 {a, b, c, d}, $1; xor.b32 next, $0, 4; st.shared.b8 [$0+",
            low,
            "], a; st.shared.b8 [$0+",
            high,
            "], b; st.shared.b8 [next+",
            low,
            "], c; st.shared.b8 [next+",
            high,
            "], d; }",
        ),
        NoneType,
        constraints="r,r,~{memory}",
    ](address, word)


@inline(.always)
def pinned(value: UInt32) -> UInt32:
    """Returns the same value, which the compiler computes here and no earlier."""
    return inlined_assembly["", UInt32, constraints="=r,0", has_side_effect=True](value)


@inline(.always)
def pinned(value: Float32) -> Float32:
    """Returns the same value, which the compiler uses here and no earlier."""
    return inlined_assembly["", Float32, constraints="=f,0", has_side_effect=True](value)
